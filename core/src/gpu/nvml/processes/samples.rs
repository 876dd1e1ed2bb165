//! The use of the processes of a device, by utilization samples.

use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::nvmlProcessUtilizationSample_t;

use crate::gpu::GpuProcess;

/// The longest that a driver takes between two utilization samples: `nvmlDeviceGetUtilizationRates` documents
/// 1 second down to 1/6 of one, depending on the product.
const LONGEST_SAMPLE_PERIOD_MICROSECONDS: u64 = 1_000_000;

/// The time by which a sample may be ahead of this machine's clock. The driver may stamp a sample with the end of a
/// period that still runs; the same time again allows for a clock that is being adjusted.
const MOST_AHEAD_MICROSECONDS: u64 = 2 * LONGEST_SAMPLE_PERIOD_MICROSECONDS;

/// The requested time of samples, in NVML's microseconds of Unix time. Only a sample within this time is evidence: NVML
/// returns no others, and a driver that repeats an old sample does not measure.
pub(super) struct SampleWindow {
    pub(super) since_microseconds: u64,
    now_microseconds: u64,
}

impl SampleWindow {
    /// The time after the newest sample that was seen, and always the last second: two sweeps within one sample period
    /// would otherwise find no sample, and a working process would seem idle.
    pub(super) fn now(last_seen_timestamp: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::at(now.map_or(0, |now| now.as_micros() as u64), last_seen_timestamp)
    }

    pub(super) fn at(now_microseconds: u64, last_seen_timestamp: u64) -> Self {
        let a_period_ago = now_microseconds.saturating_sub(LONGEST_SAMPLE_PERIOD_MICROSECONDS);
        Self { since_microseconds: last_seen_timestamp.min(a_period_ago), now_microseconds }
    }

    /// Invalidates each sample outside of this time. A process with only invalid samples is unmeasured.
    pub(super) fn discard_outside(&self, samples: &mut [nvmlProcessUtilizationSample_t]) {
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

/// Sets the use of each process by its samples, and 0 without a sample: the driver saw no use. The use of clients of
/// the Multi-Process Service is not known, since the samples of a real driver (580) have all their use as the use of
/// the server. Without the list of clients, each process without a sample may be a client.
///
/// A driver samples the use of one process at a time, and returns one sample of each process: the mean over all samples
/// since the requested time, with the time of the process's own last sample. So the newest time of all processes is the
/// time up to which samples were counted. Several samples of one process are averaged, since the length of their
/// periods is not known.
///
/// A share above 100 is kept, so that the process is [unmeasured](crate::gpu::bounds) and not idle.
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
    // An earlier time than before is taken too: the clock was set back.
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

/// Whether a sample has a time and a share of at most 100.
const fn is_valid(sample: &nvmlProcessUtilizationSample_t) -> bool {
    sample.timeStamp > 0 && sample.smUtil <= 100
}

/// The use of one process by its samples.
///
/// Real drivers fill up the list with entries without a time and with shares above 100: such entries do not count
/// beside others.
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
    use crate::gpu::nvml::processes::tests::process;
    use crate::model::ProcessType;

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
    fn the_last_second_is_requested_again_and_no_later_time_is_left_out() {
        let since = |last_seen| SampleWindow::at(9_000_000, last_seen).since_microseconds;
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
    fn the_use_of_a_client_of_the_multi_process_service_is_unknown() {
        // As a real driver (580) reports it: the server has the samples of both clients.
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
    fn a_process_with_an_impossible_share_is_not_idle() {
        let (ratios, last_seen) =
            utilization(&mut [sample(10, 9, 200), sample(10, 7, 30), sample(20, 0, 255), sample(99, 7, 5)]);
        // The bounds take them out.
        assert_eq!(ratios, [Some(2.0), Some(2.55), Some(0.0)]);
        assert_eq!(last_seen, 7);
    }

    #[test]
    fn entries_that_fill_up_the_list_do_not_count() {
        let (ratios, last_seen) =
            utilization(&mut [sample(0, 0, 0), sample(10, 0, 50), sample(20, 0, 4_294_967_295), sample(20, 8, 40)]);
        assert_eq!(ratios, [None, Some(0.4), Some(0.0)]);
        assert_eq!(last_seen, 8);
    }

    #[test]
    fn a_sample_outside_of_the_requested_time_leaves_its_process_unmeasured() {
        let window = SampleWindow::at(9_000_000, 7_000_000);
        for wrong in [1, 6_000_000, 7_000_000, 11_000_001, u64::MAX] {
            let mut samples = [sample(10, wrong, 1), sample(20, 8_900_000, 37)];
            window.discard_outside(&mut samples);
            let (ratios, last_seen) = utilization(&mut samples);
            assert_eq!(ratios, [None, Some(0.37), Some(0.0)], "{wrong}");
            assert_eq!(last_seen, 8_900_000, "{wrong}");
        }
        // The driver's reading of the clock differs a little from ours, and a later sample counts beside an old one.
        let mut samples = [sample(10, 11_000_000, 50), sample(20, 7_000_000, 1), sample(20, 7_000_001, 99)];
        window.discard_outside(&mut samples);
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
