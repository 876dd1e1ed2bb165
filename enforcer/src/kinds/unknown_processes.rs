//! Users of processes of which the environment is not known, and devices of which such processes of their holder hide
//! for too long whether they are idle.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use genv_core::duration::format_duration;
use genv_core::model::DeviceIndex;

use super::finding::{Finding, SharedFact, ViolationFact, user_subject};
use super::{Check, EndedBy, Kind, KindDefinition};
use crate::plan::facts::{HostId, UserId};
use crate::plan::freshness::Freshness;
use crate::plan::selector::View;
use crate::plan::{Subject, words};

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "unknown-processes",
    keys: &["over"],
    limit: None,
    measures_time: false,
    ended_by: EndedBy::Nothing {
        why: "where a process belongs is not known, and what is unknown is never acted upon: choose report or warn",
    },
    read: |keys| Ok(UnknownProcesses { over: keys.over()? }.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct UnknownProcesses {
    /// How long such processes of a user may hide whether a device that the user holds is idle.
    pub(crate) over: Duration,
}

impl Kind for UnknownProcesses {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let mut findings = of_processes(check.view);
        findings.extend(self.of_devices(check));
        findings
    }

    fn summary(&self) -> String {
        let over = format_duration(self.over);
        format!(
            "users with processes of which it is not known where they belong, and with devices that such processes hide \
             for {over}"
        )
    }

    fn kept(&self) -> &'static str {
        "it is known where its user's processes belong"
    }

    fn needs_history(&self) -> bool {
        true
    }

    fn looks_at_unknown(&self) -> bool {
        true
    }
}

fn finding(subject: Subject, user: UserId, host: HostId, fact: UnknownUse) -> Finding {
    Finding { subject, user, host: Some(host), fact: SharedFact::new(fact), excess: 1, units: Vec::new(), held: None }
}

#[derive(Debug, PartialEq)]
enum UnknownUse {
    Processes {
        /// The first of them.
        pids: Vec<u32>,
        number: u64,
        gpus: BTreeSet<u32>,
    },
    HiddenDevice {
        gpu: u32,
        hidden_seconds: u64,
        allowed_seconds: u64,
    },
}

impl ViolationFact for UnknownUse {
    fn found(&self) -> String {
        match self {
            Self::Processes { pids, number, gpus } => {
                let named: Vec<String> = pids.iter().map(u32::to_string).collect();
                let more = number - named.len() as u64;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let processes = words::count(*number, "process");
                let belong = if *number == 1 { "it belongs" } else { "they belong" };
                let (devices, named) = (words::devices(gpus.iter().copied()), named.join(", "));
                format!("has {processes} on {devices} of which it is not known where {belong} (pid {named}{more})")
            }
            Self::HiddenDevice { gpu, hidden_seconds, .. } => format!(
                "holds device {gpu}, and processes there of which it is not known where they belong hide for {} whether it is \
                 idle",
                words::duration(*hidden_seconds)
            ),
        }
    }

    fn allowed(&self) -> String {
        match self {
            Self::Processes { .. } => "processes of which it is known whether they are in an environment".to_owned(),
            Self::HiddenDevice { allowed_seconds, .. } => format!("less than {}", words::duration(*allowed_seconds)),
        }
    }

    fn advice(&self) -> Cow<'static, str> {
        "start processes on devices with their environment variables, as with 'genv exec --gpus 1 -- COMMAND', and end \
         those that cleared them"
            .into()
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
    let findings = by_user.into_iter().map(|((user, host), (mut pids, gpus))| {
        let number = pids.len() as u64;
        pids.truncate(MOST_NAMED);
        finding(user_subject(facts, user, Some(host)), user, host, UnknownUse::Processes { pids, number, gpus })
    });
    findings.collect()
}

impl UnknownProcesses {
    /// Devices that their holder's own processes hide.
    fn of_devices(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let (view, over) = (check.view, self.over);
        let facts = view.facts;
        let mut findings: Vec<Finding> = Vec::new();
        let hidden = facts.hidden_attachments.iter().map(|&id| &facts.attachments[id]);
        for attachment in hidden.filter(|attachment| view.sees_attachment(attachment)) {
            let host = &facts.hosts[attachment.host];
            let (name, gpu) = (facts.users[attachment.user].name, attachment.gpu);
            let gap = match host.freshness.gpu {
                Freshness::New => host.freshness.longest_gap_seconds,
                Freshness::Repeated | Freshness::Missing => 0.0,
            };
            let known = check.past.host(attachment.host);
            let seconds = known.map_or(0.0, |known| known.hidden_seconds(name, gpu, check.now_seconds, gap));
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
            let fact =
                UnknownUse::HiddenDevice { gpu, hidden_seconds: seconds as u64, allowed_seconds: over.as_secs() };
            findings.push(finding(subject, attachment.user, attachment.host, fact));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::config::Action;
    use crate::plan::tests::daemon::*;
    use crate::plan::{Plan, explain};

    #[test]
    fn unknown_processes_are_found_by_user_and_so_are_devices_that_they_hide_for_long() {
        let unknown = |lab: Lab, pid: u32, username: &str, gpu: u32| {
            let mut lab = lab.runs(pid, username, None, &[(gpu, GIB)]);
            lab.hide(pid, "environ_empty");
            lab
        };
        let kind = RuleKind::from(UnknownProcesses { over: seconds(600) });
        let lab = Lab::new(1, 2).holder("e1", "alice", &[(0, 3600.0)]).runs(9, "alice", Some("e1"), &[(0, GIB)]);
        let mut hidden = unknown(unknown(lab.clone(), 10, "alice", 0), 11, "bob", 0);
        hidden = unknown(unknown(hidden, 12, "bob", 1), 13, "root", 1);
        let mut daemon = Daemon::new(vec![rule(kind, Action::Warn)]);
        let found = |plan: &Plan| -> Vec<String> {
            let found = plan.violations.iter();
            found.map(|it| format!("{}: {}", it.username, it.found())).collect()
        };
        let by_user = [
            "alice: has 1 process on device 0 of which it is not known where it belongs (pid 10)",
            "bob: has 2 processes on devices 0 and 1 of which it is not known where they belong (pid 11, 12)",
        ];
        let plan = daemon.cycle(&hidden);
        assert_eq!(found(&plan), by_user);
        assert_eq!(actions(&plan), ["warn 1/1", "warn 1/1"]);
        let counted = [("alice", 1), ("bob", 2), ("root", 1)];
        let counted = counted.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(plan.unknown_processes_by_user["gpu01"], BTreeMap::from(counted));
        daemon.run(&hidden, 600);
        // bob hides nothing of alice's, and holds nothing himself.
        let for_long = "alice: holds device 0, and processes there of which it is not known where they belong hide for 10m whether it \
                        is idle";
        assert_eq!(found(&daemon.plan(&hidden))[1..], [by_user[1], for_long]);
        let hosts = hidden.at(daemon.now_seconds);
        let explanation = explain(&daemon.input(&hosts, &hidden), &daemon.history, "gpu01", 10);
        assert_eq!(explanation.unwrap().rules[0].violations.len(), 2);
        // A moment without the process, and the time begins anew; attaching anew changes nothing.
        let mut anew = hidden.clone();
        Arc::make_mut(&mut anew.hosts[0].devices[0].attachments)[0].attached_timestamp_seconds =
            Some(daemon.now_seconds);
        assert_eq!(daemon.plan(&anew).violations.len(), 3);
        daemon.run(&lab, 10);
        daemon.run(&hidden, 10);
        assert_eq!(found(&daemon.plan(&hidden)), by_user);
    }
}
