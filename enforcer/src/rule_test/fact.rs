//! What happened, or is to happen, as keys and texts.

use std::fmt;

use genv_core::model::{Attribution, HostSnapshot, Process};

use crate::plan::words;
use crate::plan::{Step, StepKind, Subject, Target, Violation};

/// Keys with their values, in the order in which people read them. A key is there once for each value that is right, as for
/// the devices of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fact(Vec<(&'static str, String)>);

impl Fact {
    #[must_use]
    pub(super) fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.0.push((key, value.to_string()));
        self
    }

    #[must_use]
    pub(super) fn with_some(self, key: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Whether this says all that `expected` does.
    pub(super) fn is(&self, expected: &Self) -> bool {
        expected.0.iter().all(|pair| self.0.contains(pair))
    }
}

/// As it would be written in a file of tests: of a key that several values are right for, the first.
impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (position, (key, value)) in self.0.iter().enumerate() {
            if self.0[..position].iter().any(|(before, _)| before == key) {
                continue;
            }
            let comma = if position > 0 { ", " } else { "" };
            write!(f, "{comma}{key}: {}", value.escape_debug())?;
        }
        f.write_str("}")
    }
}

/// A process as snapshots have it.
fn process<'a>(hosts: &'a [HostSnapshot], hostname: &str, pid: u32) -> Option<&'a Process> {
    let host = hosts.iter().find(|host| host.hostname == hostname)?;
    let mut processes = host.snapshot.as_ref()?.processes.iter().map(|it| &**it);
    processes.find(|process| process.pid == pid)
}

/// The environment of a process, its devices, and its pid.
fn with_process(fact: Fact, hosts: &[HostSnapshot], hostname: &str, pid: u32) -> Fact {
    let process = process(hosts, hostname, pid);
    let eid = process.and_then(|process| match &process.attribution {
        Attribution::Environment { eid } => Some(eid),
        _ => None,
    });
    let devices = process.iter().flat_map(|process| &process.devices);
    let fact = fact.with_some("eid", eid);
    let fact = devices.fold(fact, |fact, device| fact.with("device", device.index));
    fact.with("pid", pid)
}

pub(super) fn violation(violation: &Violation, hosts: &[HostSnapshot]) -> Fact {
    let fact = Fact::default()
        .with("stage", words::stage(&violation.stage))
        .with("rule", &violation.key.rule)
        .with("user", &violation.username)
        .with_some("host", violation.hostname.as_ref());
    match &violation.key.subject {
        Subject::Process { hostname, pid, .. } => with_process(fact, hosts, hostname, *pid),
        Subject::Environment { eid, .. } => fact.with("eid", eid),
        Subject::EnvironmentDevice { eid, index, .. } => fact.with("eid", eid).with("device", index),
        Subject::UserDevice { index, .. } => fact.with("device", index),
        Subject::User { .. } => fact,
    }
}

/// What a step tells or does; nothing for a step that only reports. `violation` is what it is for.
pub(super) enum Happened {
    Warning(Fact),
    Action(Fact),
}

pub(super) fn happened(step: &Step, violation: Option<&Violation>, hosts: &[HostSnapshot]) -> Option<Happened> {
    if let StepKind::Warn { number, .. } = &step.kind {
        let fact = Fact::default()
            .with("rule", &step.key.rule)
            .with_some("user", violation.map(|violation| &violation.username))
            .with_some("host", violation.and_then(|violation| violation.hostname.as_ref()))
            .with("number", number);
        return Some(Happened::Warning(fact));
    }
    let action = words::action(&step.kind)?;
    let fact = Fact::default().with("action", action.word()).with("rule", &step.key.rule);
    Some(Happened::Action(match words::step_target(&step.kind)? {
        Target::Attachment(target) => {
            let fact = fact
                .with("user", &target.username)
                .with("host", &target.hostname)
                .with("eid", &target.eid)
                .with("device", target.gpu);
            // Those that end with it.
            let pids = target.processes.iter().map(|process| process.pid);
            pids.fold(fact, |fact, pid| fact.with("pid", pid))
        }
        Target::Process(target) => {
            let fact = fact.with("user", &target.username).with("host", &target.hostname);
            with_process(fact, hosts, &target.hostname, target.pid)
        }
    }))
}
