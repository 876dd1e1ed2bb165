//! Families about the exporter itself: what it is, and what it costs.

use genv_web::metrics::MetricFamily;
use genv_web::metrics::{self, OwnFamily, OwnProcess, PROCESS_FAMILIES, Samples};

use super::{Family, Kind};

/// What the exporter was built from.
const BUILD_INFO: OwnFamily = Family {
    name: "genv_exporter_build_info",
    kind: Kind::Largest,
    labels: &["version", "revision", "rustversion"],
    help: "Always 1; the labels tell from what the exporter was built.",
    samples: |_| Some(1.0),
};

/// All families about the exporter.
pub fn families() -> impl Iterator<Item = &'static OwnFamily> {
    std::iter::once(&BUILD_INFO).chain(PROCESS_FAMILIES)
}

/// All families about the exporter that have a sample.
pub fn of_process(process: &OwnProcess, samples: &mut Samples, mut each: impl FnMut(&MetricFamily)) {
    each(metrics::of_build(&BUILD_INFO, samples));
    metrics::of_process(process, samples, each);
}
