//! The processes of one device: NVML's lists merged by pid, with the use of each process.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::error::{CallResult, Calls, Failure};
use super::raw::{ProcessBuffer, ProcessList, RunningProcess, UtilizationBuffer};
use crate::gpu::GpuProcess;
use crate::model::{ProcessType, Withheld};
use samples::{SampleWindow, set_utilization, show_use};

mod samples;

/// The processes of one device. Each list may be known without the others: clients of the Multi-Process Service, for
/// example, are in a list of their own only.
pub(super) struct Processes {
    /// By pid; absent if the driver listed none and a list is incomplete.
    pub(super) listed: Option<Vec<GpuProcess>>,
    /// Whether further processes are possible: a list is unknown.
    pub(super) incomplete: bool,
    /// Whether the lists for compute and graphics were both answered.
    pub(super) answered: bool,
}

/// Reads processes into buffers that are kept from device to device and sweep to sweep.
pub(super) struct ProcessReader {
    running: ProcessBuffer,
    utilization: UtilizationBuffer,
}

impl ProcessReader {
    pub(super) fn new(driver_version: &str) -> Self {
        Self { running: ProcessBuffer::new(driver_version), utilization: UtilizationBuffer::new() }
    }

    /// The processes on a device, by pid. `last_seen_timestamp` is the time of the newest utilization sample of the
    /// device, and is updated; without it (for a MIG device) utilization is not read. `device_rests`: the utilization
    /// of the device shows that no kernel runs. Otherwise the use of its processes is unknown, unless a valid sample
    /// shows some use.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        last_seen_timestamp: Option<&mut u64>,
        device_rests: bool,
        calls: &mut Calls,
    ) -> Result<Processes, Failure> {
        let mut incomplete = false;
        let mut answered = true;
        let mut processes = Vec::new();
        let mut mps_clients = Some(Vec::new());
        for (list, call) in [
            (ProcessList::Compute, "nvmlDeviceGetComputeRunningProcesses_v3"),
            (ProcessList::Graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3"),
            (ProcessList::MpsCompute, "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
        ] {
            let answer = calls.call_result(Withheld::PROCESSES, call, || self.running.list(device, list))?;
            answered &= list == ProcessList::MpsCompute || matches!(answer, CallResult::Value(_));
            match answer {
                CallResult::Value(running) => {
                    let before = processes.len();
                    processes.extend(running.map(|process| listed(process, list)));
                    if list == ProcessList::MpsCompute {
                        let clients = processes[before..].iter().map(|it| it.pid);
                        mps_clients = Some(clients.collect());
                    }
                }
                // A product without graphics or without the Multi-Process Service has none of their processes.
                CallResult::NotSupported if list == ProcessList::Compute => {
                    incomplete = true;
                    calls.note(Withheld::PROCESSES, format!("{call}: {}", NvmlError::NotSupported));
                }
                CallResult::NotSupported => {}
                CallResult::Failed => {
                    incomplete = true;
                    if list == ProcessList::MpsCompute {
                        mps_clients = None;
                    }
                }
            }
        }
        merge(&mut processes);
        if incomplete && processes.is_empty() {
            return Ok(Processes { listed: None, incomplete: false, answered });
        }
        if let Some(last_seen) = last_seen_timestamp {
            let window = SampleWindow::now(*last_seen);
            const CALL: &str = "nvmlDeviceGetProcessUtilization";
            let since = window.since_microseconds;
            if let Some(samples) = calls.optional(CALL, || self.utilization.samples(device, since))? {
                window.discard_outside(samples);
                if device_rests || show_use(samples, &processes) {
                    set_utilization(&mut processes, mps_clients.as_deref(), samples, last_seen);
                } else if !processes.is_empty() {
                    let why = "the device may be at work, and no sample shows which of its processes works";
                    calls.note(CALL, why.to_owned());
                }
            }
        }
        Ok(Processes { listed: Some(processes), incomplete, answered })
    }
}

fn listed(running: RunningProcess, list: ProcessList) -> GpuProcess {
    GpuProcess {
        pid: running.pid,
        process_type: match list {
            ProcessList::Compute | ProcessList::MpsCompute => ProcessType::Compute,
            ProcessList::Graphics => ProcessType::Graphics,
        },
        memory_used_bytes: running.memory_used_bytes,
        utilization_ratio: None,
    }
}

/// Sorts by pid and merges all entries of a pid. Each list has all memory of a process, so that the larger amount is
/// its memory, not the sum.
fn merge(processes: &mut Vec<GpuProcess>) {
    processes.sort_unstable_by_key(|it| it.pid);
    processes.dedup_by(|next, kept| {
        if next.pid != kept.pid {
            return false;
        }
        if next.process_type != kept.process_type {
            kept.process_type = ProcessType::ComputeAndGraphics;
        }
        kept.memory_used_bytes = kept.memory_used_bytes.max(next.memory_used_bytes);
        true
    });
}

#[cfg(test)]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn process(pid: u32, process_type: ProcessType, memory: Option<u64>) -> GpuProcess {
        GpuProcess { pid, process_type, memory_used_bytes: memory, utilization_ratio: None }
    }

    #[test]
    fn a_process_in_several_lists_is_one_process() {
        let mut processes = vec![
            process(20, ProcessType::Compute, Some(100)),
            process(10, ProcessType::Compute, None),
            process(10, ProcessType::Graphics, Some(7)),
            process(20, ProcessType::Graphics, Some(100)),
            process(30, ProcessType::Graphics, None),
            // Listed twice as computing, it only computes.
            process(40, ProcessType::Compute, Some(1)),
            process(40, ProcessType::Compute, Some(2)),
        ];
        merge(&mut processes);
        assert_eq!(
            processes,
            [
                process(10, ProcessType::ComputeAndGraphics, Some(7)),
                process(20, ProcessType::ComputeAndGraphics, Some(100)),
                process(30, ProcessType::Graphics, None),
                process(40, ProcessType::Compute, Some(2)),
            ]
        );
    }
}
