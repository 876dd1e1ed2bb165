//! Says in the log when something that is collected fails, and when it is well again.

use std::collections::HashMap;

use genv_core::model::{CollectorStatus, Publication};

/// What was last said of each collector, by host.
#[derive(Debug, Default)]
pub(crate) struct HealthLog(HashMap<(String, String), Health>);

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
    /// Says what has changed since the last publication, once: an error that stays is not repeated.
    pub(crate) fn note(&mut self, publication: &Publication) {
        for host in &publication.hosts {
            for (collector, status) in host
                .snapshot
                .iter()
                .flat_map(|snapshot| &snapshot.collectors)
            {
                let health = Health::of(status);
                let key = (host.hostname.clone(), collector.clone());
                if self.0.insert(key, health).unwrap_or_default() == health {
                    continue;
                }
                let (hostname, error) =
                    (&host.hostname, status.error.as_deref().unwrap_or_default());
                match health {
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
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use genv_core::model::{Counters, HostSnapshot, SNAPSHOT_VERSION, Snapshot};

    use super::*;

    fn publication(success: bool, error: Option<&str>) -> Publication {
        let status = CollectorStatus {
            success,
            error: error.map(str::to_owned),
            ..CollectorStatus::default()
        };
        let snapshot = Snapshot {
            version: SNAPSHOT_VERSION,
            hostname: "gpu01".to_owned(),
            timestamp_seconds: 1.0,
            interval_seconds: 1.0,
            installed: true,
            driver_version: None,
            collectors: [("gpu".to_owned(), status)].into(),
            devices: Vec::new(),
            environments: Vec::new(),
            processes: Vec::new(),
            counters: Counters::default(),
        };
        Publication {
            sequence: 1,
            hosts: vec![HostSnapshot {
                hostname: "gpu01".to_owned(),
                up: true,
                received_timestamp_seconds: None,
                snapshot: Some(Arc::new(snapshot)),
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

    #[test]
    fn a_failure_and_its_end_are_said_once() {
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
            for publication in [
                publication(true, None),
                publication(false, Some("no answer for 1 s")),
                publication(false, Some("no answer for 2 s")),
                publication(true, Some("envs.json: an entry is damaged")),
                publication(true, None),
                publication(true, None),
            ] {
                health.note(&publication);
            }
        });
        let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        insta::assert_snapshot!(said, @r#"
        WARN a collector fails hostname="gpu01" collector="gpu" error="no answer for 1 s"
        WARN a collector found a fault hostname="gpu01" collector="gpu" error="envs.json: an entry is damaged"
        INFO a collector is well again hostname="gpu01" collector="gpu"
        "#);
    }
}
