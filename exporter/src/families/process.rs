//! Families about processes that use a device.

use std::collections::BTreeMap;

use genv_core::model::ProcessDevice;
use genv_web::metrics::Samples;

use super::{Family, HostFamily, Kind};
use crate::host::Host;

/// The label `pid` of the processes that have no series of their own.
const OTHER: &str = "other";

const LABELS: &[&str] = &["index", "pid", "eid", "username", "comm"];

/// One value of every process on every device, and the sum of the processes beyond the limit.
fn each(host: &Host<'_>, out: &mut Samples, value: impl Fn(&ProcessDevice) -> Option<f64>) {
    let Some(view) = host.view() else { return };
    let Some(processes) = &view.processes else {
        return;
    };
    for process in &processes.largest {
        let eid = process.attribution.eid().unwrap_or_default();
        let username = view.snapshot.user_of(process).unwrap_or_default();
        let comm = process.comm.as_deref().unwrap_or_default();
        for device in &process.devices {
            out.add(
                &[&device.index, &process.pid, &eid, &username, &comm],
                value(device),
            );
        }
    }
    let mut others = BTreeMap::<_, f64>::new();
    for device in processes.others.iter().flat_map(|process| &process.devices) {
        if let Some(value) = value(device) {
            *others.entry(device.index).or_default() += value;
        }
    }
    for (index, sum) in others {
        out.add(&[&index, &OTHER, &"", &"", &""], sum);
    }
}

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_processes",
        kind: Kind::Gauge,
        labels: &["state"],
        help: "Processes that use a device, by where they belong (environment, outside or unknown).",
        samples: |host, out| {
            if let Some(processes) = host.processes() {
                for (state, number) in processes.states.each() {
                    out.add(&[&state], number);
                }
            }
        },
    },
    Family {
        name: "genv_process_memory_used_bytes",
        kind: Kind::Gauge,
        labels: LABELS,
        help: "Memory of the device that the process uses, in bytes; pid other is the sum of those beyond the limit.",
        samples: |host, out| {
            each(host, out, |device| {
                device.memory_used_bytes.map(|bytes| bytes as f64)
            })
        },
    },
    Family {
        name: "genv_process_utilization_ratio",
        kind: Kind::Gauge,
        labels: LABELS,
        help: "Part of the time that kernels of the process ran on the device, 0 to 1; pid other is the sum of those beyond the limit.",
        samples: |host, out| each(host, out, |device| device.utilization_ratio),
    },
];
