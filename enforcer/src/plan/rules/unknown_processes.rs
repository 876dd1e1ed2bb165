//! Users of processes of which it is not known where they belong, and devices of which such processes of their holder hide
//! for too long whether they are idle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use genv_core::model::DeviceIndex;

use super::{Finding, user_subject};
use crate::plan::facts::{HostId, UserId};
use crate::plan::freshness::Freshness;
use crate::plan::history::Past;
use crate::plan::selector::View;
use crate::plan::{Subject, words};

const ADVICE: &str = "start processes on devices with their environment variables, as with 'genv exec --gpus 1 -- COMMAND', and \
     end those that cleared them";

pub(super) fn findings(view: &View<'_, '_>, over: Duration, past: &Past<'_>, now_seconds: f64) -> Vec<Finding> {
    let mut findings = of_processes(view);
    findings.extend(of_devices(view, over, past, now_seconds));
    findings
}

fn finding(subject: Subject, user: UserId, host: HostId) -> Finding {
    Finding {
        subject,
        user,
        host: Some(host),
        found: String::new(),
        allowed: String::new(),
        advice: ADVICE.to_owned(),
        excess: 1,
        units: Vec::new(),
        held: None,
    }
}

/// Users with such processes, by host.
fn of_processes(view: &View<'_, '_>) -> Vec<Finding> {
    const MOST_NAMED: usize = 4;
    let facts = view.facts;
    let mut by_user: BTreeMap<(UserId, HostId), (Vec<u32>, BTreeSet<u32>)> = BTreeMap::new();
    for process in &facts.processes {
        let Some(user) = process.unknown_owner else {
            continue;
        };
        if !view.sees_user(user) || !view.sees_host(process.host) {
            continue;
        }
        let uses = facts.uses[process.uses.clone()].iter();
        let mut gpus = uses.map(|used| used.gpu).filter(|gpu| view.sees_gpu(*gpu));
        let Some(first) = gpus.next() else { continue };
        let (pids, all_gpus) = by_user.entry((user, process.host)).or_default();
        pids.push(process.process.pid);
        all_gpus.insert(first);
        all_gpus.extend(gpus);
    }
    let findings = by_user.into_iter().map(|((user, host), (pids, gpus))| {
        let named: Vec<String> = pids.iter().take(MOST_NAMED).map(u32::to_string).collect();
        let more = pids.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let processes = words::count(pids.len() as u64, "process");
        let belong = if pids.len() == 1 { "it belongs" } else { "they belong" };
        let (devices, named) = (words::devices(gpus), named.join(", "));
        let subject = user_subject(facts, user, Some(host));
        Finding {
            found: format!("has {processes} on {devices} of which it is not known where {belong} (pid {named}{more})"),
            allowed: "processes of which it is known whether they are in an environment".to_owned(),
            ..finding(subject, user, host)
        }
    });
    findings.collect()
}

/// Devices that their holder's own processes hide.
fn of_devices(view: &View<'_, '_>, over: Duration, past: &Past<'_>, now_seconds: f64) -> Vec<Finding> {
    let facts = view.facts;
    let mut findings: Vec<Finding> = Vec::new();
    for id in view.attachments() {
        let attachment = &facts.attachments[id];
        let host = &facts.hosts[attachment.host];
        let (name, gpu) = (facts.users[attachment.user].name, attachment.gpu);
        if !host.is_hidden_by(name, gpu) {
            continue;
        }
        let gap = match host.freshness.gpu {
            Freshness::New => host.freshness.longest_gap_seconds,
            Freshness::Repeated | Freshness::Missing => 0.0,
        };
        let known = past.host(attachment.host);
        let seconds = known.map_or(0.0, |known| known.hidden_seconds(name, gpu, now_seconds, gap));
        let subject = Subject::UserDevice {
            username: name.to_owned(),
            hostname: host.hostname.to_owned(),
            index: DeviceIndex::gpu(gpu),
        };
        // Several environments of a user may hold it.
        let is_known = findings.last().is_some_and(|last| last.subject == subject);
        if seconds < over.as_secs_f64() || is_known {
            continue;
        }
        findings.push(Finding {
            found: format!(
                "holds device {gpu}, and processes there of which it is not known where they belong hide for {} whether it is \
                 idle",
                words::duration(seconds as u64)
            ),
            allowed: format!("less than {}", words::duration(over.as_secs())),
            ..finding(subject, attachment.user, attachment.host)
        });
    }
    findings
}
