//! The environment that calls a shim: its devices and processes.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use genv_core::attribute::{Attributor, LiveEnvironment, live_environments};
use genv_core::duration::parse_variable;
use genv_core::model::MemoryAmount;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource};
use genv_core::state::{EnvironmentState, State, StateDirectory, StateSource, directory_path};

use crate::outcome;

/// How long the kernel may take to tell of processes. Reading one takes a lock of its memory, which a process that
/// hangs in the driver may hold for good; and it is when things hang that people look.
const PATIENCE: Duration = Duration::from_secs(1);

/// The caller of a shim. `GENV_ENVIRONMENT_ID` is trusted, since it only affects the output for its own user.
#[derive(Debug)]
pub(crate) enum CallContext {
    /// Outside of environments.
    Outside,
    /// In an environment whose state is unknown, for this reason.
    Unknown(String),
    /// In this environment.
    Inside(Box<ShimEnvironment>),
}

/// An environment of the state, as its own user may see it.
#[derive(Debug)]
pub(crate) struct ShimEnvironment {
    eid: String,
    state: Arc<State>,
    /// Whether the kernel did not tell of processes in time.
    hangs: bool,
    /// Devices that it is attached to, with the memory that it may use of each, in bytes, where that is limited.
    pub(crate) devices: BTreeMap<u32, Option<u64>>,
}

/// Looks where this process is.
pub(crate) fn place() -> CallContext {
    let Some(eid) = env::var_os("GENV_ENVIRONMENT_ID").filter(|eid| !eid.is_empty()) else {
        return CallContext::Outside;
    };
    let eid = eid.to_string_lossy().into_owned();
    let path = directory_path(env::var_os("GENV_TMPDIR").as_deref());
    match StateDirectory::new(path).read() {
        Ok(state) => ShimEnvironment::find(eid, state),
        Err(error) => CallContext::Unknown(error.message),
    }
}

impl ShimEnvironment {
    fn find(eid: String, state: State) -> CallContext {
        if !state.environments.iter().any(|environment| environment.eid == eid) {
            return CallContext::Unknown(format!(
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
        CallContext::Inside(Box::new(Self { eid, state: Arc::new(state), hangs: false, devices }))
    }

    /// Indices of its devices.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.devices.keys().copied().collect()
    }

    /// Which of these processes are its own; nothing if the kernel does not tell in time, which is said once.
    pub(crate) fn own(&mut self, pids: &[u32]) -> Option<HashSet<u32>> {
        if self.hangs {
            return None;
        }
        let (eid, state, pids) = (self.eid.clone(), Arc::clone(&self.state), pids.to_vec());
        let own = within(patience(), move || own(&eid, &state, &pids));
        self.hangs = own.is_none();
        if self.hangs {
            outcome::say(
                "the shim shows everybody's processes: the kernel does not tell whose they are, as when one hangs in the driver: try again later",
            );
        }
        own
    }
}

/// How long to wait for the kernel: [`PATIENCE`], or `GENV_DRIVER_TIMEOUT` if that is longer. A value that is not a duration
/// counts as unset, with one note.
fn patience() -> Duration {
    static VALUE: OnceLock<Duration> = OnceLock::new();
    *VALUE.get_or_init(|| {
        let set = parse_variable(env::var_os("GENV_DRIVER_TIMEOUT").as_deref()).unwrap_or_else(|error| {
            outcome::say(&format!("GENV_DRIVER_TIMEOUT is ignored: {error}"));
            None
        });
        set.unwrap_or_default().max(PATIENCE)
    })
}

/// Which of these processes are an environment's. Those of which the kernel tells nothing, as of other users', are
/// not.
fn own(eid: &str, state: &State, pids: &[u32]) -> HashSet<u32> {
    let members = state.environments.iter().flat_map(EnvironmentState::pids);
    let table = ProcReader::new().read(&ProcessRequest { processes: pids.to_vec(), members: members.collect() });
    let mut live = live_environments(state, &table);
    // Whoever asks is in it, so that it lives even if its shells ended.
    if !live.iter().any(|live| live.environment.eid == eid) {
        let mut environments = state.environments.iter();
        let own = environments.find(|environment| environment.eid == eid);
        live.extend(own.map(LiveEnvironment::without_members));
    }
    let attributor = Attributor::new(state, &live, true, &table);
    let own = |pid: &u32| attributor.attribute(*pid).eid() == Some(eid);
    pids.iter().copied().filter(own).collect()
}

/// What some work comes to, unless it takes longer; then it goes on without anybody waiting for it.
fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_is_left_alone() {
        let (_held, never) = mpsc::channel::<()>();
        assert_eq!(within(Duration::ZERO, move || never.recv()), None);
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }
}
