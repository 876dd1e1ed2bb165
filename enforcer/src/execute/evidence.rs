//! What is asked anew before anything is done.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::model::{Attribution, Snapshot};
use genv_core::proc::{ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{State, StateSource};

use crate::plan::{Outcome, ProcessTarget};

/// The whole GPUs that each process uses, by pid.
pub type GpuUse = BTreeMap<u32, BTreeSet<u32>>;

/// Asks who uses GPUs now; an error says why that is not known.
pub type AskGpuUse = Box<dyn FnMut() -> Result<GpuUse, String> + Send>;

/// Asks for the UUID of the GPU that is at an index now.
pub type AskGpuUuid = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// The sources of evidence.
pub struct Evidence {
    /// Who uses GPUs: the newest sample, or a new one.
    pub gpu_use: AskGpuUse,
    /// The GPU at an index.
    pub gpu_uuid: AskGpuUuid,
    /// Processes, for attribution; of a scenario, its own ones too. Who a process is, the kernel alone is asked.
    pub processes: Box<dyn ProcessSource>,
    /// Environments.
    pub state: Box<dyn StateSource>,
}

impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Evidence")
    }
}

/// What a snapshot tells of who uses GPUs.
#[must_use]
pub fn gpu_use(snapshot: &Snapshot) -> GpuUse {
    let processes = snapshot.processes.iter().map(|process| {
        let used = process.devices.iter().filter(|device| device.shows_use());
        (process.pid, used.map(|device| device.index.gpu).collect())
    });
    processes.collect()
}

/// A process as it is now.
pub(super) struct Witnessed {
    pub(super) facts: ProcessFacts,
    /// The user for whom it runs: that of its uid, or the owner of that as a subordinate one.
    pub(super) user: Option<u32>,
    pub(super) username: String,
    pub(super) attribution: Attribution,
    /// The GPUs that it uses, if any.
    pub(super) gpus: BTreeSet<u32>,
    /// With the lineages of it and of this program.
    pub(super) table: ProcessTable,
}

impl Evidence {
    /// Reads the state.
    pub(super) fn state(&mut self) -> Result<State, Outcome> {
        let read = self.state.read();
        read.map_err(|error| later(error.to_string()))
    }

    /// Asks everybody about a process. Who uses GPUs is asked first, then the state: only what is read after the process
    /// was seen shows that its environment does not exist.
    pub(super) fn of(&mut self, pid: u32) -> Result<Witnessed, Outcome> {
        let mut gpu_use = (self.gpu_use)().map_err(later)?;
        let state = self.state()?;
        let members = state.environments.iter().flat_map(|it| &it.pids).copied();
        let mut table = self.processes.read(&ProcessRequest { processes: vec![pid], members: members.collect() });
        for environment in &state.environments {
            let owner = self.processes.owner(environment.uid);
            table.owners.insert(environment.uid, owner);
        }
        let live = live_environments(&state, &table);
        let attribution = Attributor::new(&state, &live, true, &table).attribute(pid);
        // A new reader remembers nothing.
        let mut real =
            ProcReader::new().read(&ProcessRequest { processes: vec![pid, std::process::id()], members: Vec::new() });
        let facts = match real.processes.remove(&pid) {
            Some(ProcessRead::Present(facts)) => facts,
            Some(ProcessRead::Unreadable) => {
                return Err(later("it may not be read who it is".to_owned()));
            }
            Some(ProcessRead::Vanished) | None => return Err(ended()),
        };
        // Of a scenario, a simulated process may have the pid of a real one.
        let same = |read: &ProcessRead| matches!(read, ProcessRead::Present(told) if told.start_time_ticks == facts.start_time_ticks);
        if !table.processes.get(&pid).is_some_and(same) {
            return Err(later("it is not the process that uses the device".to_owned()));
        }
        let user = facts.uid.map(|uid| self.processes.owner(uid));
        if user != facts.real_uid.map(|uid| self.processes.owner(uid)) {
            return Err(later("its real and effective users differ now".to_owned()));
        }
        let username = table.container_username(&facts).or_else(|| user.map(|uid| self.processes.username(uid)));
        Ok(Witnessed {
            username: username.unwrap_or_default(),
            facts,
            user,
            attribution,
            gpus: gpu_use.remove(&pid).unwrap_or_default(),
            table: real,
        })
    }
}

impl Witnessed {
    /// Why this process is not what the plan took it for, if it is not.
    pub(super) fn is_still(&self, target: &ProcessTarget, gpus: Option<&BTreeSet<u32>>) -> Result<(), Outcome> {
        if self.user != Some(target.uid) {
            return Err(later("it runs as another user now".to_owned()));
        }
        match (&self.attribution, &target.eid) {
            (Attribution::Environment { eid }, Some(expected)) if eid == expected => {}
            (Attribution::Outside { .. }, None) => {}
            (Attribution::Unknown { reason }, _) => {
                return Err(later(format!("it is not known now which environment it is in: {reason}")));
            }
            (Attribution::Environment { .. } | Attribution::Outside { .. }, _) => {
                return Err(later("it is not in the same environment any more".to_owned()));
            }
        }
        let uses = match gpus {
            Some(gpus) => !self.gpus.is_disjoint(gpus),
            None => !self.gpus.is_empty(),
        };
        if !uses {
            return Err(later("it does not use the device any more".to_owned()));
        }
        Ok(())
    }
}

/// Not now, perhaps in the next cycle.
pub(super) fn later(reason: String) -> Outcome {
    Outcome::Refused { reason, again: true }
}

/// Not now, and not later.
pub(super) fn never(reason: &str) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again: false }
}

/// It is not there any more.
pub(super) fn ended() -> Outcome {
    never("it ended by itself")
}
