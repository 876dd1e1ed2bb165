//! Attached devices that their environment leaves idle: its processes there, if any, used less of it on average over a
//! window than the rule asks for. What was not measured is not idle.

use std::time::Duration;

use genv_core::model::DeviceIndex;

use super::{Finding, attachments_unit};
use crate::plan::facts::{AttachmentFacts, AttachmentId, Facts, HostId};
use crate::plan::freshness::Freshness;
use crate::plan::history::{IdleWindow, Past, Sample, holding, own_window};
use crate::plan::selector::View;
use crate::plan::{Subject, words};

/// Who attaches an idle device again has this part of `over` to use it, but never so long that what came before is forgotten.
const PATIENCE: u32 = 12;

pub(super) struct Idle {
    pub(super) below: f64,
    pub(super) over: Duration,
    pub(super) only_if_free_devices_below: Option<u64>,
}

impl Idle {
    pub(super) fn findings(&self, view: &View<'_, '_>, past: &Past<'_>) -> Vec<Finding> {
        let facts = view.facts;
        let patience = (self.over / PATIENCE).min(view.rule.remember / 2);
        let windows = (0..facts.hosts.len()).map(|host| {
            let known = past.host(host).filter(|_| view.sees_host(host))?;
            Some(known.continued(view, host))
        });
        let windows: Vec<_> = windows.collect();
        let average = |attachment: &AttachmentFacts| {
            let mut window =
                own_window(facts, windows[attachment.host].as_ref()?, attachment)?.clone();
            window.follow(&holding(view, attachment));
            // All of the window that ends now must have been observed.
            let window = window_now(facts, self.over, window, attachment)?;
            let average = window.average(self.over)?;
            (!window.is_used_again(self.below, patience)).then_some(average)
        };
        let mut findings = Vec::new();
        for id in view.attachments() {
            let Some(average) = average(&facts.attachments[id]) else {
                continue;
            };
            if average < self.below {
                findings.push(self.finding(view, id, average));
            }
        }
        findings
    }

    fn finding(&self, view: &View<'_, '_>, id: AttachmentId, average: f64) -> Finding {
        let facts = view.facts;
        let attachment = &facts.attachments[id];
        let environment = facts.environments[attachment.environment].environment;
        let hostname = facts.hosts[attachment.host].hostname;
        let gpu = attachment.gpu;
        let over = words::duration(self.over.as_secs());
        let mut uses = facts.uses_of(attachment.environment);
        let percent = words::percent(average);
        let used = format!("used at {percent} over the last {over}");
        let found = if uses.any(|used| used.gpu == gpu) {
            format!("holds device {gpu}, {used}")
        } else {
            format!("holds device {gpu} without a process, {used}")
        };
        let held = self.only_if_free_devices_below.and_then(|below| {
            let free = free_devices(facts, attachment.host);
            let devices = words::count(free, "device");
            let are = if free == 1 { "is" } else { "are" };
            (free >= below).then(|| format!("{devices} {are} free on its host"))
        });
        Finding {
            subject: Subject::EnvironmentDevice {
                hostname: hostname.to_owned(),
                eid: environment.eid.clone(),
                index: DeviceIndex::gpu(gpu),
            },
            user: attachment.user,
            host: Some(attachment.host),
            found,
            allowed: format!("at least {} over {over}", words::percent(self.below)),
            advice: format!("use device {gpu}, or give it back"),
            excess: 1,
            units: vec![attachments_unit(facts, &[id])],
            held,
        }
    }
}

/// How busy the environment's processes keep the device of an attachment now; absent if that is not wholly measured.
pub(in crate::plan) fn sample(facts: &Facts<'_>, attachment: &AttachmentFacts) -> Option<Sample> {
    Some(Sample {
        attached_seconds: attachment.attached_seconds,
        sampled_seconds: facts.hosts[attachment.host].freshness.read.gpu_seconds?,
        utilization_ratio: attachment.utilization_ratio?,
    })
}

/// The window of an attachment with what is measured now; absent where nothing is.
pub(in crate::plan) fn window_now(
    facts: &Facts<'_>,
    over: Duration,
    mut window: IdleWindow,
    attachment: &AttachmentFacts,
) -> Option<IdleWindow> {
    let host = &facts.hosts[attachment.host];
    let sample = sample(facts, attachment)?;
    if host.freshness.gpu == Freshness::New {
        window.observe(sample, over, host.freshness.longest_gap_seconds);
    }
    Some(window)
}

/// Devices that somebody who waits could have; one of which the processes are unknown counts, so that nothing is
/// taken without need.
fn free_devices(facts: &Facts<'_>, host: HostId) -> u64 {
    let host = &facts.hosts[host];
    let Some(snapshot) = host.snapshot else {
        return 0;
    };
    let is_used = |gpu: u32| {
        let processes = &facts.processes[host.processes.clone()];
        processes.iter().any(|process| {
            facts.uses[process.uses.clone()]
                .iter()
                .any(|used| used.gpu == gpu)
        })
    };
    let wholes = snapshot
        .devices
        .iter()
        .filter(|device| device.index.mig.is_none());
    let free = wholes
        .filter(|device| device.up && device.attachments.is_empty() && !is_used(device.index.gpu));
    free.count() as u64
}
