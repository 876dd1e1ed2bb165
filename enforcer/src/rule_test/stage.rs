//! Hosts of a scenario on which actions have their effect: whoever is ended uses no device any more, and what is
//! detached is attached no more.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use genv_core::collect::Clock;
use genv_core::collect::HostSources;
use genv_core::gpu::{GpuError, GpuProcess, GpuSample, GpuSource};
use genv_core::model::DeviceMeasurements;
use genv_core::proc::{ProcessRead, ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{State, StateError, StateSource};
use genv_simulator::{Engine, RealSources, sources};

use crate::plan::{AttachmentTarget, StepKind};

/// The time of a test, and what was done to its hosts.
#[derive(Default)]
pub(super) struct Stage {
    /// Unix time in milliseconds.
    now_milliseconds: Arc<AtomicU64>,
    hosts: HashMap<String, Arc<Mutex<Gone>>>,
}

/// What is gone from one host, whatever the scenario says.
#[derive(Default)]
struct Gone {
    pids: BTreeSet<u32>,
    /// Environments with the GPU that was taken from them.
    attachments: BTreeSet<(String, u32)>,
}

impl Stage {
    pub(super) fn sources(&mut self, engine: &Arc<Engine>) -> Vec<HostSources> {
        let sources = sources(engine, &self.clock(), None, || RealSources {
            processes: Box::new(NoMachine),
            state: Box::new(NoMachine),
        });
        let wrap = |sources: HostSources| {
            let gone = Arc::clone(self.hosts.entry(sources.hostname.clone()).or_default());
            HostSources {
                hostname: sources.hostname,
                gpu: Box::new(Without(Arc::clone(&gone), sources.gpu)),
                processes: Box::new(Without(Arc::clone(&gone), sources.processes)),
                state: Box::new(Without(gone, sources.state)),
            }
        };
        sources.into_iter().map(wrap).collect()
    }

    pub(super) fn clock(&self) -> Clock {
        let now = Arc::clone(&self.now_milliseconds);
        Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(now.load(Ordering::SeqCst)))
    }

    pub(super) fn turn_clock(&self, unix_milliseconds: u64) {
        self.now_milliseconds.store(unix_milliseconds, Ordering::SeqCst);
    }

    pub(super) fn carry_out(&self, step: &StepKind, stubborn: &BTreeSet<u32>) {
        match step {
            StepKind::Report | StepKind::Warn { .. } => {}
            StepKind::Terminate(target) if stubborn.contains(&target.pid) => {}
            StepKind::Terminate(target) | StepKind::Kill(target) => {
                self.end(&target.hostname, target.pid);
            }
            StepKind::Detach(target) => self.detach(target, stubborn),
        }
    }

    fn end(&self, hostname: &str, pid: u32) {
        if let Some(gone) = self.hosts.get(hostname) {
            lock(gone).pids.insert(pid);
        }
    }

    fn detach(&self, target: &AttachmentTarget, stubborn: &BTreeSet<u32>) {
        if let Some(gone) = self.hosts.get(&target.hostname) {
            lock(gone).attachments.insert((target.eid.clone(), target.gpu));
        }
        for process in target.processes.iter().filter(|process| !stubborn.contains(&process.pid)) {
            self.end(&process.hostname, process.pid);
        }
    }
}

fn lock(gone: &Mutex<Gone>) -> MutexGuard<'_, Gone> {
    // Sets are whole after every call, also one that panicked.
    gone.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A source without what is gone.
struct Without<S: ?Sized>(Arc<Mutex<Gone>>, Box<S>);

impl GpuSource for Without<dyn GpuSource> {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        let mut sample = self.1.sample()?;
        let gone = lock(&self.0);
        for device in &mut sample.devices {
            let measurements = &mut device.measurements;
            if let Some(processes) = &mut device.processes {
                processes.retain(|process| {
                    let is_gone = gone.pids.contains(&process.pid);
                    if is_gone {
                        give_back(measurements, process);
                    }
                    !is_gone
                });
            }
        }
        Ok(sample)
    }

    fn is_simulated(&self) -> bool {
        self.1.is_simulated()
    }
}

/// Subtracts a process's use of a device from the readings of the device.
fn give_back(measurements: &mut DeviceMeasurements, process: &GpuProcess) {
    if let (Some(memory), Some(used)) = (&mut measurements.memory, process.memory_used_bytes) {
        let used = used.min(memory.used_bytes);
        memory.used_bytes -= used;
        memory.free_bytes += used;
    }
    if let (Some(all), Some(own)) = (&mut measurements.utilization_ratio, process.utilization_ratio) {
        *all = (*all - own).max(0.0);
    }
}

impl ProcessSource for Without<dyn ProcessSource> {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let mut table = self.1.read(request);
        for pid in &lock(&self.0).pids {
            table.lineage.remove(pid);
            table.hidden.remove(pid);
            if let Some(read) = table.processes.get_mut(pid) {
                *read = ProcessRead::Vanished;
            }
        }
        table
    }

    fn username(&mut self, uid: u32) -> String {
        self.1.username(uid)
    }
}

impl StateSource for Without<dyn StateSource> {
    fn read(&mut self) -> Result<State, StateError> {
        let mut state = self.1.read()?;
        let gone = lock(&self.0);
        for device in &mut state.devices {
            let index = device.index;
            let taken = |eid: &str| gone.attachments.contains(&(eid.to_owned(), index));
            device.attachments.retain(|attachment| !taken(&attachment.eid));
        }
        Ok(state)
    }
}

/// A machine with nothing on it: tests of rules look at no real one.
struct NoMachine;

impl ProcessSource for NoMachine {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let vanished = request.processes.iter().map(|pid| (*pid, ProcessRead::Vanished));
        ProcessTable { processes: vanished.collect(), ..ProcessTable::default() }
    }

    fn username(&mut self, uid: u32) -> String {
        format!("uid:{uid}")
    }
}

impl StateSource for NoMachine {
    fn read(&mut self) -> Result<State, StateError> {
        Ok(State { installed: true, ..State::default() })
    }
}
