//! Metrics of the enforcer about its own work: requests, readers, cycles and actions.

use genv_web::instruments::prometheus::{Histogram, Result};
use genv_web::instruments::{self, HistogramVec, Registry, RequestMetrics};
use genv_web::reader_restarts;

use crate::endpoints::PATHS;

/// The registry of the enforcer, and what it times.
#[derive(Clone, Debug)]
pub struct Instruments {
    registry: Registry,
    requests: RequestMetrics,
    cycle: Histogram,
    action: HistogramVec,
}

impl Instruments {
    /// Registers all metrics.
    pub fn new() -> Result<Self> {
        let registry = Registry::new();
        let [metrics_path, other_paths @ ..] = PATHS;
        let other_paths = other_paths.map(str::to_owned);
        let scrapes = "genv_enforcer_scrape_duration_seconds";
        let requests = RequestMetrics::register(&registry, scrapes, metrics_path, other_paths)?;
        reader_restarts::register(&registry)?;
        let cycle = instruments::durations(
            &registry,
            "genv_enforcer_cycles_duration_seconds",
            "How long cycles took from their facts to their end, in seconds; genv_enforcer_cycle_duration_seconds is the last one.",
        )?;
        let action = instruments::durations_by(
            &registry,
            "genv_enforcer_action_duration_seconds",
            "How long actions on this host took, in seconds, refused ones included; none in dry-run.",
            "action",
            &["detach", "terminate", "kill"],
        )?;
        Ok(Self { registry, requests, cycle, action })
    }

    pub(crate) fn requests(&self) -> RequestMetrics {
        self.requests.clone()
    }

    pub(crate) fn cycle(&self, seconds: f64, actions: &[(&'static str, f64)]) {
        self.cycle.observe(seconds);
        for (action, seconds) in actions {
            self.action.with_label_values(&[action]).observe(*seconds);
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
