//! Families about the daemon itself: its version, and the resources that it uses.

use super::{Family, Kind, MetricFamily, OwnProcess, Samples};
use crate::build::{REVISION, RUST_VERSION, VERSION};

/// A family about the daemon.
pub type OwnFamily = Family<fn(&OwnProcess) -> Option<f64>>;

/// The family of the daemon's build, with the labels version, revision and rustversion.
pub fn of_build<'a, S>(family: &Family<S>, samples: &'a mut Samples) -> &'a MetricFamily {
    samples.of(family, |samples| {
        samples.add(&[&VERSION, &REVISION, &RUST_VERSION], 1.0);
    })
}

/// All families about the process that have a sample.
pub fn of_process(process: &OwnProcess, samples: &mut Samples, mut each: impl FnMut(&MetricFamily)) {
    for family in PROCESS_FAMILIES {
        let family = samples.of(family, |samples| {
            samples.add(&[], (family.samples)(process));
        });
        if !family.is_empty() {
            each(family);
        }
    }
}

/// All families about the process. Their names are those of Prometheus' client libraries.
pub const PROCESS_FAMILIES: &[OwnFamily] = &[
    Family {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "CPU time that this program used, user and system, in seconds.",
        samples: |process| process.cpu_seconds,
    },
    Family {
        name: "process_open_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "File descriptors that this program has open.",
        samples: |process| process.open_fds,
    },
    Family {
        name: "process_max_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "File descriptors that this program may have open.",
        samples: |process| process.max_fds,
    },
    Family {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Virtual memory of this program, in bytes.",
        samples: |process| process.virtual_memory_bytes,
    },
    Family {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Resident memory of this program, in bytes.",
        samples: |process| process.resident_memory_bytes,
    },
    Family {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "When this program was started, in seconds of Unix time.",
        samples: |process| process.start_time_seconds,
    },
    Family {
        name: "process_threads",
        kind: Kind::Gauge,
        labels: &[],
        help: "Threads of this program.",
        samples: |process| process.threads,
    },
];
