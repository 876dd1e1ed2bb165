//! Attached devices that their environment leaves idle: over a window, its processes on average use less of the device
//! than the rule requires. Time without a measurement counts as full use: an attachment is idle only if its average is
//! below the limit even so.

use std::time::Duration;

use genv_core::model::DeviceIndex;

use super::{Finding, attachments_unit};
use crate::plan::facts::{AttachmentFacts, AttachmentId, Facts, HostId};
use crate::plan::freshness::Freshness;
use crate::plan::history::{Average, IdleWindow, Past, Sample, holding};
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
        let average = |attachment: &AttachmentFacts, mut window: IdleWindow| {
            window.follow(&holding(view, attachment));
            // The window that ends now needs enough measured time.
            let window = window_now(facts, self.over, window, attachment)?;
            let average = window.average(self.over)?;
            let is_idle = average.at_most < self.below && !window.is_used_again(self.below, patience);
            is_idle.then_some(average)
        };
        let mut findings = Vec::new();
        for host in (0..facts.hosts.len()).filter(|host| view.sees_host(*host)) {
            let Some(known) = past.host(host) else {
                continue;
            };
            known.show_windows(view, host, |id, window| {
                let attachment = &facts.attachments[id];
                // Most devices work all the time: they need no copy of the window.
                let works = attachment.utilization_ratio >= Some(self.below)
                    && attachment.unconfirmed == window.is_unconfirmed();
                if works && window.is_used_throughout(self.below) {
                    return;
                }
                if let Some(average) = average(attachment, window.clone()) {
                    findings.push(self.finding(view, id, average));
                }
            });
        }
        findings
    }

    fn finding(&self, view: &View<'_, '_>, id: AttachmentId, average: Average) -> Finding {
        let facts = view.facts;
        let attachment = &facts.attachments[id];
        let environment = facts.environments[attachment.environment].environment;
        let hostname = facts.hosts[attachment.host].hostname;
        let gpu = attachment.gpu;
        let over = words::duration(self.over.as_secs());
        let mut uses = facts.uses_on(attachment.environment, gpu);
        let percent = words::percent(average.measured);
        let span = words::duration((self.over + average.gaps).as_secs());
        let used = if span == over {
            format!("used at {percent} over the last {over}")
        } else {
            format!("used at {percent} in the {over} that were measured of the last {span}")
        };
        let found = if uses.next().is_some() {
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

/// Attachments in the view of a rule about idle devices for which the driver does not measure the use by the
/// environment's processes.
pub(in crate::plan) fn unmeasured<'a>(view: &'a View<'_, '_>) -> impl Iterator<Item = &'a AttachmentFacts> {
    let facts = view.facts;
    let attachments = view.attachments().map(|id| &facts.attachments[id]);
    attachments.filter(|it| is_unmeasured(facts, it))
}

/// Whether a device is in use, and the driver does not measure the utilization.
pub(in crate::plan) fn is_unmeasured(facts: &Facts<'_>, attachment: &AttachmentFacts) -> bool {
    let uses_unmeasured = || {
        let mut uses = facts.uses_on(attachment.environment, attachment.gpu);
        uses.any(|used| used.utilization_ratio.is_none())
    };
    attachment.utilization_ratio.is_none() && uses_unmeasured()
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
        processes.iter().any(|process| facts.uses[process.uses.clone()].iter().any(|used| used.gpu == gpu))
    };
    let wholes = snapshot.devices.iter().filter(|device| device.index.mig.is_none());
    let free = wholes.filter(|device| device.up && device.attachments.is_empty() && !is_used(device.index.gpu));
    free.count() as u64
}
