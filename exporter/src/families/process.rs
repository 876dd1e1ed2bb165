//! Families about processes that use a device.

use genv_core::model::ProcessDevice;
use genv_web::metrics::Samples;

use super::{Family, HostFamily, Kind};
use crate::host::{ByDevice, HostView, PublishedHost};

/// The labels of a process on a device: `index`, and those of [`HostProcesses::largest`](crate::host::HostProcesses::largest).
const LABELS: &[&str] = &["index", "pid", "eid", "username", "comm"];

/// The label `pid` of the processes without series of their own.
const OTHER_PIDS: &str = "other";

/// One value of every process on every device, and the sum of the processes beyond the limit.
fn each(host: &PublishedHost<'_>, out: &mut Samples, value: impl Fn(&ProcessDevice) -> Option<f64>) {
    let Some(processes) = host.processes() else {
        return;
    };
    for (row, process) in processes.largest.iter() {
        for device in &process.devices {
            out.add_of(&[&device.index], row, value(device));
        }
    }
    let mut others = ByDevice::default();
    for device in processes.others.iter().flat_map(|process| &process.devices) {
        if let Some(value) = value(device) {
            *others.of(device.index, || 0.0) += value;
        }
    }
    for (index, sum) in others.iter() {
        out.add(&[&index, &OTHER_PIDS, &"", &"", &""], *sum);
    }
}

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_processes",
        kind: Kind::Gauge,
        labels: &["state"],
        help: "Processes that use a device, by where they belong (environment, outside or unknown), as far as they are known; absent if no GPU tells all of its processes.",
        samples: |host, out| {
            if let Some(processes) = host.view().and_then(HostView::countable_processes) {
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
        samples: |host, out| each(host, out, |device| device.memory_used_bytes.get().map(|bytes| bytes as f64)),
    },
    Family {
        name: "genv_process_utilization_ratio",
        kind: Kind::Gauge,
        labels: LABELS,
        help: "Part of the time that kernels of the process ran on the device, 0 to 1; pid other is the sum of those beyond the limit.",
        samples: |host, out| each(host, out, |device| device.utilization_ratio.get()),
    },
];
