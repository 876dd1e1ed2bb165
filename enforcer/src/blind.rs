//! Sources that fail, or that lack a part, are *blind*: no action relies on their missing facts. This module finds them once a
//! cycle, for status, readiness, metrics and log.

use std::collections::BTreeMap;

use genv_core::enforcement::Blind;
use genv_core::model::{HostSnapshot, Snapshot};
use genv_core::text::shortened;

use crate::plan::words;

/// The source that stands for a whole host.
const HOST: &str = "host";

/// The collectors that rules need.
const COLLECTORS: [&str; 3] = ["gpu", "processes", "state"];

/// Names of two sources without a collector of their own. `devices`: a device is missing, or its processes are not
/// known. `records`: a record of the state is left out.
const DEVICES: &str = "devices";
const RECORDS: &str = "records";

/// The number of successive publications in which a source that worked before may fail: one late answer is not blindness.
const TOLERATED: u32 = 1;

/// The state of each source, by host and source.
#[derive(Debug, Default)]
pub(crate) struct SourceStates(BTreeMap<(String, &'static str), SourceState>);

#[derive(Clone, Copy, Debug, Default)]
struct SourceState {
    /// Whether the source has ever worked.
    worked: bool,
    /// The number of publications since then in which it failed, and the time of the first failure.
    failed: u32,
    since_seconds: f64,
}

impl SourceStates {
    /// Returns the blind sources. A host in `silent` has no fresh facts for the rules.
    pub(crate) fn update(
        &mut self,
        hosts: &[HostSnapshot],
        silent: impl Fn(&str) -> bool,
        now_seconds: f64,
    ) -> Vec<Blind> {
        let before = std::mem::take(&mut self.0);
        let mut blind = Vec::new();
        for host in hosts {
            let hostname = host.hostname.as_str();
            let mut look = |source: &'static str, why: Option<String>| {
                let key = (hostname.to_owned(), source);
                let mut seen = before.get(&key).copied().unwrap_or_default();
                match why {
                    None => {
                        seen = SourceState { worked: true, ..SourceState::default() };
                    }
                    Some(why) => {
                        if seen.failed == 0 {
                            seen.since_seconds = now_seconds;
                        }
                        seen.failed = seen.failed.saturating_add(1);
                        if !seen.worked || seen.failed > TOLERATED {
                            blind.push(Blind {
                                hostname: hostname.to_owned(),
                                source: source.to_owned(),
                                since_seconds: seen.since_seconds,
                                why,
                            });
                        }
                    }
                }
                self.0.insert(key, seen);
            };
            let mut explained = false;
            let snapshot = host.snapshot.as_deref().filter(|_| host.up);
            for collector in COLLECTORS {
                let Some(status) = snapshot.and_then(|it| it.collectors.get(collector)) else {
                    continue;
                };
                let why = (!status.success || !status.current).then(|| {
                    let error = status.error.clone();
                    error.unwrap_or_else(|| "it has no fresh values".to_owned())
                });
                explained |= why.is_some();
                look(collector, why);
            }
            for (part, of, why) in PARTS {
                let snapshot = snapshot.filter(|it| works(it, of));
                look(part, snapshot.and_then(why));
            }
            let why = if !host.up || host.snapshot.is_none() {
                let error = host.ssh.as_ref().and_then(|ssh| ssh.error.clone());
                Some(error.unwrap_or_else(|| "it does not answer".to_owned()))
            } else {
                let is_silent = silent(hostname) && !explained;
                is_silent.then(|| "it has sent nothing new for a while".to_owned())
            };
            look(HOST, why);
        }
        blind
    }

    /// All sources of the last update, by host and source, and whether each is blind.
    pub(crate) fn measured(&self, blind: &[Blind]) -> BTreeMap<(String, String), bool> {
        let mut all: BTreeMap<(String, String), bool> =
            self.0.keys().map(|(hostname, source)| ((hostname.clone(), (*source).to_owned()), false)).collect();
        for it in blind {
            all.insert((it.hostname.clone(), it.source.clone()), true);
        }
        all
    }
}

/// A part that a working collector may lack: its name, its collector, and the function that returns the reason.
type Part = (&'static str, &'static str, fn(&Snapshot) -> Option<String>);
const PARTS: [Part; 2] = [(DEVICES, "gpu", unknown_devices), (RECORDS, "state", damaged_records)];

fn works(snapshot: &Snapshot, collector: &str) -> bool {
    let status = snapshot.collectors.get(collector);
    status.is_some_and(|status| status.success && status.current)
}

/// Devices that the driver does not show, and devices that answer without showing all processes.
pub(crate) fn unknown_devices(snapshot: &Snapshot) -> Option<String> {
    let gpu = snapshot.collectors.get("gpu").filter(|it| it.success);
    if let Some(missing) = gpu.and_then(|it| it.fault()) {
        return Some(shortened(missing, MAX_CHARACTERS));
    }
    let unknown: Vec<u32> = answering(snapshot).filter(|gpu| !snapshot.processes_known(*gpu)).collect();
    (!unknown.is_empty()).then(|| {
        format!(
            "the processes on {} are not known: the driver does not list them, or its other answers contradict its list; \
             see the log",
            words::devices(unknown)
        )
    })
}

fn damaged_records(snapshot: &Snapshot) -> Option<String> {
    let error = snapshot.collectors.get("state")?.error.as_deref()?;
    Some(shortened(error, MAX_CHARACTERS))
}

/// The longest reason: every user may write any number of records into the state.
const MAX_CHARACTERS: usize = 500;

/// Whole GPUs that answer.
fn answering(snapshot: &Snapshot) -> impl Iterator<Item = u32> {
    let devices = snapshot.devices.iter();
    let whole = devices.filter(|it| it.index.mig.is_none() && it.up);
    whole.map(|it| it.index.gpu)
}

/// Whether the rules cannot judge any host.
pub(crate) fn all_blind(hosts: &[HostSnapshot], blind: &[Blind]) -> bool {
    let is_blind = |host: &HostSnapshot| {
        let mut of_host = blind.iter().filter(|it| it.hostname == host.hostname);
        of_host.any(|it| match it.source.as_str() {
            RECORDS => false,
            // This includes a host on which no device answers.
            DEVICES => host
                .snapshot
                .as_deref()
                .is_some_and(|snapshot| answering(snapshot).all(|gpu| !snapshot.processes_known(gpu))),
            _ => true,
        })
    };
    !hosts.is_empty() && hosts.iter().all(is_blind)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::tests::lab::Lab;

    fn host(devices: u32, gpu: Option<&str>) -> HostSnapshot {
        let mut host = Lab::new(1, devices).at(1.0).remove(0);
        let status = snapshot(&mut host).collectors.get_mut("gpu").unwrap();
        (status.success, status.error) = (gpu.is_none(), gpu.map(str::to_owned));
        host
    }

    fn snapshot(host: &mut HostSnapshot) -> &mut Snapshot {
        Arc::make_mut(host.snapshot.as_mut().unwrap())
    }

    #[test]
    fn a_source_that_fails_twice_or_never_worked_is_blind_since_it_failed_first() {
        let mut states = SourceStates::default();
        let mut look = |host: HostSnapshot, now| -> Vec<(String, f64)> {
            let blind = states.update(&[host], |_| false, now);
            blind.into_iter().map(|it| (it.source, it.since_seconds)).collect()
        };
        assert_eq!(look(host(0, Some("no driver")), 1.0), [("gpu".to_owned(), 1.0)]);
        assert_eq!(look(host(0, Some("no driver")), 2.0), [("gpu".to_owned(), 1.0)]);
        assert_eq!(look(host(0, None), 3.0), []);
        assert_eq!(look(host(0, Some("it hangs")), 4.0), []);
        assert_eq!(look(host(0, Some("it hangs")), 5.0), [("gpu".to_owned(), 4.0)]);
        assert_eq!(look(host(0, None), 6.0), []);
        assert_eq!(look(HostSnapshot { up: false, ..host(0, None) }, 7.0), []);
        assert_eq!(look(HostSnapshot { up: false, ..host(0, None) }, 8.0), [("host".to_owned(), 7.0)]);
    }

    #[test]
    fn a_part_that_is_not_shown_is_blind_and_the_host_only_if_it_is_all() {
        let with = |unknown: &[bool], damage: Option<&str>| {
            let mut host = host(u32::try_from(unknown.len()).unwrap(), None);
            let snapshot = snapshot(&mut host);
            for (device, unknown) in snapshot.devices.iter_mut().zip(unknown) {
                device.processes_measured = !unknown;
            }
            snapshot.collectors.get_mut("state").unwrap().error = damage.map(str::to_owned);
            host
        };
        for (unknown, damage, sources, is_nothing) in [
            (&[false, false][..], None, &[][..], false),
            (&[false, true], None, &["devices"], false),
            (&[true, true], None, &["devices"], true),
            (&[false], Some("e1 is left out"), &["records"], false),
            (&[true], Some("e1 is left out"), &["devices", "records"], true),
        ] {
            let hosts = [with(unknown, damage)];
            let mut states = SourceStates::default();
            let blind = states.update(&hosts, |_| false, 1.0);
            let found: Vec<_> = blind.iter().map(|it| it.source.as_str()).collect();
            assert_eq!(found, sources);
            assert_eq!(all_blind(&hosts, &blind), is_nothing, "{found:?}");
        }
        // A list that fails once is not blindness where it worked before.
        let mut states = SourceStates::default();
        let mut look = |unknown| states.update(&[with(&[unknown], None)], |_| false, 1.0).len();
        assert_eq!([look(false), look(true), look(true), look(false)], [0, 0, 1, 0]);
    }

    #[test]
    fn devices_that_the_driver_does_not_show_are_blind() {
        for (shown, is_nothing) in [(0, true), (1, false)] {
            let mut hosts = [host(shown, None)];
            let gpu = snapshot(&mut hosts[0]).collectors.get_mut("gpu").unwrap();
            gpu.error = Some("the driver does not show GPU 1".to_owned());
            let blind = SourceStates::default().update(&hosts, |_| false, 1.0);
            let found: Vec<_> = blind.iter().map(|it| (&*it.source, &*it.why)).collect();
            assert_eq!(found, [("devices", "the driver does not show GPU 1")]);
            assert_eq!(all_blind(&hosts, &blind), is_nothing);
        }
    }

    #[test]
    fn silence_is_of_the_host_unless_a_source_explains_it() {
        let look = |gpu| {
            let blind = SourceStates::default().update(&[host(0, gpu)], |_| true, 1.0);
            blind.into_iter().map(|it| it.source).collect::<Vec<_>>()
        };
        assert_eq!(look(None), ["host"]);
        assert_eq!(look(Some("no driver")), ["gpu"]);
    }
}
