//! Families about a host and its collectors.

use super::{Family, HostFamily, Kind};

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_host_up",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether the host delivers snapshots: 1 if it does, 0 if not.",
        samples: |host, out| out.add(&[], f64::from(host.status().up)),
    },
    Family {
        name: "genv_host_installed",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether genv is installed on the host (a state directory exists, or genv is on PATH): 1 if it is, 0 if not.",
        samples: |host, out| {
            let view = host.known_state();
            out.add(&[], view.map(|view| f64::from(view.snapshot.installed)));
        },
    },
    Family {
        name: "genv_host_simulated",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether the host's devices are simulated rather than read from a driver: 1 if they are, 0 if not.",
        samples: |host, out| {
            out.add(&[], host.view().map(|view| f64::from(view.snapshot.simulated)));
        },
    },
    Family {
        name: "genv_snapshot_timestamp_seconds",
        kind: Kind::Largest,
        labels: &[],
        help: "When the host's latest snapshot was received, in seconds of Unix time by the exporter's clock.",
        samples: |host, out| out.add(&[], host.status().received_timestamp_seconds),
    },
    Family {
        name: "genv_collector_success",
        kind: Kind::Largest,
        labels: &["collector"],
        help: "Whether the collector's last attempt succeeded: 1 if it did, 0 if not.",
        samples: |host, out| {
            for (name, status) in host.collectors() {
                out.add(&[&name], f64::from(status.success));
            }
        },
    },
    Family {
        name: "genv_collector_duration_seconds",
        kind: Kind::Largest,
        labels: &["collector"],
        help: "How long the collector's last finished attempt took, in seconds.",
        samples: |host, out| {
            for (name, status) in host.collectors() {
                out.add(&[&name], status.duration_seconds);
            }
        },
    },
    Family {
        name: "genv_collector_timestamp_seconds",
        kind: Kind::Largest,
        labels: &["collector"],
        help: "When the collector's last values were read, in seconds of Unix time by the host's clock.",
        samples: |host, out| {
            for (name, status) in host.collectors() {
                out.add(&[&name], status.timestamp_seconds);
            }
        },
    },
];
