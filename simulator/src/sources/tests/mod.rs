//! The facts from the sources of a scenario.

mod demo;
mod gpus;
mod processes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use genv_core::attribute::{Attributor, live_environments};
use genv_core::gpu::GpuSample;
use genv_core::model::{Attribution, MemoryAmount};
use genv_core::proc::{Claim, Lineage, ProcessFacts, ProcessRead, ProcessRequest, ProcessTable};
use genv_core::state::{EnvironmentState, State, StateError};

use super::*;

/// Real processes and environments that a test makes up.
struct Machine;

impl ProcessSource for Machine {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let lineage = Lineage { start_time_ticks: 77, start_timestamp_seconds: 5.0, parent: 0, uid: Some(1000) };
        let facts = |pid: &u32| ProcessFacts {
            start_time_ticks: 77,
            uid: Some(1000),
            real_uid: Some(1000),
            comm: format!("real-{pid}"),
            container_id: None,
            container_owner: None,
            claim: Claim::Absent,
        };
        ProcessTable {
            processes: request.processes.iter().map(|pid| (*pid, ProcessRead::Present(facts(pid)))).collect(),
            lineage: request.members.iter().map(|pid| (*pid, lineage)).collect(),
            ..ProcessTable::default()
        }
    }

    fn username(&mut self, uid: u32) -> String {
        format!("real-{uid}")
    }
}

impl StateSource for Machine {
    fn read(&mut self) -> Result<State, StateError> {
        Err(StateError { message: "the real state".to_owned() })
    }
}

const EPOCH_SECONDS: u64 = 1_767_225_600;

fn at(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_SECONDS) + Duration::from_secs_f64(seconds)
}

/// Sources of the first host of a scenario, and the clock that they live by.
struct Stand {
    host: HostSources,
    now: Arc<Mutex<SystemTime>>,
    looks: Arc<AtomicUsize>,
}

impl Stand {
    fn of(engine: Engine) -> Self {
        let now = Arc::new(Mutex::new(SystemTime::UNIX_EPOCH));
        let looks = Arc::new(AtomicUsize::new(0));
        let clock: Clock = Arc::new({
            let (now, looks) = (Arc::clone(&now), Arc::clone(&looks));
            move || {
                looks.fetch_add(1, Ordering::SeqCst);
                *now.lock().unwrap()
            }
        });
        let real = || RealSources { processes: Box::new(Machine), state: Box::new(Machine) };
        let mut hosts = sources(&Arc::new(engine), &clock, Some("here"), real);
        let stand = Self { host: hosts.remove(0), now, looks };
        stand.set(0.0);
        stand
    }

    fn new(text: &str) -> Self {
        Self::of(Engine::from_text("lab.yaml", text).unwrap_or_else(|error| panic!("{error}")))
    }

    fn set(&self, seconds: f64) {
        *self.now.lock().unwrap() = at(seconds);
    }

    fn sample(&mut self, seconds: f64) -> GpuSample {
        self.set(seconds);
        self.host.gpu.sample().unwrap()
    }

    fn read(&mut self, pids: &[u32]) -> ProcessTable {
        self.host.processes.read(&ProcessRequest { processes: pids.to_vec(), members: Vec::new() })
    }
}

/// Attribution of every process that uses a device, as the collection does it.
fn attributions(stand: &mut Stand, seconds: f64) -> Vec<(u32, Attribution)> {
    let sample = stand.sample(seconds);
    let state = stand.host.state.read().unwrap();
    let mut pids: Vec<u32> =
        sample.devices.iter().flat_map(|device| device.processes.iter().flatten().map(|process| process.pid)).collect();
    pids.sort_unstable();
    pids.dedup();
    let table = stand.host.processes.read(&ProcessRequest {
        processes: pids.clone(),
        members: state.environments.iter().flat_map(EnvironmentState::pids).collect(),
    });
    let live = live_environments(&state, &table);
    assert_eq!(live.len(), state.environments.len(), "an environment without a living member");
    let attributor = Attributor::new(&state, &live, true, &table);
    pids.into_iter().map(|pid| (pid, attributor.attribute(pid))).collect()
}
