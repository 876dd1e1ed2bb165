//! Processes of a scenario.

use genv_core::proc::{Lineage, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource, ProcessTable};

use super::Stage;
use crate::definition::{Facts, Readable};
use crate::view::{HostAt, ProcessAt};

/// Processes of a scenario, and the real ones that it names.
pub(super) struct SimulatedProcesses {
    stage: Stage,
    real: Box<dyn ProcessSource>,
}

/// Simulated machines were booted so long before their epoch, and count time since then in hundredths of seconds.
const UPTIME_AT_EPOCH_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

fn lineage(host: HostAt<'_>, process: ProcessAt<'_>, facts: &Facts) -> Lineage {
    let start_timestamp_seconds = process.started_timestamp_seconds();
    let epoch = host.timestamp_seconds() - host.seconds();
    let ticks = (start_timestamp_seconds - epoch + UPTIME_AT_EPOCH_SECONDS) * 100.0;
    Lineage {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is made positive")]
        start_time_ticks: ticks.round().max(1.0) as u64,
        start_timestamp_seconds,
        parent: facts.parent,
        uid: Some(facts.uid),
    }
}

/// The first process of a simulated machine, from which all descend.
fn first_process(host: HostAt<'_>) -> Lineage {
    let epoch = host.timestamp_seconds() - host.seconds();
    Lineage { start_time_ticks: 1, start_timestamp_seconds: epoch - UPTIME_AT_EPOCH_SECONDS, parent: 0, uid: Some(0) }
}

impl SimulatedProcesses {
    pub(super) fn new(stage: Stage, real: Box<dyn ProcessSource>) -> Self {
        Self { stage, real }
    }
}

impl ProcessSource for SimulatedProcesses {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let scenario = self.stage.scenario();
        let Ok((host, _)) = self.stage.now(&scenario) else {
            return self.real.read(request);
        };
        let simulated = |pid: &u32| host.host().process(*pid).is_some_and(|p| p.facts.is_some());
        let (mine, processes) = request.processes.iter().partition(|pid| simulated(pid));
        let (my_members, members) = request.members.iter().partition(|pid| simulated(pid));
        let mut table = self.real.read(&ProcessRequest { processes, members });
        if host.environments().is_some() {
            table.pid_namespace = None;
        }
        let mine: Vec<u32> = mine;
        for pid in mine {
            let read = read_process(host, pid);
            if matches!(read, ProcessRead::Present(_)) {
                read_ancestors(host, pid, &mut table);
            }
            table.processes.insert(pid, read);
        }
        let my_members: Vec<u32> = my_members;
        for pid in my_members {
            read_ancestor(host, pid, &mut table);
        }
        table
    }

    fn owner(&mut self, uid: u32) -> u32 {
        self.real.owner(uid)
    }

    fn username(&mut self, uid: u32) -> String {
        match self.stage.engine.scenario().users.get(&uid) {
            Some(name) => name.clone(),
            None => self.real.username(uid),
        }
    }
}

fn read_process(host: HostAt<'_>, pid: u32) -> ProcessRead {
    let Some(process) = host.process(pid) else {
        return ProcessRead::Vanished;
    };
    let Some(facts) = &process.process.facts else {
        return ProcessRead::Vanished;
    };
    match facts.readable {
        Readable::Vanished => ProcessRead::Vanished,
        Readable::No => ProcessRead::Unreadable,
        Readable::Yes => ProcessRead::Present(ProcessFacts {
            start_time_ticks: lineage(host, process, facts).start_time_ticks,
            uid: Some(facts.uid),
            real_uid: Some(facts.real_uid),
            comm: facts.comm.clone(),
            container_id: facts.container_id.clone(),
            container_owner: None,
            claim: facts.claim.clone(),
        }),
    }
}

fn read_ancestors(host: HostAt<'_>, pid: u32, table: &mut ProcessTable) {
    let mut current = pid;
    while !table.lineage.contains_key(&current) {
        match read_ancestor(host, current, table) {
            Some(parent) if parent != 0 => current = parent,
            _ => return,
        }
    }
}

/// Adds one process if it exists, and returns its parent.
fn read_ancestor(host: HostAt<'_>, pid: u32, table: &mut ProcessTable) -> Option<u32> {
    let Some(process) = host.process(pid) else {
        if pid == 1 {
            table.lineage.insert(pid, first_process(host));
        }
        return None;
    };
    let facts = process.process.facts.as_ref()?;
    match facts.readable {
        Readable::Vanished => None,
        Readable::No => {
            table.hidden.insert(pid);
            None
        }
        Readable::Yes => {
            table.lineage.insert(pid, lineage(host, process, facts));
            Some(facts.parent)
        }
    }
}
