//! What utilization samples tell of the processes of a device.

use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::nvmlProcessUtilizationSample_t;

use crate::gpu::GpuProcess;

/// The longest that a driver takes between two utilization samples: `nvmlDeviceGetUtilizationRates` documents
/// 1 second down to 1/6 of one, depending on the product.
const LONGEST_SAMPLE_PERIOD_MICROSECONDS: u64 = 1_000_000;

/// How far a sample's time may be ahead of this machine's clock: the driver stamps it by its own reading of that clock,
/// which may be the end of a period that still runs, and as much again for a clock that is being adjusted.
const MOST_AHEAD_MICROSECONDS: u64 = 2 * LONGEST_SAMPLE_PERIOD_MICROSECONDS;

/// The time that samples are asked for, in NVML's microseconds of Unix time. Only a sample from after its begin, and
/// up to now, is evidence: NVML returns no others, and a driver that repeats an old one does not measure.
pub(super) struct Asked {
    pub(super) since_microseconds: u64,
    now_microseconds: u64,
}

impl Asked {
    /// For what came after the newest sample that was seen. Sweeps that follow each other closer than the driver's
    /// samples would then find none, and take a process at work for an idle one: the last second is always asked for.
    pub(super) fn now(last_seen_timestamp: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::at(now.map_or(0, |now| now.as_micros() as u64), last_seen_timestamp)
    }

    pub(super) fn at(now_microseconds: u64, last_seen_timestamp: u64) -> Self {
        let a_period_ago = now_microseconds.saturating_sub(LONGEST_SAMPLE_PERIOD_MICROSECONDS);
        Self { since_microseconds: last_seen_timestamp.min(a_period_ago), now_microseconds }
    }

    /// Takes the time from each sample that is of another one: it is then no evidence, and a process without any other
    /// is unmeasured.
    pub(super) fn take_out_others(&self, samples: &mut [nvmlProcessUtilizationSample_t]) {
        let latest = self.now_microseconds.saturating_add(MOST_AHEAD_MICROSECONDS);
        for sample in samples {
            if sample.timeStamp <= self.since_microseconds || sample.timeStamp > latest {
                sample.timeStamp = 0;
            }
        }
    }
}

/// Whether the samples show that one of these processes, which are sorted by pid, works.
pub(super) fn show_use(samples: &[nvmlProcessUtilizationSample_t], processes: &[GpuProcess]) -> bool {
    let is_listed = |pid: u32| processes.binary_search_by_key(&pid, |it| it.pid).is_ok();
    let mut samples = samples.iter();
    samples.any(|it| is_valid(it) && it.smUtil > 0 && is_listed(it.pid))
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
pub(super) fn set_utilization(
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
mod tests {
    use super::*;
    use crate::model::ProcessType;

    fn process(pid: u32, process_type: ProcessType, memory: Option<u64>) -> GpuProcess {
        GpuProcess { pid, process_type, memory_used_bytes: memory, utilization_ratio: None }
    }

    fn sample(pid: u32, timestamp: u64, sm: u32) -> nvmlProcessUtilizationSample_t {
        nvmlProcessUtilizationSample_t { pid, timeStamp: timestamp, smUtil: sm, memUtil: 0, encUtil: 0, decUtil: 0 }
    }

    fn utilization(samples: &mut [nvmlProcessUtilizationSample_t]) -> (Vec<Option<f64>>, u64) {
        let mut processes = [10, 20, 30].map(|pid| process(pid, ProcessType::Compute, None));
        let mut last_seen = 5;
        set_utilization(&mut processes, Some(&[]), samples, &mut last_seen);
        (processes.iter().map(|it| it.utilization_ratio).collect(), last_seen)
    }

    #[test]
    fn the_last_second_is_asked_for_again_and_nothing_later_is_left_out() {
        let since = |last_seen| Asked::at(9_000_000, last_seen).since_microseconds;
        assert_eq!(since(0), 0);
        assert_eq!(since(3_000_000), 3_000_000);
        assert_eq!(since(8_900_000), 8_000_000);
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
        let (ratios, last_seen) = utilization(&mut [sample(30, 8, 10), sample(10, 6, 50), sample(30, 7, 30)]);
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
        let (ratios, last_seen) =
            utilization(&mut [sample(10, 9, 200), sample(10, 7, 30), sample(20, 0, 255), sample(99, 7, 5)]);
        // The bounds take them out.
        assert_eq!(ratios, [Some(2.0), Some(2.55), Some(0.0)]);
        assert_eq!(last_seen, 7);
    }

    #[test]
    fn entries_that_fill_up_the_list_tell_nothing() {
        let (ratios, last_seen) =
            utilization(&mut [sample(0, 0, 0), sample(10, 0, 50), sample(20, 0, 4_294_967_295), sample(20, 8, 40)]);
        assert_eq!(ratios, [None, Some(0.4), Some(0.0)]);
        assert_eq!(last_seen, 8);
    }

    #[test]
    fn a_sample_of_another_time_than_asked_for_leaves_its_process_unmeasured() {
        let asked = Asked::at(9_000_000, 7_000_000);
        for wrong in [1, 6_000_000, 7_000_000, 11_000_001, u64::MAX] {
            let mut samples = [sample(10, wrong, 1), sample(20, 8_900_000, 37)];
            asked.take_out_others(&mut samples);
            let (ratios, last_seen) = utilization(&mut samples);
            assert_eq!(ratios, [None, Some(0.37), Some(0.0)], "{wrong}");
            assert_eq!(last_seen, 8_900_000, "{wrong}");
        }
        // The driver's reading of the clock differs a little from ours, and a later sample counts beside an old one.
        let mut samples = [sample(10, 11_000_000, 50), sample(20, 7_000_000, 1), sample(20, 7_000_001, 99)];
        asked.take_out_others(&mut samples);
        let (ratios, _) = utilization(&mut samples);
        assert_eq!(ratios, [Some(0.5), Some(0.99), Some(0.0)]);
    }

    #[test]
    fn only_the_samples_of_listed_processes_show_who_works() {
        let processes = [10, 20].map(|pid| process(pid, ProcessType::Compute, None));
        assert!(show_use(&[sample(20, 9, 1)], &processes));
        let others = [sample(999_999, 9, 90), sample(10, 0, 50), sample(20, 9, 0)];
        assert!(!show_use(&others, &processes));
    }
}
