//! The processes of one device: NVML's lists merged by pid, with the use that each made of it.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::nvmlProcessUtilizationSample_t;

use super::error::{Answer, Failure, answered, optional};
use super::raw::{ProcessBuffer, ProcessList, RunningProcess, UtilizationBuffer};
use crate::gpu::GpuProcess;
use crate::model::ProcessType;

/// The longest that a driver takes between two utilization samples: `nvmlDeviceGetUtilizationRates` documents
/// 1 second down to 1/6 of one, depending on the product.
const LONGEST_SAMPLE_PERIOD_MICROSECONDS: u64 = 1_000_000;

/// Pids that Linux gives: from 1 to its `PID_MAX_LIMIT`.
const PIDS: RangeInclusive<u32> = 1..=1 << 22;

/// The processes of one device. Each list is known or unknown by itself: clients of the Multi-Process Service, for one,
/// compute and stand in their own list only.
pub(super) struct Processes {
    /// By pid; absent if the driver named none and could not name all.
    pub(super) named: Option<Vec<GpuProcess>>,
    /// Whether these are not all: a list is unknown, or one names what is no process.
    pub(super) incomplete: bool,
}

/// Reads processes into buffers that are kept from device to device and sweep to sweep.
pub(super) struct ProcessReader {
    running: ProcessBuffer,
    utilization: UtilizationBuffer,
}

impl ProcessReader {
    pub(super) fn new(driver_version: &str) -> Self {
        Self {
            running: ProcessBuffer::new(driver_version),
            utilization: UtilizationBuffer::new(),
        }
    }

    /// The processes on a device, by pid.
    /// `last_seen_timestamp` is that of the newest utilization sample of the device, and is updated;
    /// without it (a MIG device) utilization is not asked for. `device_rests` is whether the device itself shows that
    /// no kernel runs: if it does not, the use of its processes is unknown unless a valid sample shows some.
    ///
    /// # Errors
    /// The device or the driver is gone.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        last_seen_timestamp: Option<&mut u64>,
        device_rests: bool,
    ) -> Result<Processes, Failure> {
        let mut incomplete = false;
        let mut processes = Vec::new();
        let mut mps_clients = Some(Vec::new());
        for (list, call) in [
            (
                ProcessList::Compute,
                "nvmlDeviceGetComputeRunningProcesses_v3",
            ),
            (
                ProcessList::Graphics,
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
            ),
            (
                ProcessList::MpsCompute,
                "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            ),
        ] {
            match answered(call, self.running.list(device, list))? {
                Answer::Value(running) => {
                    let before = processes.len();
                    for process in running {
                        if PIDS.contains(&process.pid) {
                            processes.push(listed(process, list));
                        } else {
                            incomplete = true;
                        }
                    }
                    if list == ProcessList::MpsCompute {
                        let clients = processes[before..].iter().map(|it| it.pid);
                        mps_clients = Some(clients.collect());
                    }
                }
                // A product without graphics or without the Multi-Process Service has none of their processes.
                Answer::NotSupported => incomplete |= list == ProcessList::Compute,
                Answer::Failed => {
                    incomplete = true;
                    if list == ProcessList::MpsCompute {
                        mps_clients = None;
                    }
                }
            }
        }
        merge(&mut processes);
        if incomplete && processes.is_empty() {
            return Ok(Processes {
                named: None,
                incomplete: false,
            });
        }
        if let Some(last_seen) = last_seen_timestamp {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now_microseconds = now.map_or(0, |now| now.as_micros() as u64);
            let since = samples_since(*last_seen, now_microseconds);
            let answer = self.utilization.samples(device, since);
            if let Some(samples) = optional("nvmlDeviceGetProcessUtilization", answer)?
                && (device_rests || samples.iter().any(|it| is_valid(it) && it.smUtil > 0))
            {
                set_utilization(&mut processes, mps_clients.as_deref(), samples, last_seen);
            }
        }
        Ok(Processes {
            named: Some(processes),
            incomplete,
        })
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

/// Sorts by pid and makes one of all entries of a pid. A process in two lists has all its memory in
/// both, so that the larger amount is its memory, not the sum.
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

/// From when on samples are asked for, in NVML's microseconds of Unix time. Sweeps that follow each other closer than
/// the driver's samples would else find none, and take a process at work for an idle one.
fn samples_since(last_seen_timestamp: u64, now_microseconds: u64) -> u64 {
    last_seen_timestamp.min(now_microseconds.saturating_sub(LONGEST_SAMPLE_PERIOD_MICROSECONDS))
}

/// Gives each process the use that the samples tell of, and 0 to one without a sample: to the driver it did nothing.
/// Of clients of the Multi-Process Service it is not known: all their use is that of its server in the samples of a
/// real driver (580). Without the list of clients each process without a sample may be one.
///
/// A driver samples what one process makes of the device at a time, and answers with one sample of each process: the
/// mean over all that it took since then, with the time of the process's own last one. So only the newest time of
/// all tells until when samples were counted. Where a driver returns several of one process, their mean is taken,
/// since nothing tells how long a period each of them covers.
///
/// A share above 100 is handed on as it is, so that the process is [unmeasured](crate::gpu::bounds) and not idle.
fn set_utilization(
    processes: &mut [GpuProcess],
    mps_clients: Option<&[u32]>,
    samples: &mut [nvmlProcessUtilizationSample_t],
    last_seen_timestamp: &mut u64,
) {
    samples.sort_unstable_by_key(|it| it.pid);
    for process in &mut *processes {
        let may_be_client = mps_clients.is_none_or(|clients| clients.contains(&process.pid));
        process.utilization_ratio = (!may_be_client).then_some(0.0);
    }
    // Also if that is earlier than before: the clock was set back.
    let valid = samples.iter().filter(|it| is_valid(it));
    if let Some(newest) = valid.map(|it| it.timeStamp).max() {
        *last_seen_timestamp = newest;
    }
    for of_pid in samples.chunk_by(|a, b| a.pid == b.pid) {
        if let Ok(at) = processes.binary_search_by_key(&of_pid[0].pid, |it| it.pid) {
            processes[at].utilization_ratio = ratio_of(of_pid);
        }
    }
}

/// Whether a sample can be one: it has a time, and its share is one.
const fn is_valid(sample: &nvmlProcessUtilizationSample_t) -> bool {
    sample.timeStamp > 0 && sample.smUtil <= 100
}

/// What the samples of one process tell, as a ratio.
///
/// Drivers are seen to fill up the list with entries of no time and shares above 100: beside others they tell nothing.
fn ratio_of(samples: &[nvmlProcessUtilizationSample_t]) -> Option<f64> {
    let timed = || samples.iter().filter(|it| it.timeStamp > 0);
    let highest = |shares: &mut dyn Iterator<Item = u32>| {
        let wrong = shares.filter(|share| *share > 100).max();
        wrong.map(|share| f64::from(share) / 100.0)
    };
    let count = timed().count();
    if count == 0 {
        return highest(&mut samples.iter().map(|it| it.smUtil));
    }
    let sum: u32 = timed().map(|it| it.smUtil.min(100)).sum();
    let mean = f64::from(sum) / 100.0 / count as f64;
    Some(highest(&mut timed().map(|it| it.smUtil)).unwrap_or(mean))
}

#[cfg(test)]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, process_type: ProcessType, memory: Option<u64>) -> GpuProcess {
        GpuProcess {
            pid,
            process_type,
            memory_used_bytes: memory,
            utilization_ratio: None,
        }
    }

    fn sample(pid: u32, timestamp: u64, sm: u32) -> nvmlProcessUtilizationSample_t {
        nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: timestamp,
            smUtil: sm,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        }
    }

    fn utilization(samples: &mut [nvmlProcessUtilizationSample_t]) -> (Vec<Option<f64>>, u64) {
        let mut processes = [10, 20, 30].map(|pid| process(pid, ProcessType::Compute, None));
        let mut last_seen = 5;
        set_utilization(&mut processes, Some(&[]), samples, &mut last_seen);
        (
            processes.iter().map(|it| it.utilization_ratio).collect(),
            last_seen,
        )
    }

    #[test]
    fn the_last_second_is_asked_for_again_and_nothing_later_is_left_out() {
        assert_eq!(samples_since(0, 9_000_000), 0);
        assert_eq!(samples_since(3_000_000, 9_000_000), 3_000_000);
        assert_eq!(samples_since(8_900_000, 9_000_000), 8_000_000);
    }

    #[test]
    fn a_process_in_both_lists_is_one_process() {
        let mut processes = vec![
            process(20, ProcessType::Compute, Some(100)),
            process(10, ProcessType::Compute, None),
            process(10, ProcessType::Graphics, Some(7)),
            process(20, ProcessType::Graphics, Some(100)),
            process(30, ProcessType::Graphics, None),
        ];
        merge(&mut processes);
        assert_eq!(
            processes,
            [
                process(10, ProcessType::ComputeAndGraphics, Some(7)),
                process(20, ProcessType::ComputeAndGraphics, Some(100)),
                process(30, ProcessType::Graphics, None),
            ]
        );
    }

    #[test]
    fn a_process_listed_twice_as_computing_only_computes() {
        let mut processes = vec![
            process(10, ProcessType::Compute, Some(1)),
            process(10, ProcessType::Compute, Some(2)),
        ];
        merge(&mut processes);
        assert_eq!(processes, [process(10, ProcessType::Compute, Some(2))]);
    }

    #[test]
    fn a_running_process_without_a_sample_used_nothing() {
        let (ratios, last_seen) = utilization(&mut [sample(20, 9, 37)]);
        assert_eq!(ratios, [Some(0.0), Some(0.37), Some(0.0)]);
        assert_eq!(last_seen, 9);
        let (ratios, last_seen) = utilization(&mut []);
        assert_eq!(ratios, [Some(0.0); 3]);
        assert_eq!(last_seen, 5);
    }

    #[test]
    fn what_a_client_of_the_multi_process_service_used_is_unknown() {
        // As a real driver (580) told it: the server has the samples of both clients.
        let (server, clients) = (659, [609, 618]);
        let mut processes = [609, 618, 659].map(|pid| process(pid, ProcessType::Compute, None));
        let mut samples = [sample(server, 9, 99)];
        let used = |processes: &[GpuProcess; 3]| processes.map(|it| it.utilization_ratio);
        set_utilization(&mut processes, Some(&clients), &mut samples, &mut 0);
        assert_eq!(used(&processes), [None, None, Some(0.99)]);
        // Their list could not be read.
        set_utilization(&mut processes, None, &mut samples, &mut 0);
        assert_eq!(used(&processes), [None, None, Some(0.99)]);
    }

    #[test]
    fn several_samples_of_a_process_count_by_their_mean() {
        let (ratios, last_seen) =
            utilization(&mut [sample(30, 8, 10), sample(10, 6, 50), sample(30, 7, 30)]);
        assert_eq!(ratios, [Some(0.5), Some(0.0), Some(0.2)]);
        assert_eq!(last_seen, 8);
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let (_, last_seen) = utilization(&mut [sample(20, 4, 37), sample(10, 3, 1)]);
        assert_eq!(last_seen, 4);
    }

    #[test]
    fn a_process_with_a_share_that_cannot_be_is_not_idle() {
        let (ratios, last_seen) = utilization(&mut [
            sample(10, 9, 200),
            sample(10, 7, 30),
            sample(20, 0, 255),
            sample(99, 7, 5),
        ]);
        // The bounds take them out.
        assert_eq!(ratios, [Some(2.0), Some(2.55), Some(0.0)]);
        assert_eq!(last_seen, 7);
    }

    #[test]
    fn entries_that_fill_up_the_list_tell_nothing() {
        let (ratios, last_seen) = utilization(&mut [
            sample(0, 0, 0),
            sample(10, 0, 50),
            sample(20, 0, 4_294_967_295),
            sample(20, 8, 40),
        ]);
        assert_eq!(ratios, [None, Some(0.4), Some(0.0)]);
        assert_eq!(last_seen, 8);
    }
}
