//! The paths of the exporter and their answers.

use std::sync::Arc;
use std::time::Duration;

use genv_web::header::HeaderValue;
use genv_web::metrics::METRICS;
use genv_web::{Encoding, Handler, Request, Response, StatusCode, asset};
use serde_json::json;
use tokio::sync::watch;

use crate::page::Site;
use crate::render::{Rendering, Unavailable};
use crate::runbooks;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// Paths that the telemetry path cannot take.
pub(crate) const RESERVED_PATHS: [&str; 8] =
    ["/", "/page.css", "/page.js", "/sd", "/snapshot", "/runbooks", "/-/healthy", "/-/ready"];

/// The default port of an exporter.
const EXPORTER_PORT: u16 = 9820;

/// Publications that may be missed before the exporter is unhealthy.
const MISSED_PUBLICATIONS: u32 = 3;
/// Delay of a machine under load that is tolerated at every interval.
const TOLERANCE: Duration = Duration::from_secs(5);

/// The exporter's handler.
#[derive(Debug)]
pub struct Endpoints {
    latest: watch::Receiver<Arc<Rendering>>,
    telemetry_path: String,
    genv1_path: String,
    site: Site,
}

impl Endpoints {
    /// Serves the latest rendering; `interval` is the time between publications.
    pub fn new(latest: watch::Receiver<Arc<Rendering>>, telemetry_path: &str, interval: Duration) -> Self {
        let genv1_path = format!("{}/genv1", telemetry_path.trim_end_matches('/'));
        let site = Site::new(telemetry_path, &genv1_path, interval);
        Self { latest, telemetry_path: telemetry_path.to_owned(), genv1_path, site }
    }

    /// The served paths besides the telemetry path.
    pub(crate) fn other_paths(&self) -> impl Iterator<Item = String> {
        RESERVED_PATHS.into_iter().map(str::to_owned).chain([self.genv1_path.clone()])
    }

    fn metrics(&self, request: &Request<'_>) -> Response {
        let (latest, encoding) = (self.latest(), request.encoding());
        match request.query_value("host") {
            None => Response::encoded(encoding, METRICS, latest.metrics(encoding)),
            Some(host) => match latest.host_metrics(&host, encoding) {
                Ok(body) => Response::encoded(encoding, METRICS, body),
                Err(reason) => refused(&latest, &host, reason),
            },
        }
    }

    fn genv1(&self, request: &Request<'_>) -> Response {
        let encoding = request.encoding();
        Response::encoded(encoding, METRICS, self.latest().genv1(encoding))
    }

    fn snapshot(&self, request: &Request<'_>) -> Response {
        let (latest, encoding) = (self.latest(), request.encoding());
        let host = request.query_value("host");
        let only = match latest.hostnames().collect::<Vec<_>>()[..] {
            [only] => Some(only.to_owned()),
            _ => None,
        };
        match host.or(only) {
            Some(host) => match latest.host_snapshot(&host, encoding) {
                Ok(body) => Response::encoded(encoding, JSON, body),
                Err(reason) => refused(&latest, &host, reason),
            },
            None if latest.is_published() => Response::encoded(encoding, JSON_LINES, latest.snapshots(encoding)),
            None => unavailable("No data was collected yet. Try again in a moment."),
        }
    }

    /// The page of the lab; of one host or one user, if one is asked for.
    fn page(&self, request: &Request<'_>) -> Response {
        let (latest, encoding, site) = (self.latest(), request.encoding(), &self.site);
        let page = match (request.query_value("host"), request.query_value("user")) {
            (Some(host), _) => latest.host_page(&host, site, encoding),
            (None, Some(user)) => latest.user_page(&user, site, encoding),
            (None, None) => Ok(latest.overview(site, encoding)),
        };
        match page {
            Ok(page) => Response::html(encoding, page),
            Err(missing) => Response::html(Encoding::Plain, missing).with_status(StatusCode::NOT_FOUND),
        }
    }

    /// The addresses of exporters on the hosts that are followed over SSH, for Prometheus' service discovery by HTTP
    /// (<https://prometheus.io/docs/prometheus/latest/http_sd/>). A site that outgrows SSH keeps its host file this way.
    fn service_discovery(&self) -> Response {
        let latest = self.latest();
        let groups: Vec<_> = latest
            .remote_hostnames()
            .map(|hostname| {
                let host = match hostname.contains(':') {
                    true => format!("[{hostname}]"),
                    false => hostname.to_owned(),
                };
                json!({"targets": [format!("{host}:{EXPORTER_PORT}")], "labels": {"__meta_genv_host": hostname}})
            })
            .collect();
        Response::new(StatusCode::OK, JSON, format!("{}\n", json!(groups)))
    }

    fn healthy(&self) -> Response {
        let age = self.latest().age();
        if !is_overdue(age, self.site.interval) {
            return Response::text(StatusCode::OK, "genv-exporter is healthy.").uncached();
        }
        unavailable(&format!(
            "The last collection was published {} s ago; the interval is {} s. The log has the reason.",
            age.as_secs(),
            self.site.interval.as_secs_f64()
        ))
    }

    fn ready(&self) -> Response {
        if self.latest().is_published() {
            return Response::text(StatusCode::OK, "genv-exporter is ready.").uncached();
        }
        unavailable("No data was collected yet. Try again in a moment.")
    }

    fn latest(&self) -> Arc<Rendering> {
        Arc::clone(&self.latest.borrow())
    }
}

impl Handler for Endpoints {
    fn handle(&self, request: &Request<'_>) -> Response {
        match request.path() {
            path if path == self.telemetry_path => self.metrics(request),
            path if path == self.genv1_path => self.genv1(request),
            "/" => self.page(request),
            "/snapshot" => self.snapshot(request),
            "/sd" => self.service_discovery(),
            "/runbooks" => runbooks::page(),
            "/-/healthy" => self.healthy(),
            "/-/ready" => self.ready(),
            _ => asset(request).unwrap_or_else(Response::not_found),
        }
    }
}

/// Whether the next publication is overdue.
pub(crate) fn is_overdue(age: Duration, interval: Duration) -> bool {
    age > interval * MISSED_PUBLICATIONS + TOLERANCE
}

fn refused(latest: &Rendering, host: &str, reason: Unavailable) -> Response {
    match reason {
        Unavailable::UnknownHost => {
            let known: Vec<_> = latest.hostnames().collect();
            let message = match known[..] {
                [] => "No data was collected yet. Try again in a moment.".to_owned(),
                _ => format!("There is no host '{host}'. The hosts are: {}.", known.join(", ")),
            };
            Response::text(StatusCode::NOT_FOUND, &message).uncached()
        }
        Unavailable::HostDown => {
            unavailable(&format!("Host '{host}' is down: it delivers no snapshot. The log has the reason."))
        }
    }
}

fn unavailable(message: &str) -> Response {
    Response::text(StatusCode::SERVICE_UNAVAILABLE, message).uncached()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_is_overdue_after_a_few_intervals_and_never_within_seconds() {
        let overdue = |age, interval| is_overdue(Duration::from_millis(age), Duration::from_millis(interval));
        assert!(!overdue(30_000, 10_000));
        assert!(overdue(60_000, 10_000));
        assert!(!overdue(3_000, 100));
        assert!(overdue(6_000, 100));
    }
}
