//! Says in the log when something that is collected fails, and when it is well again.

use std::collections::{HashMap, HashSet};

use genv_core::attribute::reason;
use genv_core::model::{Attribution, CollectorStatus, Publication, Snapshot};

/// What a host's SSH session is called among its collectors.
pub const SSH: &str = "ssh";

/// Of one collector so many problems are said until it is well again.
const MOST_PROBLEMS: usize = 8;

/// What was last said of each host.
#[derive(Debug, Default)]
pub struct HealthLog {
    /// By host and collector.
    collectors: HashMap<(String, String), Told>,
    without_genv: HashSet<String>,
    simulated: HashSet<String>,
    with_unreadable_environ: HashSet<String>,
}

/// What was said of one collector.
#[derive(Debug, Default)]
struct Told {
    health: Health,
    /// What it could not do, each once since it was last well: faults that take turns are not said in turns.
    problems: HashSet<String>,
}

impl Told {
    /// Whether this is news. What a problem's text has after its first clause, as a number of seconds or what a host
    /// sent, may differ each time, and makes no other problem.
    fn is_changed_by(&mut self, status: &CollectorStatus) -> bool {
        let health = Health::of(status);
        let changed = std::mem::replace(&mut self.health, health) != health;
        if health == Health::Well {
            self.problems.clear();
            return changed;
        }
        let error = status.error.as_deref().unwrap_or_default();
        let varies = |c: char| c.is_ascii_digit() || ":('\"".contains(c);
        let problem = error.split(varies).next().unwrap_or_default();
        let is_new = self.problems.len() < MOST_PROBLEMS && self.problems.insert(problem.to_owned());
        is_new || changed
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Well,
    /// It works, and has something to say.
    Complaining,
    Failing,
}

impl Health {
    fn of(status: &CollectorStatus) -> Self {
        match (status.success, &status.error) {
            (true, None) => Self::Well,
            (true, Some(_)) => Self::Complaining,
            (false, _) => Self::Failing,
        }
    }
}

impl HealthLog {
    /// Says what has changed since the last publication, once: an error that stays is not repeated, and one of another
    /// kind is said.
    pub fn note(&mut self, publication: &Publication) {
        for host in &publication.hosts {
            if let Some(snapshot) = &host.snapshot {
                self.note_installed(&host.hostname, snapshot);
                self.note_simulated(&host.hostname, snapshot);
                self.note_unreadable_environ(&host.hostname, snapshot);
            }
            let collectors = host.snapshot.iter().flat_map(|it| &it.collectors);
            let collectors = collectors.map(|(collector, status)| (collector.as_str(), status));
            // One that is being connected for the first time has nothing to say.
            let ssh = host.ssh.iter().filter(|it| it.success || it.error.is_some());
            for (collector, status) in ssh.map(|it| (SSH, it)).chain(collectors) {
                let key = (host.hostname.clone(), collector.to_owned());
                if !self.collectors.entry(key).or_default().is_changed_by(status) {
                    continue;
                }
                let (hostname, error) = (&host.hostname, status.error.as_deref().unwrap_or_default());
                match Health::of(status) {
                    Health::Well => {
                        tracing::info!(hostname, collector, "a collector is well again")
                    }
                    Health::Complaining => {
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
            tracing::info!(
                hostname,
                "the devices are simulated; those of this machine are shown with --gpu.source=nvml"
            );
        }
    }

    fn note_unreadable_environ(&mut self, hostname: &str, snapshot: &Snapshot) {
        let is_unreadable = |attribution: &Attribution| matches!(attribution, Attribution::Unknown { reason } if reason == reason::ENVIRON_UNREADABLE);
        let mut processes = snapshot.processes.iter();
        let Some(process) = processes.find(|process| is_unreadable(&process.attribution)) else {
            return;
        };
        // Said once of each host: who starts a process next changes nothing in what this program may read.
        if self.with_unreadable_environ.insert(hostname.to_owned()) {
            tracing::warn!(
                hostname,
                pid = process.pid,
                "the environ of processes of other users may not be read, so that it is unknown where they belong: \
                 run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; in a container, AppArmor or SELinux may be \
                 what refuses it"
            );
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
                 processes are told all the same; if the directory is elsewhere, set GENV_TMPDIR"
            );
        }
    }
}

#[cfg(test)]
mod tests {

    use std::io;
    use std::sync::{Arc, Mutex};

    use genv_core::model::{HostSnapshot, Process};

    use super::*;

    fn publication(success: bool, error: Option<&str>) -> Publication {
        let status = CollectorStatus { success, error: error.map(str::to_owned), ..CollectorStatus::default() };
        publish("gpu", status, true)
    }

    fn publish(collector: &str, status: CollectorStatus, installed: bool) -> Publication {
        published(Snapshot { collectors: [(collector.to_owned(), status)].into(), installed, ..nothing() })
    }

    fn nothing() -> Snapshot {
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
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is said of these, one after the other.
    fn said(publications: impl IntoIterator<Item = Publication>) -> String {
        let lines = Lines::default();
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
    fn a_failure_and_its_end_are_said_once() {
        let said = said([
            publication(true, None),
            publication(false, Some("no answer for 1 s")),
            publication(false, Some("no answer for 2 s")),
            publication(true, Some("envs.json: an entry is damaged")),
            publication(true, None),
            publication(true, None),
        ]);
        insta::assert_snapshot!(said, @r#"
        WARN a collector fails hostname="gpu01" collector="gpu" error="no answer for 1 s"
        WARN a collector found a fault hostname="gpu01" collector="gpu" error="envs.json: an entry is damaged"
        INFO a collector is well again hostname="gpu01" collector="gpu"
        "#);
    }

    #[test]
    fn a_failure_of_another_kind_is_said_and_those_that_take_turns_are_said_once_each() {
        let refused = "cannot connect to 10.0.0.1:22: Connection refused";
        let ended = "the session ended: it closed the connection";
        let said = said([
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
        insta::assert_snapshot!(said, @r#"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot connect to 10.0.0.1:22: Connection refused"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot trust it: its key is not the one at known_hosts:3"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot understand its answer ('x'): a"
        INFO a collector is well again hostname="gpu01" collector="gpu"
        WARN a collector fails hostname="gpu01" collector="gpu" error="cannot connect to 10.0.0.1:22: Connection refused"
        WARN a collector fails hostname="gpu01" collector="gpu" error="the session ended: it closed the connection"
        "#);
    }

    #[test]
    fn that_there_is_no_genv_is_said_once_and_only_when_it_is_known() {
        let state = |current, installed| {
            let status = CollectorStatus { success: true, current, ..CollectorStatus::default() };
            publish("state", status, installed)
        };
        assert_eq!(said([state(false, false), state(true, true)]), "");
        let said =
            said([state(true, false), state(true, false), state(false, false), state(true, true), state(true, false)]);
        assert_eq!(said.matches("genv is not installed").count(), 2, "{said}");
    }

    #[test]
    fn that_devices_are_simulated_is_said_once() {
        let simulated = || published(Snapshot { simulated: true, ..nothing() });
        assert_eq!(said([published(nothing())]), "");
        let said = said([simulated(), simulated()]);
        assert_eq!(said.matches("devices are simulated").count(), 1, "{said}");
    }

    #[test]
    fn that_environs_may_not_be_read_is_said_once_and_of_nothing_else() {
        let process = |reason: &str| {
            published(Snapshot {
                processes: vec![Arc::new(Process {
                    pid: 4711,
                    attribution: Attribution::Unknown { reason: reason.to_owned() },
                    start_time_ticks: None,
                    uid: None,
                    username: None,
                    comm: None,
                    container_id: None,
                    devices: Vec::new(),
                })],
                ..nothing()
            })
        };
        assert_eq!(said([process(reason::ENVIRON_EMPTY)]), "");
        let refused = || process(reason::ENVIRON_UNREADABLE);
        let said = said([refused(), published(nothing()), refused()]);
        assert_eq!(said.matches("pid=4711").count(), 1, "{said}");
    }
}
