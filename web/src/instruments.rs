//! Metrics about a daemon itself, in a registry of the Prometheus client library: requests, and how long work takes.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Result, TextEncoder};

pub use prometheus::{self, HistogramVec, Registry};

/// Upper bounds of all histograms, in seconds: from a cached page to a host that answers late.
const BUCKETS: [f64; 11] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The label `path` of all requests to paths that the daemon does not serve. Clients choose these paths.
const OTHER_PATHS: &str = "(other)";

/// A registered histogram of durations in seconds.
///
/// # Errors
/// The registry has a metric of this name.
pub fn durations(registry: &Registry, name: &str, help: &str) -> Result<Histogram> {
    let histogram = Histogram::with_opts(options(name, help))?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}

/// A registered histogram of durations in seconds for each value of a label. It shows the given values from the start.
///
/// # Errors
/// The registry has a metric of this name.
pub fn durations_by(registry: &Registry, name: &str, help: &str, label: &str, values: &[&str]) -> Result<HistogramVec> {
    let histograms = HistogramVec::new(options(name, help), &[label])?;
    registry.register(Box::new(histograms.clone()))?;
    for value in values {
        histograms.with_label_values(&[value]);
    }
    Ok(histograms)
}

fn options(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(BUCKETS.to_vec())
}

/// All metrics of the registry in the text format; empty if the format does not support one of its values.
pub fn text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot write the metrics of this program");
        String::new()
    })
}

/// Metrics of the requests to a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    /// The served paths; first the path that Prometheus scrapes.
    paths: Arc<[String]>,
    requests: IntCounterVec,
    in_flight: IntGauge,
    scrapes: Histogram,
}

impl RequestMetrics {
    /// Registers the metrics: the counter and the gauge by the names of Go's package `promhttp`, and the histogram of
    /// scrapes as `scrapes`. `metrics_path` is the path that Prometheus scrapes.
    ///
    /// # Errors
    /// The registry has a metric of these names.
    pub fn register(
        registry: &Registry,
        scrapes: &str,
        metrics_path: &str,
        other_paths: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(
                "promhttp_metric_handler_requests_total",
                "Requests by path and status code; (other) stands for all paths that are not served.",
            ),
            &["path", "code"],
        )?;
        let in_flight = IntGauge::new(
            "promhttp_metric_handler_requests_in_flight",
            "Requests that were being answered when this page was made, at the last publication or cycle.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        let scrapes = durations(
            registry,
            scrapes,
            "How long answers with metrics took until they were in the buffer of the connection, in seconds.",
        )?;
        for code in ["200", "500", "503"] {
            requests.with_label_values(&[metrics_path, code]);
        }
        let paths = std::iter::once(metrics_path.to_owned()).chain(other_paths);
        Ok(Self { paths: paths.collect(), requests, in_flight, scrapes })
    }

    /// Counts a request as in flight until the returned value is dropped.
    pub(crate) fn begin(&self, path: &str) -> RequestInFlight {
        self.in_flight.inc();
        let path = self.paths.iter().position(|it| it == path);
        RequestInFlight { metrics: self.clone(), path, is_scrape: false, began: Instant::now() }
    }
}

/// A request until its answer is in the buffer of the connection.
#[derive(Debug)]
pub(crate) struct RequestInFlight {
    metrics: RequestMetrics,
    /// The index of its path in [`RequestMetrics::paths`]; absent if the path is not served.
    path: Option<usize>,
    /// Whether the answer has metrics.
    is_scrape: bool,
    began: Instant,
}

impl RequestInFlight {
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.is_scrape = self.path == Some(0) && status == StatusCode::OK;
        let path = self.path.map_or(OTHER_PATHS, |path| &self.metrics.paths[path]);
        self.metrics.requests.with_label_values(&[path, status.as_str()]).inc();
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        if self.is_scrape {
            self.metrics.scrapes.observe(self.began.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_served_path_and_code_and_scrapes_are_timed() {
        let registry = Registry::new();
        let other = ["/snapshot".to_owned()];
        let metrics = RequestMetrics::register(&registry, "a_scrape_duration_seconds", "/metrics", other).unwrap();
        for (path, status) in [("/metrics", 200), ("/snapshot", 503), ("/a", 404), ("/b", 404)] {
            metrics.begin(path).answered(StatusCode::from_u16(status).unwrap());
        }
        let mut waiting = metrics.begin("/metrics");
        metrics.begin("/metrics").answered(StatusCode::SERVICE_UNAVAILABLE);
        let page = text(&registry);
        for line in [
            "promhttp_metric_handler_requests_total{code=\"200\",path=\"/metrics\"} 1",
            "promhttp_metric_handler_requests_total{code=\"503\",path=\"/metrics\"} 1",
            "promhttp_metric_handler_requests_total{code=\"500\",path=\"/metrics\"} 0",
            "promhttp_metric_handler_requests_total{code=\"503\",path=\"/snapshot\"} 1",
            "promhttp_metric_handler_requests_total{code=\"404\",path=\"(other)\"} 2",
            "promhttp_metric_handler_requests_in_flight 1",
            "a_scrape_duration_seconds_count 1",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
        waiting.answered(StatusCode::OK);
        drop(waiting);
        assert!(text(&registry).contains("a_scrape_duration_seconds_count 2"));
    }
}
