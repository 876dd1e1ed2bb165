//! The parts of the machine that the store reads: processes, kernels, contexts and the time.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::proc::{ProcessRequest, ProcessSource, ProcessTable};
use crate::state::change::EditableState;
use crate::state::fates::{self, Contexts, Fate, Fates};
use crate::state::kernels::Kernels;
use crate::state::waiting::FindWaiting;
use crate::state::{EnvironmentState, ProcessId, State, liveness, strangers};

/// The sources of the store.
pub(super) struct Machine {
    pub(super) processes: Box<dyn ProcessSource>,
    pub(super) kernels: Kernels,
    pub(super) contexts: Box<dyn FnMut() -> Option<Contexts> + Send>,
    pub(super) clock: Box<dyn Fn() -> SystemTime + Send>,
    pub(super) linger_seconds: f64,
    /// Finds a process that has proof of its wait.
    pub(super) find_waiting: FindWaiting,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}
impl Machine {
    pub(super) fn fates(&mut self, state: &State, table: &ProcessTable, directory: &Path) -> Fates {
        let ended = liveness::without_shells(state, table);
        let mut evidence = fates::FateEvidence {
            directory,
            now_seconds: self.now_seconds(),
            processes: self.processes.as_mut(),
            contexts: self.contexts.as_mut(),
            linger_seconds: self.linger_seconds,
        };
        fates::fates(&ended, &mut evidence)
    }

    /// Whether one of these fates is to be recorded. An ended environment is removed soon: a later process of its user
    /// would hide from other users that it has ended.
    pub(super) fn is_news(&self, state: &State, fates: &Fates) -> bool {
        let now_seconds = self.now_seconds();
        fates.iter().any(|(eid, fate)| {
            let mut listed = state.environments.iter();
            let members = listed.find(|it| it.eid == *eid);
            let (jobs, at_work) = match fate {
                Fate::Continues { jobs, at_work } => (jobs, at_work),
                Fate::Ends => return members.is_some(),
                Fate::Unknown => return false,
            };
            let is_recorded = |it: &ProcessId| members.is_some_and(|listed| listed.member(it.pid).is_some());
            let noted = members.and_then(|listed| listed.context_seconds);
            !jobs.iter().all(is_recorded) || *at_work && fates::is_news(noted, now_seconds, self.linger_seconds)
        })
    }

    pub(super) fn find_strangers(&mut self, state: &mut State, table: &ProcessTable, directory: &Path) {
        strangers::mark(&mut state.environments, table, self.processes.as_mut(), directory);
    }

    pub(super) fn now_seconds(&self) -> f64 {
        let now = (self.clock)().duration_since(UNIX_EPOCH);
        now.unwrap_or_default().as_secs_f64()
    }

    pub(super) fn members(&mut self, state: &State, others: &[u32]) -> ProcessTable {
        let members = state.environments.iter().flat_map(EnvironmentState::pids);
        self.look(members.chain(others.iter().copied()).collect())
    }

    /// The table with the new members and waiting processes.
    pub(super) fn newcomers(&mut self, editable: &EditableState, mut table: ProcessTable) -> ProcessTable {
        let members = editable.environments.iter().flat_map(EnvironmentState::pids);
        let newcomers =
            members.chain(editable.queue.iter().map(|it| it.pid)).filter(|pid| !table.lineage.contains_key(pid));
        let found = self.look(newcomers.collect());
        table.lineage.extend(found.lineage);
        table.hidden.extend(found.hidden);
        table.pid_namespace = table.pid_namespace.or(found.pid_namespace);
        table
    }

    fn look(&mut self, members: Vec<u32>) -> ProcessTable {
        if members.is_empty() {
            return ProcessTable::default();
        }
        self.processes.read(&ProcessRequest { processes: Vec::new(), members })
    }
}
