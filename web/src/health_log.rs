//! Logs the failures and recoveries of collectors, and the values that they withhold.

use std::collections::{HashMap, HashSet};

use genv_core::model::{CollectorStatus, DeviceIndex, Publication, Snapshot, Withheld};

use crate::withheld_log::{Change, WithheldLog};

/// The name of a host's SSH session among its collectors.
pub const SSH: &str = "ssh";

/// The maximum of logged problems per collector until it is healthy again.
const MOST_PROBLEMS: usize = 8;

/// The most contradictory devices of a host that are followed: another host may send any number.
const MOST_CONTRADICTORY: usize = 64;

/// The state of each host as it was logged last.
#[derive(Debug, Default)]
pub struct HealthLog {
    /// By host and collector.
    collectors: HashMap<(String, String), LoggedHealth>,
    without_genv: HashSet<String>,
    simulated: HashSet<String>,
    /// The contradictory devices of each host.
    contradictory: HashMap<String, HashSet<DeviceIndex>>,
}

/// The logged state of one collector.
#[derive(Debug, Default)]
struct LoggedHealth {
    health: Health,
    /// The problems that were logged since the collector was last healthy. Each is logged once, even if they alternate.
    problems: HashSet<String>,
    withheld: WithheldLog,
}

impl LoggedHealth {
    /// Whether the status is to be logged. Only the first clause of an error identifies the problem: the rest may differ
    /// each time, such as a number of seconds or the words of a host.
    fn is_changed_by(&mut self, status: &CollectorStatus) -> bool {
        let health = Health::of(status);
        let changed = std::mem::replace(&mut self.health, health) != health;
        if health == Health::Healthy {
            self.problems.clear();
            return changed;
        }
        let error = status.fault().unwrap_or_default();
        let varies = |c: char| c.is_ascii_digit() || ":('\"".contains(c);
        let problem = error.split(varies).next().unwrap_or_default();
        let is_new = self.problems.len() < MOST_PROBLEMS && self.problems.insert(problem.to_owned());
        is_new || changed
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Healthy,
    /// It works, and reports a fault besides withheld values.
    Degraded,
    Failing,
}

impl Health {
    fn of(status: &CollectorStatus) -> Self {
        match (status.success, status.fault()) {
            (true, None) => Self::Healthy,
            (true, Some(_)) => Self::Degraded,
            (false, _) => Self::Failing,
        }
    }
}

impl HealthLog {
    /// Logs the changes since the last publication. A persistent error is logged once.
    pub fn note(&mut self, publication: &Publication) {
        for host in &publication.hosts {
            if let Some(snapshot) = &host.snapshot {
                self.note_installed(&host.hostname, snapshot);
                self.note_simulated(&host.hostname, snapshot);
                self.note_contradictory(&host.hostname, snapshot);
            }
            let collectors = host.snapshot.iter().flat_map(|it| &it.collectors);
            let collectors = collectors.map(|(collector, status)| (collector.as_str(), status));
            // A host during its first connection has neither success nor error.
            let ssh = host.ssh.iter().filter(|it| it.success || it.error.is_some());
            for (collector, status) in ssh.map(|it| (SSH, it)).chain(collectors) {
                let key = (host.hostname.clone(), collector.to_owned());
                let logged = self.collectors.entry(key).or_default();
                // A collector that fails withholds everything: its error is the line.
                if status.success {
                    let made_seconds = host.snapshot.as_ref().map(|it| it.timestamp_seconds);
                    let now_seconds = host.received_timestamp_seconds.or(made_seconds).unwrap_or_default();
                    for (withheld, change) in logged.withheld.note(&status.withheld, now_seconds) {
                        log_withheld(&host.hostname, collector, &withheld, change);
                    }
                }
                if !logged.is_changed_by(status) {
                    continue;
                }
                let (hostname, error) = (&host.hostname, status.fault().unwrap_or_default());
                match Health::of(status) {
                    Health::Healthy => {
                        tracing::info!(hostname, collector, "a collector works again")
                    }
                    Health::Degraded => {
                        tracing::warn!(hostname, collector, error, "a collector found a fault")
                    }
                    Health::Failing => {
                        tracing::warn!(hostname, collector, error, "a collector fails")
                    }
                }
            }
        }
    }

    fn note_simulated(&mut self, hostname: &str, snapshot: &Snapshot) {
        if snapshot.simulated && self.simulated.insert(hostname.to_owned()) {
            tracing::info!(hostname, "the devices are simulated; --gpu.source=nvml shows those of this machine");
        }
    }

    /// A device that does not answer leaves open whether the contradiction is over.
    fn note_contradictory(&mut self, hostname: &str, snapshot: &Snapshot) {
        let logged = self.contradictory.entry(hostname.to_owned()).or_default();
        let listed: HashSet<DeviceIndex> = snapshot.devices.iter().map(|it| it.index).collect();
        logged.retain(|index| listed.contains(index));
        for device in snapshot.devices.iter().filter(|it| it.up) {
            if device.contradictory && logged.len() < MOST_CONTRADICTORY && logged.insert(device.index) {
                let unseen = if device.measurement_stuck {
                    ""
                } else {
                    ", or a process that the driver does not list uses the device"
                };
                tracing::warn!(
                    hostname,
                    device = %device.index,
                    "the utilization stays above 5 % without a process and without memory in use: the measurement is \
                     stuck{unseen}; a new CUDA context or a reset of the GPU ends a stuck measurement"
                );
            } else if !device.contradictory && logged.remove(&device.index) {
                tracing::info!(
                    hostname,
                    device = %device.index,
                    "the utilization no longer contradicts the other values of the device"
                );
            }
        }
    }

    fn note_installed(&mut self, hostname: &str, snapshot: &Snapshot) {
        let state = snapshot.collectors.get("state");
        if !state.is_some_and(|state| state.current) {
            return;
        }
        if snapshot.installed {
            self.without_genv.remove(hostname);
        } else if self.without_genv.insert(hostname.to_owned()) {
            tracing::info!(
                hostname,
                "genv is not installed: its state directory does not exist, and it is not on PATH. Devices and \
                 processes are reported all the same; if the directory is elsewhere, set GENV_TMPDIR"
            );
        }
    }
}

fn log_withheld(hostname: &str, collector: &str, withheld: &Withheld, change: Change) {
    let Withheld { device, value, error } = withheld;
    let (device, value, error) = (device.map(tracing::field::display), value.as_str(), error.as_str());
    match change {
        Change::Began => tracing::warn!(hostname, collector, device, value, error, "a value is withheld"),
        Change::Ended => tracing::info!(hostname, collector, device, value, "a value is no longer withheld"),
        Change::Flapped(times) => {
            tracing::warn!(hostname, collector, device, value, error, times, "a value is withheld again and again")
        }
    }
}

#[cfg(test)]
mod tests {

    use std::io;
    use std::sync::{Arc, Mutex};

    use genv_core::collect::{CollectOptions, PollReport, PollTime, PolledHost};
    use genv_core::gpu::{DeviceSample, GpuSample};
    use genv_core::model::{Device, DeviceMeasurements, HostSnapshot};
    use genv_core::proc::{INITIAL_PID_NAMESPACE, ProcessTable};
    use genv_core::state::State;

    use super::*;

    fn publication(success: bool, error: Option<&str>) -> Publication {
        let status = CollectorStatus { success, error: error.map(str::to_owned), ..CollectorStatus::default() };
        publication_of("gpu", status, true)
    }

    fn publication_of(collector: &str, status: CollectorStatus, installed: bool) -> Publication {
        published(Snapshot { collectors: [(collector.to_owned(), status)].into(), installed, ..empty_snapshot() })
    }

    fn empty_snapshot() -> Snapshot {
        Snapshot {
            hostname: "gpu01".to_owned(),
            timestamp_seconds: 1.0,
            interval_seconds: 1.0,
            installed: true,
            ..Snapshot::default()
        }
    }

    fn published(snapshot: Snapshot) -> Publication {
        Publication {
            sequence: 1,
            hosts: vec![HostSnapshot {
                hostname: "gpu01".to_owned(),
                up: true,
                received_timestamp_seconds: None,
                snapshot: Some(Arc::new(snapshot)),
                ssh: None,
            }],
        }
    }

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log of these publications, in order.
    fn logged(publications: impl IntoIterator<Item = Publication>) -> String {
        let lines = LogBuffer::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(log, || {
            let mut health = HealthLog::default();
            for publication in publications {
                health.note(&publication);
            }
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_failure_and_its_end_are_logged_once() {
        let log = logged([
            publication(true, None),
            publication(false, Some("no answer for 1 s")),
            publication(false, Some("no answer for 2 s")),
            publication(true, Some("device 1: a value is withheld")),
            publication(true, None),
            publication(true, None),
        ]);
        insta::assert_snapshot!(log, @r#"
        WARN a collector fails hostname="gpu01" collector="gpu" error="no answer for 1 s"
        WARN a collector found a fault hostname="gpu01" collector="gpu" error="device 1: a value is withheld"
        INFO a collector works again hostname="gpu01" collector="gpu"
        "#);
    }

    #[test]
    fn another_kind_of_failure_is_logged_and_alternating_failures_once_each() {
        let refused = "cannot connect to 10.0.0.1:22: Connection refused";
        let ended = "the session ended: it closed the connection";
        let log = logged([
            publication(false, Some(refused)),
            publication(false, Some("cannot connect to 10.0.0.2:22: no answer")),
            publication(false, Some("cannot trust it: its key is not the one at known_hosts:3")),
            publication(false, Some(refused)),
            publication(false, Some("cannot understand its answer ('x'): a")),
            publication(false, Some("cannot understand its answer ('y'): b")),
            publication(true, None),
            publication(false, Some(refused)),
            publication(false, Some(ended)),
        ]);
        insta::assert_snapshot!(log, @r#"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot connect to 10.0.0.1:22: Connection refused"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot trust it: its key is not the one at known_hosts:3"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot understand its answer ('x'): a"
        INFO a collector works again hostname="gpu01" collector="gpu"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot connect to 10.0.0.1:22: Connection refused"
        WARN a collector fails hostname="gpu01" collector="gpu" error="the session ended: it closed the connection"
        "#);
    }

    #[test]
    fn a_withheld_value_is_logged_with_its_host_and_is_no_fault_of_its_collector() {
        let with = |withheld: &[Withheld]| {
            let named: Vec<String> = withheld.iter().map(ToString::to_string).collect();
            let error = (!named.is_empty()).then(|| named.join("; "));
            let withheld = withheld.to_vec();
            let status = CollectorStatus { success: true, error, withheld, ..CollectorStatus::default() };
            publication_of("gpu", status, true)
        };
        let list = Withheld::of(DeviceIndex::gpu(0), Withheld::PROCESSES, "nvmlGetList: no data");
        let version = Withheld::of_host("nvmlGetVersion", "no answer");
        let both = [list, version];
        // While the collector fails, nothing is known of its values.
        let log = logged([with(&[]), with(&both), publication(false, Some("it hangs")), with(&both), with(&both[..1])]);
        insta::assert_snapshot!(log, @r#"
        WARN a value is withheld hostname="gpu01" collector="gpu" value="nvmlGetVersion" error="no answer"
        WARN a value is withheld hostname="gpu01" collector="gpu" device=0 value="processes" error="nvmlGetList: no data"
        WARN a collector fails hostname="gpu01" collector="gpu" error="it hangs"
        INFO a collector works again hostname="gpu01" collector="gpu"
        INFO a value is no longer withheld hostname="gpu01" collector="gpu" value="nvmlGetVersion"
        "#);
    }

    #[test]
    fn a_value_that_comes_and_goes_is_logged_by_the_time_of_the_host() {
        let second = |second: u32| {
            let withheld =
                Vec::from_iter(second.is_multiple_of(2).then_some(Withheld::of(DeviceIndex::gpu(0), "it", "why")));
            let status = CollectorStatus { success: true, withheld, ..CollectorStatus::default() };
            let collectors = [("gpu".to_owned(), status)].into();
            published(Snapshot { timestamp_seconds: second.into(), collectors, ..empty_snapshot() })
        };
        let log = logged((0..100).map(second));
        assert_eq!(log.lines().count(), 3, "{log}");
        assert_eq!(log.matches("again and again").count(), 1, "{log}");
    }

    #[test]
    fn a_contradictory_device_is_logged_at_its_beginning_and_at_its_end() {
        let contradictory = |up, contradictory, measurement_stuck| {
            let device = Device {
                index: DeviceIndex::gpu(1),
                uuid: String::new(),
                up,
                name: None,
                minor: None,
                profile: None,
                gpu_instance: None,
                mig_parent: false,
                mig_unsplit: false,
                measurements: DeviceMeasurements::default(),
                processes_measured: false,
                use_unexplained: contradictory,
                contradictory,
                measurement_stuck,
                attachments: Arc::default(),
            };
            published(Snapshot { devices: vec![device], ..empty_snapshot() })
        };
        let log = logged([
            contradictory(true, false, false),
            contradictory(true, true, true),
            contradictory(false, false, false),
            contradictory(true, true, true),
            contradictory(true, false, false),
            contradictory(true, true, false),
        ]);
        insta::assert_snapshot!(log, @r#"
        WARN the utilization stays above 5 % without a process and without memory in use: the measurement is stuck; a new CUDA context or a reset of the GPU ends a stuck measurement hostname="gpu01" device=1
        INFO the utilization no longer contradicts the other values of the device hostname="gpu01" device=1
        WARN the utilization stays above 5 % without a process and without memory in use: the measurement is stuck, or a process that the driver does not list uses the device; a new CUDA context or a reset of the GPU ends a stuck measurement hostname="gpu01" device=1
        "#);
    }

    #[test]
    fn a_missing_genv_is_logged_once_and_only_when_it_is_known() {
        let state = |current, installed| {
            let status = CollectorStatus { success: true, current, ..CollectorStatus::default() };
            publication_of("state", status, installed)
        };
        assert_eq!(logged([state(false, false), state(true, true)]), "");
        let log = logged([
            state(true, false),
            state(true, false),
            state(false, false),
            state(true, true),
            state(true, false),
        ]);
        assert_eq!(log.matches("genv is not installed").count(), 2, "{log}");
    }

    #[test]
    fn simulated_devices_are_logged_once() {
        let simulated = || published(Snapshot { simulated: true, ..empty_snapshot() });
        assert_eq!(logged([published(empty_snapshot())]), "");
        let log = logged([simulated(), simulated()]);
        assert_eq!(log.matches("devices are simulated").count(), 1, "{log}");
    }

    #[test]
    fn every_line_about_a_hosts_devices_names_the_host_and_advises_what_can_help_there() {
        // A device that works without a process, and tells an impossible temperature.
        let measurements = DeviceMeasurements {
            utilization_ratio: Some(0.9),
            temperature_celsius: Some(1e9),
            ..DeviceMeasurements::default()
        };
        let device = DeviceSample {
            lost: false,
            measurements,
            processes: Some(Vec::new()),
            ..DeviceSample::lost(DeviceIndex::gpu(0), "GPU-0".to_owned())
        };
        // Another machine, the machine itself, and a container on it.
        for (pid_namespace, is_advised) in [(None, false), (Some(INITIAL_PID_NAMESPACE), false), (Some(1), true)] {
            let mut host = PolledHost::new("gpu01".to_owned(), &CollectOptions::default());
            // Lazy, so that the polls log into the same log.
            let log = logged([0.0, 10.0, 20.0].into_iter().map(|seconds| {
                let report = PollReport {
                    gpu: Ok(GpuSample { devices: vec![device.clone()], ..GpuSample::default() }),
                    state: Ok(State { installed: true, ..State::default() }),
                    processes: Ok(ProcessTable { pid_namespace, ..ProcessTable::default() }),
                    usernames: HashMap::new(),
                    duration_seconds: 0.1,
                };
                published(host.observe(report, PollTime { seconds, timestamp_seconds: seconds }))
            }));
            assert!(log.contains("lists no process") && log.contains("temperature"), "{log}");
            assert!(log.lines().all(|line| line.contains("hostname=\"gpu01\"")), "{log}");
            assert_eq!(log.contains("--pid=host"), is_advised, "{log}");
        }
    }
}
