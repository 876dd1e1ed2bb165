//! Metrics of the exporter about its own work.

use std::time::Duration;

use genv_core::model::{CollectorStatus, Publication};
use genv_web::instruments::prometheus::{Histogram, Result};
use genv_web::instruments::{self, HistogramVec, Registry, RequestMetrics};
use genv_web::reader_restarts;

/// The collectors of a host.
const COLLECTORS: [&str; 3] = ["gpu", "processes", "state"];

/// The registry of the exporter, and its histograms.
#[derive(Clone, Debug)]
pub struct Instruments {
    registry: Registry,
    render: Histogram,
    collection: HistogramVec,
}

impl Instruments {
    /// Registers the metrics of collections, readers and renderings.
    pub fn new() -> Result<Self> {
        let registry = Registry::new();
        let render = instruments::durations(
            &registry,
            "genv_exporter_render_duration_seconds",
            "How long it took to render a publication in advance, in seconds.",
        )?;
        let collection = instruments::durations_by(
            &registry,
            "genv_exporter_collection_duration_seconds",
            "How long the attempts of a collector took, in seconds; those of all hosts together.",
            "collector",
            &COLLECTORS,
        )?;
        reader_restarts::register(&registry)?;
        Ok(Self { registry, render, collection })
    }

    /// Registers the metrics of requests.
    pub fn requests(
        &self,
        telemetry_path: &str,
        other_paths: impl IntoIterator<Item = String>,
    ) -> Result<RequestMetrics> {
        let scrapes = "genv_exporter_scrape_duration_seconds";
        RequestMetrics::register(&self.registry, scrapes, telemetry_path, other_paths)
    }

    pub(crate) fn rendered(&self, duration: Duration) {
        self.render.observe(duration.as_secs_f64());
    }

    /// Times the attempts that ended between two publications.
    pub(crate) fn collected(&self, before: &Publication, now: &Publication) {
        for (index, host) in now.hosts.iter().enumerate() {
            let known = before.hosts.get(index).filter(|it| it.hostname == host.hostname);
            let known = known.and_then(|it| it.snapshot.as_deref());
            for (name, collector) in host.snapshot.iter().flat_map(|it| &it.collectors) {
                let attempt = |it: &CollectorStatus| (it.timestamp_seconds, it.duration_seconds);
                let old = known.and_then(|it| it.collectors.get(name));
                let is_new = old.map(attempt) != Some(attempt(collector));
                let seconds = collector.duration_seconds.filter(|it| it.is_finite() && *it >= 0.0);
                // Another host may send any name and number.
                if let (true, true, Some(seconds)) = (is_new, COLLECTORS.contains(&name.as_str()), seconds) {
                    self.collection.with_label_values(&[name]).observe(seconds);
                }
            }
        }
    }

    /// All metrics in the text format.
    pub fn text(&self) -> String {
        instruments::text(&self.registry)
    }

    /// The registry, for the page that lists all metrics.
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }
}
