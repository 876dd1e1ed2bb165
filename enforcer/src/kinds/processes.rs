//! The kinds that judge each process by itself.

use super::finding::{Finding, SharedFact, ViolationFact};
use super::units::process_unit;
use crate::plan::Subject;
use crate::plan::facts::ProcessId;
use crate::plan::selector::View;

/// Whether a rule sees a process use a device, and the process can be named and its user is known.
pub(super) fn is_seen(view: &View<'_, '_>, id: ProcessId) -> bool {
    let process = &view.facts.processes[id];
    let mut uses = view.facts.uses[process.uses.clone()].iter();
    // A process that no rule may end breaks no rule: its violation could not be ended.
    process.within_reach
        && process.user.is_some_and(|user| view.sees_user(user))
        && view.sees_host(process.host)
        && uses.any(|used| used.shows_use && view.sees_gpu(used.gpu))
}

/// The finding that this process breaks the rule.
pub(super) fn process_finding(view: &View<'_, '_>, id: ProcessId, fact: impl ViolationFact) -> Finding {
    let process = &view.facts.processes[id];
    Finding {
        subject: Subject::Process {
            hostname: view.facts.hosts[process.host].hostname.to_owned(),
            pid: process.process.pid,
            start_time_ticks: process.process.start_time_ticks.unwrap_or_default(),
        },
        user: process.user.unwrap_or_default(),
        host: Some(process.host),
        fact: SharedFact::new(fact),
        excess: 1,
        units: vec![process_unit(view.facts, id, 1)],
        held: None,
    }
}
