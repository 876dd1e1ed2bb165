//! The hosts of a publication as people look at them: the state of each GPU and its holds, totals of models and users, and
//! what is broken. Pages and terminals show these values; the metrics have families of their own.

mod gpu;
mod models;
mod troubles;
mod users;

use std::fmt;

pub use gpu::{Activity, Gpu, GpuState, Hold, gpus, gpus_of};
pub use models::{ModelTotals, models, short_model};
pub use troubles::{Trouble, TroubleKind, troubles};
pub use users::{USER_COLLECTORS, UserTotals, users};

use crate::model::{HostSnapshot, Snapshot};

/// A number of things on hosts of which some values may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// The number of known ones.
    pub known: usize,
    /// Whether there may be more.
    pub more: bool,
}

impl Count {
    /// The number of known ones; absent if there is none, and there may be some.
    pub fn at_least(self) -> Option<usize> {
        (self.known > 0 || !self.more).then_some(self.known)
    }
}

/// `3`, `at least 3` or `?`.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at_least() {
            None => f.write_str("?"),
            Some(count) if self.more => write!(f, "at least {count}"),
            Some(count) => write!(f, "{count}"),
        }
    }
}

/// Whether all values of these collectors are known of a host: the host is up, and the collectors are current.
pub fn is_known(host: &HostSnapshot, collectors: &[&str]) -> bool {
    let snapshot = host.snapshot.as_deref().filter(|_| host.up);
    snapshot.is_some_and(|snapshot| collectors.iter().all(|collector| is_current(snapshot, collector)))
}

/// The number of hosts of which values of these collectors are unknown.
pub fn unknown_hosts(hosts: &[HostSnapshot], collectors: &[&str]) -> usize {
    hosts.iter().filter(|host| !is_known(host, collectors)).count()
}

fn is_current(snapshot: &Snapshot, collector: &str) -> bool {
    snapshot.collectors.get(collector).is_some_and(|status| status.current)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// A host at time 1000, sampled at 990, with these devices, environments and processes. Each device is up and its
    /// processes are measured, unless its JSON says otherwise.
    pub(super) fn host(devices: Value, environments: Value, processes: Value) -> HostSnapshot {
        let current = json!({"success": true, "current": true, "timestamp_seconds": 990.0});
        let devices = devices.as_array().unwrap().iter().enumerate().map(|(index, device)| {
            let mut all = json!({"index": index.to_string(), "uuid": "GPU-1", "up": true, "processes_measured": true});
            all.as_object_mut().unwrap().extend(device.as_object().unwrap().clone());
            all
        });
        let snapshot = json!({
            "version": 1, "hostname": "gpu01", "timestamp_seconds": 1000.0, "interval_seconds": 10.0, "installed": true,
            "collectors": {"gpu": current, "processes": current, "state": current},
            "devices": devices.collect::<Vec<_>>(), "environments": environments, "processes": processes, "counters": {},
        });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        HostSnapshot {
            hostname: "gpu01".to_owned(),
            up: true,
            received_timestamp_seconds: None,
            snapshot: Some(Arc::new(snapshot)),
            ssh: None,
        }
    }

    pub(super) fn snapshot(host: &mut HostSnapshot) -> &mut Snapshot {
        Arc::make_mut(host.snapshot.as_mut().unwrap())
    }

    /// Makes the values of a collector those of an earlier time.
    pub(super) fn outdate(host: &mut HostSnapshot, collector: &str) {
        snapshot(host).collectors.get_mut(collector).unwrap().current = false;
    }

    pub(super) fn held_by(eids: &[&str]) -> Value {
        let attachments = eids.iter().map(|eid| json!({"eid": eid, "share_ratio": 1.0}));
        json!({"attachments": attachments.collect::<Vec<_>>()})
    }

    pub(super) fn environment(eid: &str, username: &str, devices: Value) -> Value {
        json!({"eid": eid, "username": username, "devices": devices})
    }

    pub(super) fn on(index: &str, state: &str) -> Value {
        json!({"pid": 7, "username": "eve", "attribution": {"state": state, "reason": "why"},
            "devices": [{"index": index, "type": "compute"}]})
    }

    #[test]
    fn a_host_is_known_while_it_is_up_and_all_collectors_are_current() {
        let mut host = host(json!([]), json!([]), json!([]));
        let known = |host: &HostSnapshot| [&["gpu"][..], &["gpu", "state"]].map(|it| is_known(host, it));
        assert_eq!(known(&host), [true, true]);
        outdate(&mut host, "state");
        assert_eq!(known(&host), [true, false]);
        let down = HostSnapshot { up: false, ..host.clone() };
        host.snapshot = None;
        for host in [down, host] {
            assert_eq!(known(&host), [false, false]);
        }
    }

    #[test]
    fn a_count_says_whether_there_may_be_more() {
        let words = |known, more| Count { known, more }.to_string();
        assert_eq!([words(0, false), words(0, true), words(3, true), words(3, false)], ["0", "?", "at least 3", "3"]);
    }
}
