//! Processes on devices that their environment does not hold. Contexts that a detach left behind, and list entries
//! without use, do not count.

use super::non_env_processes::{is_seen, subject};
use super::{Finding, process_unit};
use crate::plan::facts::ProcessId;
use crate::plan::left_behind::{Busy, Contexts};
use crate::plan::selector::View;
use crate::plan::words;

pub(super) fn findings(view: &View<'_, '_>, contexts: &Contexts<'_, '_>) -> Vec<Finding> {
    let facts = view.facts;
    let busy = Busy::of(view.rule);
    let elsewhere = |id: ProcessId| -> Vec<u32> {
        let process = &facts.processes[id];
        let Some(environment) = process.environment else {
            return Vec::new();
        };
        if facts.environments[environment].moved {
            return Vec::new();
        }
        let attached = facts.attachments_of(environment);
        let uses = facts.uses[process.uses.clone()].iter();
        uses.filter(|used| used.shows_use && view.sees_gpu(used.gpu))
            .filter(|used| attached.iter().all(|it| it.gpu != used.gpu))
            .filter(|used| contexts.left_behind(used, busy).is_none())
            .map(|used| used.gpu)
            .collect()
    };
    (0..facts.processes.len())
        .filter(|&id| is_seen(view, id))
        .map(|id| (id, elsewhere(id)))
        .filter(|(_, gpus)| !gpus.is_empty())
        .map(|(id, gpus)| {
            let process = &facts.processes[id];
            let attached = process.environment.map_or(&[][..], |id| facts.attachments_of(id));
            let what = words::process(process.process.pid, process.process.comm.as_deref());
            let commands: Vec<String> = gpus.iter().map(|gpu| format!("genv attach --index {gpu}")).collect();
            Finding {
                subject: subject(view, id),
                user: process.user.unwrap_or_default(),
                host: Some(process.host),
                found: format!("{what} uses {}, which its environment is not attached to", words::devices(gpus)),
                allowed: words::devices(attached.iter().map(|attachment| attachment.gpu)),
                advice: format!("attach what it uses ('{}'), or end it", commands.join("; ")),
                excess: 1,
                units: vec![process_unit(facts, id, 1)],
                held: None,
            }
        })
        .collect()
}
