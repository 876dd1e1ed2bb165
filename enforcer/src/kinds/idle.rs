//! Attached devices that their environment leaves idle: over a window, its processes on average use less of the device
//! than the rule requires. Time without a measurement counts as full use: an attachment is idle only if its average is
//! below the limit even so.

use std::borrow::Cow;
use std::time::Duration;

use genv_core::duration::format_duration;
use genv_core::model::{Device, DeviceIndex};
use genv_core::yaml::Place;

use super::finding::{Finding, SharedFact, ViolationFact};
use super::units::attachments_unit;
use super::{Check, EndedBy, IdleLimit, JudgedProcesses, Kind, KindDefinition, MaxDevicesPerUser, RuleKind};
use crate::config::RuleEntry;
use crate::plan::facts::{AttachmentFacts, AttachmentId, Facts, HostId};
use crate::plan::freshness::Freshness;
use crate::plan::history::{Average, IdleWindow, Sample, holding};
use crate::plan::left_behind::Busy;
use crate::plan::selector::View;
use crate::plan::{Subject, words};

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "idle",
    keys: &["below", "over", "only_if"],
    limit: None,
    measures_time: true,
    ended_by: EndedBy::TakingDevices,
    read: |keys| {
        let entry = keys.entry;
        if let Some(below) = &entry.below
            && below.value.0 == 0.0
        {
            return keys.refuse(below.referenced, "nothing is below 0: write 0.05 for 5 %");
        }
        let over = keys.over()?;
        let free = entry.only_if.as_ref().map(|only_if| &only_if.value.free_devices_below);
        if let Some(free) = free
            && free.value.0 == 0
        {
            let message = "fewer than 0 devices are never free: write 1 for none, or leave only_if out";
            return keys.refuse(free.referenced, message);
        }
        Ok(Idle {
            below: entry.below.as_ref().map_or(DEFAULT_BELOW, |below| below.value.0),
            over,
            only_if_free_devices_below: free.map(|free| u64::from(free.value.0)),
        }
        .into())
    },
};

/// Average utilization below which a device is idle, unless the file has one.
const DEFAULT_BELOW: f64 = 0.05;

/// Averages over fewer cycles show little.
const FEWEST_CYCLES_OF_A_WINDOW: u32 = 3;

/// A user who attaches an idle device again has this part of `over` to use it, but never so long that what came before is
/// forgotten.
const PATIENCE: u32 = 12;

#[derive(Debug, PartialEq)]
pub(crate) struct Idle {
    /// Average utilization by the environment's processes, 0–1, below which the device is idle.
    pub(crate) below: f64,
    /// The window of the average.
    pub(crate) over: Duration,
    /// Only if fewer devices than this are free on the host.
    pub(crate) only_if_free_devices_below: Option<u64>,
}

impl Kind for Idle {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let view = check.view;
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
            let Some(known) = check.past.host(host) else {
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

    fn summary(&self) -> String {
        let percent = (self.below * 1000.0).round() / 10.0;
        let over = format_duration(self.over);
        let free =
            self.only_if_free_devices_below.map(|free| format!(", while fewer than {free} of the host are free"));
        let free = free.unwrap_or_default();
        format!("attached devices that their environment used less than {percent} % over {over}{free}")
    }

    fn kept(&self) -> &'static str {
        "no device that it uses has been idle for the whole window"
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::InEnvironments
    }

    fn needs_history(&self) -> bool {
        true
    }

    fn idle_limit(&self) -> Option<IdleLimit> {
        Some(IdleLimit { below: self.below, over: self.over })
    }

    fn busy(&self, _for_duration: Duration) -> Busy {
        Busy::from(self.below, self.over)
    }

    fn counting_all(&self) -> Option<RuleKind> {
        Some(MaxDevicesPerUser::no_device().into())
    }

    fn counts_as(&self, other: &dyn Kind) -> bool {
        other.downcast::<Self>().is_some_and(|other| {
            let free = self.only_if_free_devices_below;
            self.below >= other.below
                && self.over <= other.over
                && (free.is_none() || free == other.only_if_free_devices_below)
        })
    }

    fn warning(&self, entry: &RuleEntry, interval: Duration) -> Option<(Place, String)> {
        let place = entry.over.as_ref().filter(|_| self.over < interval * FEWEST_CYCLES_OF_A_WINDOW)?.referenced;
        let (over, interval) = (format_duration(self.over), format_duration(interval));
        let message = format!("an average over {over} at an interval of {interval} says little: take a longer window");
        Some((place, message))
    }
}

impl Idle {
    fn finding(&self, view: &View<'_, '_>, id: AttachmentId, average: Average) -> Finding {
        let facts = view.facts;
        let attachment = &facts.attachments[id];
        let environment = facts.environments[attachment.environment].environment;
        let gpu = attachment.gpu;
        let held = self.only_if_free_devices_below.and_then(|below| {
            let free = free_devices(facts, attachment.host);
            (free.len() as u64 >= below).then(|| reason_to_keep(&free))
        });
        Finding {
            subject: Subject::EnvironmentDevice {
                hostname: facts.hosts[attachment.host].hostname.to_owned(),
                eid: environment.eid.clone(),
                index: DeviceIndex::gpu(gpu),
            },
            user: attachment.user,
            host: Some(attachment.host),
            fact: SharedFact::new(IdleDevice {
                gpu,
                has_process: facts.uses_on(attachment.environment, gpu).next().is_some(),
                measured_ratio: average.measured,
                gaps: average.gaps,
                limit: IdleLimit { below: self.below, over: self.over },
            }),
            excess: 1,
            units: vec![attachments_unit(facts, &[id])],
            held,
        }
    }
}

#[derive(Debug, PartialEq)]
struct IdleDevice {
    gpu: u32,
    /// Whether a process of the environment is on it.
    has_process: bool,
    measured_ratio: f64,
    /// Time without a measurement within the window.
    gaps: Duration,
    limit: IdleLimit,
}

impl ViolationFact for IdleDevice {
    fn found(&self) -> String {
        let over = words::duration(self.limit.over.as_secs());
        let span = words::duration((self.limit.over + self.gaps).as_secs());
        let percent = words::percent(self.measured_ratio);
        let window = match span == over {
            true => format!("over the last {over}"),
            false => format!("in the {over} that were measured of the last {span}"),
        };
        let process = if self.has_process { "" } else { " without a process" };
        format!("holds device {}{process}, used at {percent} {window}", self.gpu)
    }

    fn allowed(&self) -> String {
        let over = words::duration(self.limit.over.as_secs());
        format!("at least {} over {over}", words::percent(self.limit.below))
    }

    fn advice(&self) -> Cow<'static, str> {
        format!("use device {}, or give it back", self.gpu).into()
    }
}

/// Attachments in the view of a rule about idle devices for which the driver does not measure the use by the
/// environment's processes.
pub(crate) fn unmeasured<'a>(view: &'a View<'_, '_>) -> impl Iterator<Item = &'a AttachmentFacts> {
    let facts = view.facts;
    let unmeasured = facts.attachments.iter().filter(|attachment| is_unmeasured(facts, attachment));
    unmeasured.filter(|attachment| view.sees_attachment(attachment))
}

/// Whether a device is in use, and the driver does not measure the utilization.
pub(crate) fn is_unmeasured(facts: &Facts<'_>, attachment: &AttachmentFacts) -> bool {
    let uses_unmeasured = || {
        let mut uses = facts.uses_on(attachment.environment, attachment.gpu);
        uses.any(|used| used.utilization_ratio.is_none())
    };
    attachment.utilization_ratio.is_none() && uses_unmeasured()
}

/// How busy the environment's processes keep the device of an attachment now; absent if that is not wholly measured.
pub(crate) fn sample(facts: &Facts<'_>, attachment: &AttachmentFacts) -> Option<Sample> {
    Some(Sample {
        attached_seconds: attachment.attached_seconds,
        sampled_seconds: facts.hosts[attachment.host].freshness.read.gpu_seconds?,
        utilization_ratio: attachment.utilization_ratio?,
    })
}

/// The window of an attachment with what is measured now; absent where nothing is.
pub(crate) fn window_now(
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

/// Why an idle device is kept while these are free.
fn reason_to_keep(free: &[&Device]) -> String {
    let devices = words::count(free.len() as u64, "device");
    let are = if free.len() == 1 { "is" } else { "are" };
    let unknown = match free.iter().filter(|device| !device.up).count() {
        0 => String::new(),
        1 => ", counting 1 that does not answer".to_owned(),
        number => format!(", counting {number} that do not answer"),
    };
    format!("{devices} {are} free on its host{unknown}")
}

/// Devices that a waiting user could have. A device with unknown processes counts, and so does a device that does not
/// answer now, so that no device is taken without need.
fn free_devices<'a>(facts: &Facts<'a>, host: HostId) -> Vec<&'a Device> {
    let host = &facts.hosts[host];
    let Some(snapshot) = host.snapshot else {
        return Vec::new();
    };
    let is_used = |gpu: u32| {
        let processes = &facts.processes[host.processes.clone()];
        processes.iter().any(|process| facts.uses[process.uses.clone()].iter().any(|used| used.gpu == gpu))
    };
    let wholes = snapshot.devices.iter().filter(|device| device.index.mig.is_none());
    let usable = wholes.filter(|device| !device.mig_unsplit);
    usable.filter(|device| device.attachments.is_empty() && !is_used(device.index.gpu)).collect()
}

#[cfg(test)]
mod tests;
