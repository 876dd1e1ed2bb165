//! Processes outside any environment.

use super::{Finding, process_unit};
use crate::plan::Subject;
use crate::plan::facts::ProcessId;
use crate::plan::selector::View;
use crate::plan::words;

pub(super) fn findings(view: &View<'_, '_>) -> Vec<Finding> {
    processes(view, |id| view.facts.processes[id].environment.is_none())
        .map(|id| {
            let facts = view.facts;
            let process = &facts.processes[id];
            let gpus = facts.uses[process.uses.clone()].iter().map(|used| used.gpu);
            let (what, devices) = (words::process(process.process.pid, process.process.comm.as_deref()), words::devices(gpus));
            Finding {
                subject: subject(view, id),
                user: process.user.unwrap_or_default(),
                host: Some(process.host),
                found: format!("{what} uses {devices} outside any environment"),
                allowed: "processes in an environment".to_owned(),
                advice: "start it in an environment, as with 'genv exec --gpus 1 -- COMMAND', and end this one".to_owned(),
                excess: 1,
                units: vec![process_unit(facts, id, 1)],
                held: None,
            }
        })
        .collect()
}

/// Processes that a rule sees and can name, and of which the user is known.
pub(super) fn processes(
    view: &View<'_, '_>,
    filter: impl Fn(ProcessId) -> bool,
) -> impl Iterator<Item = ProcessId> {
    let is_seen = |id: ProcessId| {
        let process = &view.facts.processes[id];
        let mut uses = view.facts.uses[process.uses.clone()].iter();
        // What no rule may end breaks none: nobody could do anything about it.
        process.within_reach
            && process.user.is_some_and(|user| view.sees_user(user))
            && view.sees_host(process.host)
            && uses.any(|used| view.sees_gpu(used.gpu))
    };
    (0..view.facts.processes.len()).filter(move |&id| is_seen(id) && filter(id))
}

pub(super) fn subject(view: &View<'_, '_>, id: ProcessId) -> Subject {
    let process = &view.facts.processes[id];
    Subject::Process {
        hostname: view.facts.hosts[process.host].hostname.to_owned(),
        pid: process.process.pid,
        start_time_ticks: process.process.start_time_ticks.unwrap_or_default(),
    }
}
