//! The environment that a shim is called in: its devices, and which processes are its own.

use std::collections::{BTreeMap, HashSet};
use std::env;

use genv_core::attribute::{Attributor, LiveEnvironment, live_environments};
use genv_core::model::MemoryAmount;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource};
use genv_core::state::{State, StateDirectory, StateSource, directory_path};

/// Where a shim is called. `GENV_ENVIRONMENT_ID` is believed: it decides only what its own user is shown.
#[derive(Debug)]
pub(crate) enum Place {
    /// In no environment.
    Outside,
    /// In an environment of which nothing can be told, for this reason.
    Unknown(String),
    /// In this one.
    Inside(Box<Environment>),
}

/// An environment of the state, as its own user may see it.
#[derive(Debug)]
pub(crate) struct Environment {
    eid: String,
    state: State,
    reader: ProcReader,
    /// Devices that it is attached to, with the memory that it may use of each, in bytes, where that is limited.
    pub(crate) devices: BTreeMap<u32, Option<u64>>,
}

/// Looks where this process is.
pub(crate) fn place() -> Place {
    let Some(eid) = env::var_os("GENV_ENVIRONMENT_ID").filter(|eid| !eid.is_empty()) else {
        return Place::Outside;
    };
    let eid = eid.to_string_lossy().into_owned();
    let path = directory_path(env::var_os("GENV_TMPDIR").as_deref());
    match StateDirectory::new(path).read() {
        Ok(state) => Environment::find(eid, state),
        Err(error) => Place::Unknown(error.message),
    }
}

impl Environment {
    fn find(eid: String, state: State) -> Place {
        if !state
            .environments
            .iter()
            .any(|environment| environment.eid == eid)
        {
            return Place::Unknown(format!(
                "environment {eid:?} does not exist any more: run 'genv activate' for a new one, or 'unset GENV_ENVIRONMENT_ID'"
            ));
        }
        let mut devices = BTreeMap::new();
        for device in &state.devices {
            let mut attachments = device.attachments.iter();
            if let Some(attachment) = attachments.find(|attachment| attachment.eid == eid) {
                devices.insert(device.index, attachment.gpu_memory.map(MemoryAmount::bytes));
            }
        }
        Place::Inside(Box::new(Self {
            eid,
            state,
            reader: ProcReader::new(),
            devices,
        }))
    }

    /// Indices of its devices.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.devices.keys().copied().collect()
    }

    /// Which of these processes are its own. Those of which the kernel tells nothing, as of other users', are not.
    pub(crate) fn own(&mut self, pids: &[u32]) -> HashSet<u32> {
        let members = self
            .state
            .environments
            .iter()
            .flat_map(|environment| &environment.pids);
        let table = self.reader.read(&ProcessRequest {
            processes: pids.to_vec(),
            members: members.copied().collect(),
        });
        let mut live = live_environments(&self.state, &table);
        // Whoever asks is in it, so that it lives even if its shells ended.
        if !live.iter().any(|live| live.environment.eid == self.eid) {
            let mut environments = self.state.environments.iter();
            let own = environments.find(|environment| environment.eid == self.eid);
            live.extend(own.map(|environment| LiveEnvironment {
                environment,
                members: Vec::new(),
            }));
        }
        let attributor = Attributor::new(&live, true, &table);
        let own = |pid: &u32| attributor.attribute(*pid).eid() == Some(&self.eid);
        pids.iter().copied().filter(own).collect()
    }
}
