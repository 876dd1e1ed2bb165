//! The facts that are read again before an action.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::model::{Attribution, Snapshot};
use genv_core::proc::{ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{EnvironmentState, State, StateSource};

use crate::plan::{Outcome, ProcessTarget};

/// The whole GPUs that each process uses, by pid.
pub type GpuUse = BTreeMap<u32, BTreeSet<u32>>;

/// Reads which processes use GPUs now; the error is the reason why this is not known.
pub type ReadGpuUse = Box<dyn FnMut() -> Result<GpuUse, String> + Send>;

/// Reads the UUID of the GPU at an index.
pub type ReadGpuUuid = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// The sources of evidence.
pub struct EvidenceSources {
    /// The use of GPUs: the newest sample, or a new one.
    pub gpu_use: ReadGpuUse,
    /// The GPU at an index.
    pub gpu_uuid: ReadGpuUuid,
    /// Processes for attribution, with the processes of a scenario. The identity of a process comes only from the kernel.
    pub processes: Box<dyn ProcessSource>,
    /// Environments.
    pub state: Box<dyn StateSource>,
}

impl std::fmt::Debug for EvidenceSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EvidenceSources")
    }
}

/// The use of GPUs in a snapshot.
pub fn gpu_use(snapshot: &Snapshot) -> GpuUse {
    let processes = snapshot.processes.iter().map(|process| {
        let used = process.devices.iter().filter(|device| device.shows_use());
        (process.pid, used.map(|device| device.index.gpu).collect())
    });
    processes.collect()
}

/// A process as it is now.
pub(super) struct CurrentProcess {
    pub(super) facts: ProcessFacts,
    /// The user of its uid, or the owner of a subordinate uid.
    pub(super) user: Option<u32>,
    pub(super) username: String,
    pub(super) attribution: Attribution,
    /// The GPUs that it uses, if any.
    pub(super) gpus: BTreeSet<u32>,
    /// The lineages of the process and of this program.
    pub(super) table: ProcessTable,
}

impl EvidenceSources {
    /// Reads the state.
    pub(super) fn state(&mut self) -> Result<State, Outcome> {
        let read = self.state.read();
        read.map_err(|error| refuse_for_now(error.to_string()))
    }

    /// Reads all facts about a process. The use of GPUs comes first, then the state: only a state that is read after the process was
    /// seen shows that its environment does not exist.
    pub(super) fn of(&mut self, pid: u32) -> Result<CurrentProcess, Outcome> {
        let mut gpu_use = (self.gpu_use)().map_err(refuse_for_now)?;
        let state = self.state()?;
        let members = state.environments.iter().flat_map(EnvironmentState::pids);
        let mut table = self.processes.read(&ProcessRequest { processes: vec![pid], members: members.collect() });
        for environment in &state.environments {
            let owner = self.processes.owner(environment.uid);
            table.owners.insert(environment.uid, owner);
        }
        let live = live_environments(&state, &table);
        let attribution = Attributor::new(&state, &live, true, &table).attribute(pid);
        // A new reader has no cache.
        let mut real =
            ProcReader::new().read(&ProcessRequest { processes: vec![pid, std::process::id()], members: Vec::new() });
        let facts = match real.processes.remove(&pid) {
            Some(ProcessRead::Present(facts)) => facts,
            Some(ProcessRead::Unreadable) => {
                return Err(refuse_for_now("it may not be read who it is".to_owned()));
            }
            Some(ProcessRead::Vanished) | None => return Err(already_ended()),
        };
        // A simulated process of a scenario may have the pid of a real one.
        let same = |read: &ProcessRead| matches!(read, ProcessRead::Present(told) if told.start_time_ticks == facts.start_time_ticks);
        if !table.processes.get(&pid).is_some_and(same) {
            return Err(refuse_for_now("it is not the process that uses the device".to_owned()));
        }
        let user = facts.uid.map(|uid| self.processes.owner(uid));
        if user != facts.real_uid.map(|uid| self.processes.owner(uid)) {
            return Err(refuse_for_now("its real and effective users differ now".to_owned()));
        }
        let username = table.container_username(&facts).or_else(|| user.map(|uid| self.processes.username(uid)));
        Ok(CurrentProcess {
            username: username.unwrap_or_default(),
            facts,
            user,
            attribution,
            gpus: gpu_use.remove(&pid).unwrap_or_default(),
            table: real,
        })
    }
}

impl CurrentProcess {
    /// Checks that the process is still the target of the plan.
    pub(super) fn is_still(&self, target: &ProcessTarget, gpus: Option<&BTreeSet<u32>>) -> Result<(), Outcome> {
        if self.user != Some(target.uid) {
            return Err(refuse_for_now("it runs as another user now".to_owned()));
        }
        match (&self.attribution, &target.eid) {
            (Attribution::Environment { eid }, Some(expected)) if eid == expected => {}
            (Attribution::Outside { .. }, None) => {}
            (Attribution::Unknown { reason }, _) => {
                return Err(refuse_for_now(format!("it is not known now which environment it is in: {reason}")));
            }
            (Attribution::Environment { .. } | Attribution::Outside { .. }, _) => {
                return Err(refuse_for_now("it is not in the same environment any more".to_owned()));
            }
        }
        let uses = match gpus {
            Some(gpus) => !self.gpus.is_disjoint(gpus),
            None => !self.gpus.is_empty(),
        };
        if !uses {
            return Err(refuse_for_now("it does not use the device any more".to_owned()));
        }
        Ok(())
    }
}

/// A refusal for now: the next cycle tries again.
pub(super) fn refuse_for_now(reason: String) -> Outcome {
    Outcome::Refused { reason, again: true }
}

/// A final refusal.
pub(super) fn refuse_for_good(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: false }
}

/// The process has ended.
pub(super) fn already_ended() -> Outcome {
    refuse_for_good("it ended by itself")
}
