//! Hosts of a scenario on which actions have their effect: a process that is ended uses no device any more,
//! and what is detached is attached no more.

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
        let mut shared = Vec::new();
        for device in &mut sample.devices {
            let (index, instance) = (device.index, device.instance());
            let measurements = &mut device.measurements;
            if let Some(processes) = &mut device.processes {
                processes.retain(|process| {
                    let is_gone = gone.pids.contains(&process.pid);
                    if is_gone {
                        give_back(measurements, process);
                        shared.extend(instance.map(|instance| (index, instance, *process)));
                    }
                    !is_gone
                });
            }
        }
        // The other compute instances of a GPU instance have the same memory.
        for device in &mut sample.devices {
            for (index, instance, process) in &shared {
                if device.index != *index && device.instance() == Some(*instance) {
                    give_back(&mut device.measurements, process);
                }
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

#[cfg(test)]
mod tests {
    use genv_core::gpu::DeviceSample;
    use genv_core::model::{DeviceIndex, DeviceMemory, ProcessType};

    use super::*;

    struct Fixed(GpuSample);

    impl GpuSource for Fixed {
        fn sample(&mut self) -> Result<GpuSample, GpuError> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn the_memory_of_an_ended_process_is_given_back_to_its_gpu_instance() {
        let ended = GpuProcess {
            pid: 7,
            process_type: ProcessType::Compute,
            memory_used_bytes: Some(4),
            utilization_ratio: None,
        };
        let memory = DeviceMemory { total_bytes: 10, used_bytes: 5, free_bytes: 5, reserved_bytes: None };
        let part = |number: u8, gpu_instance: u32, processes: &[GpuProcess]| DeviceSample {
            lost: false,
            gpu_instance: Some(gpu_instance),
            measurements: DeviceMeasurements { memory: Some(memory), ..DeviceMeasurements::default() },
            processes: Some(processes.to_vec()),
            ..DeviceSample::lost(DeviceIndex::mig(0, number), String::new())
        };
        let devices = vec![part(0, 2, &[]), part(1, 2, &[ended]), part(2, 3, &[])];
        let sample = GpuSample { devices, ..GpuSample::default() };
        let gone = Gone { pids: [7].into(), ..Gone::default() };
        let fixed: Box<dyn GpuSource> = Box::new(Fixed(sample));
        let mut source = Without(Arc::new(Mutex::new(gone)), fixed);
        let devices = source.sample().unwrap().devices;
        let used: Vec<_> = devices.iter().map(|it| it.measurements.memory.unwrap().used_bytes).collect();
        assert_eq!(used, [1, 1, 5]);
    }
}
