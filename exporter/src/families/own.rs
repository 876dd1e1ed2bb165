//! Families about the exporter itself: its build, and the resources that it uses.

use genv_web::metrics::MetricFamily;
use genv_web::metrics::{self, OwnFamily, OwnProcess, PROCESS_FAMILIES, Samples};

use super::{Family, Kind};

/// Version, revision and compiler of the exporter.
const BUILD_INFO: OwnFamily = Family {
    name: "genv_exporter_build_info",
    kind: Kind::Largest,
    labels: &["version", "revision", "rustversion"],
    help: "Always 1; the labels have the version and revision of the exporter, and its compiler.",
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
