//! Processes outside any environment.

use super::{Finding, process_unit};
use crate::plan::Subject;
use crate::plan::facts::ProcessId;
use crate::plan::selector::View;
use crate::plan::words;

pub(super) fn findings(view: &View<'_, '_>) -> Vec<Finding> {
    let processes = 0..view.facts.processes.len();
    processes
        .filter(|&id| view.facts.processes[id].environment.is_none() && is_seen(view, id))
        .map(|id| {
            let facts = view.facts;
            let process = &facts.processes[id];
            let uses = facts.uses[process.uses.clone()].iter();
            let gpus = uses.filter(|used| used.shows_use).map(|used| used.gpu);
            let (what, devices) =
                (words::process(process.process.pid, process.process.comm.as_deref()), words::devices(gpus));
            Finding {
                subject: subject(view, id),
                user: process.user.unwrap_or_default(),
                host: Some(process.host),
                found: format!("{what} uses {devices} outside any environment"),
                allowed: "processes in an environment".to_owned(),
                advice: "start it in an environment, as with 'genv exec --gpus 1 -- COMMAND', and end this one"
                    .to_owned(),
                excess: 1,
                units: vec![process_unit(facts, id, 1)],
                held: None,
            }
        })
        .collect()
}

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

pub(super) fn subject(view: &View<'_, '_>, id: ProcessId) -> Subject {
    let process = &view.facts.processes[id];
    Subject::Process {
        hostname: view.facts.hosts[process.host].hostname.to_owned(),
        pid: process.process.pid,
        start_time_ticks: process.process.start_time_ticks.unwrap_or_default(),
    }
}
