//! What is broken.

use crate::model::{DeviceIndex, HostSnapshot};

/// How long an XID error is shown among the [`troubles`], in seconds.
const XID_SHOWN_SECONDS: f64 = 3600.0;

/// A kind of [`Trouble`]; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// A host delivers no snapshot.
    HostDown,
    /// A GPU does not answer.
    GpuDown,
    /// A GPU had an XID error with this code.
    Xid(u64),
    /// A collector fails, or withholds values.
    Collector,
    /// A GPU is in MIG mode without MIG devices.
    Unsplit,
    /// A GPU shows utilization that nothing explains.
    Contradictory,
}

/// A fault that people should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble<'a> {
    /// What kind of fault it is.
    pub kind: TroubleKind,
    /// The host.
    pub hostname: &'a str,
    /// The device; absent if the fault is one of the host.
    pub device: Option<DeviceIndex>,
    /// What is wrong. Errors of drivers and hosts are in it as they are: escape it.
    pub words: String,
}

/// What is broken on these hosts: the worst first, XID errors by their codes, then in the order of hosts and devices.
pub fn troubles(hosts: &[HostSnapshot]) -> Vec<Trouble<'_>> {
    let mut troubles = Vec::new();
    for host in hosts {
        let hostname = host.hostname.as_str();
        let mut of = |kind, device, words| troubles.push(Trouble { kind, hostname, device, words });
        if !host.up {
            let why = host.ssh.as_ref().and_then(|it| it.error.as_deref());
            let words = match why {
                Some(why) => format!("delivers no snapshot: {why}"),
                None => "delivers no snapshot".to_owned(),
            };
            of(TroubleKind::HostDown, None, words);
        }
        let Some(snapshot) = &host.snapshot else {
            continue;
        };
        for (name, status) in &snapshot.collectors {
            if let Some(error) = &status.error {
                of(TroubleKind::Collector, None, format!("collector {name}: {error}"));
            }
        }
        for device in &snapshot.devices {
            let mut has = |kind, words: &str| of(kind, Some(device.index), words.to_owned());
            if !device.up && device.index.mig.is_none() {
                has(TroubleKind::GpuDown, "does not answer");
            }
            if device.mig_unsplit {
                has(TroubleKind::Unsplit, "is in MIG mode without MIG devices: no program runs on it");
            }
            if device.contradictory {
                has(TroubleKind::Contradictory, "shows utilization without a process and without memory in use");
            }
        }
        for xid in &snapshot.counters.device_xid_errors {
            let last = xid.last_timestamp_seconds;
            if last.is_some_and(|last| snapshot.timestamp_seconds - last < XID_SHOWN_SECONDS) {
                let words = format!("had the error XID {} within the last hour", xid.xid);
                of(TroubleKind::Xid(xid.xid), Some(xid.index), words);
            }
        }
    }
    troubles.sort_by_key(|it| it.kind);
    troubles
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lab::tests::{host, snapshot};

    #[test]
    fn what_is_broken_is_named_with_its_host_and_device_and_the_worst_first() {
        let mut host =
            host(json!([{"up": false}, {"mig_unsplit": true}, {"contradictory": true}]), json!([]), json!([]));
        host.up = false;
        let snapshot = snapshot(&mut host);
        snapshot.collectors.get_mut("state").unwrap().error = Some("state.json is damaged".to_owned());
        let xids = json!([
            {"index": "1", "xid": 79, "errors": 1, "last_timestamp_seconds": 900.0},
            {"index": "1", "xid": 13, "errors": 1, "last_timestamp_seconds": -9000.0},
            {"index": "1", "xid": 48, "errors": 0},
        ]);
        snapshot.counters.device_xid_errors = serde_json::from_value(xids).unwrap();
        let hosts = [host];
        let troubles = troubles(&hosts);
        let troubles: Vec<_> = troubles.iter().map(|it| (it.device.map(|it| it.gpu), &*it.words)).collect();
        assert_eq!(
            troubles,
            [
                (None, "delivers no snapshot"),
                (Some(0), "does not answer"),
                (Some(1), "had the error XID 79 within the last hour"),
                (None, "collector state: state.json is damaged"),
                (Some(1), "is in MIG mode without MIG devices: no program runs on it"),
                (Some(2), "shows utilization without a process and without memory in use"),
            ]
        );
    }
}
