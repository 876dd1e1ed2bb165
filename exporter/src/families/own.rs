//! Families about the exporter itself: what it is, and what it costs.

use prometheus::proto::MetricFamily;

use super::{Family, Kind};
use crate::own_process::OwnProcess;
use crate::samples::Samples;

/// A family about the exporter.
pub type OwnFamily = Family<fn(&OwnProcess) -> Option<f64>>;

/// Version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Revision of the sources, or `unknown`.
pub const REVISION: &str = env!("GENV_REVISION");
/// Version of the compiler, or `unknown`.
pub const RUST_VERSION: &str = env!("GENV_RUST_VERSION");

/// All families about the exporter that have a sample.
pub fn of_process(process: &OwnProcess) -> impl Iterator<Item = MetricFamily> {
    FAMILIES.iter().filter_map(|family| {
        let mut samples = Samples::new(family.kind, family.labels);
        let value = (family.samples)(process);
        match family.labels {
            [] => samples.add(&[], value),
            _ => samples.add(&[&VERSION, &REVISION, &RUST_VERSION], value),
        }
        samples.into_family(family.name, family.help)
    })
}

/// All families about the exporter. Their names are those of Prometheus' client libraries.
pub const FAMILIES: &[OwnFamily] = &[
    Family {
        name: "genv_exporter_build_info",
        kind: Kind::Largest,
        labels: &["version", "revision", "rustversion"],
        help: "Always 1; the labels tell from what the exporter was built.",
        samples: |_| Some(1.0),
    },
    Family {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "CPU time that the exporter used, user and system, in seconds.",
        samples: |process| process.cpu_seconds,
    },
    Family {
        name: "process_open_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "File descriptors that the exporter has open.",
        samples: |process| process.open_fds,
    },
    Family {
        name: "process_max_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "File descriptors that the exporter may have open.",
        samples: |process| process.max_fds,
    },
    Family {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Virtual memory of the exporter, in bytes.",
        samples: |process| process.virtual_memory_bytes,
    },
    Family {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Resident memory of the exporter, in bytes.",
        samples: |process| process.resident_memory_bytes,
    },
    Family {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "When the exporter was started, in seconds of Unix time.",
        samples: |process| process.start_time_seconds,
    },
    Family {
        name: "process_threads",
        kind: Kind::Gauge,
        labels: &[],
        help: "Threads of the exporter.",
        samples: |process| process.threads,
    },
];
