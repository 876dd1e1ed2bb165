//! Families about the queue for devices.

use super::{Family, HostFamily, Kind};

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_queue_length",
        kind: Kind::Gauge,
        labels: &[],
        help: "Processes that wait for devices.",
        samples: |host, out| {
            let view = host.known_state();
            out.add(&[], view.map(|view| view.snapshot.queue.len() as f64));
        },
    },
    Family {
        name: "genv_queue_wait_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "How long the process that waits longest has waited for devices; 0 if none waits.",
        samples: |host, out| {
            let snapshot = host.known_state().map(|view| view.snapshot);
            let longest = snapshot.map(|snapshot| {
                let waiting = snapshot.queue.iter();
                let since = waiting.filter_map(|it| it.since_timestamp_seconds);
                let waits = since.map(|since| snapshot.timestamp_seconds - since);
                waits.fold(0.0, f64::max)
            });
            out.add(&[], longest);
        },
    },
    Family {
        name: "genv_requests_refused_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Requests for devices that were refused because others held or used the devices, or waited for them.",
        samples: |host, out| {
            let view = host.known_state();
            let refused = view.and_then(|view| view.snapshot.refused_requests);
            out.add(&[], refused.map(|it| it as f64));
        },
    },
];
