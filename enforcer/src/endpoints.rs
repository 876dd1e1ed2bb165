//! Which path answers what.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use genv_web::build::{REVISION, VERSION};
use genv_web::metrics::{METRICS, Text};
use genv_web::{Handler, LandingPage, Link, Request, Response, StatusCode};

/// Cycles that may be missed before the enforcer calls itself unhealthy.
const MISSED_CYCLES: u32 = 3;
/// A machine under load, or a lock that others hold, may make a cycle late by this much.
const LATE: Duration = Duration::from_secs(30);

/// The last cycle, for those who ask.
#[derive(Debug, Default)]
pub(crate) struct Served(RwLock<Option<Page>>);

#[derive(Clone, Debug)]
struct Page {
    metrics: Text,
    at: Instant,
    interval: Duration,
}

impl Served {
    /// Replaces what is served.
    pub(crate) fn publish(&self, metrics: String, interval: Duration) {
        let page = Page {
            metrics: Text::new(metrics),
            at: Instant::now(),
            interval,
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(page);
    }

    /// Whether cycles go on; before the first, they do for as long as one may take.
    pub(crate) fn is_alive(&self, started: Instant, interval: Duration) -> bool {
        match self.page() {
            Some(page) => !is_overdue(page.at.elapsed(), page.interval),
            None => !is_overdue(started.elapsed(), interval),
        }
    }

    fn page(&self) -> Option<Page> {
        let page = self.0.read().unwrap_or_else(PoisonError::into_inner);
        page.clone()
    }
}

/// The enforcer's handler.
#[derive(Debug)]
pub(crate) struct Endpoints {
    served: Arc<Served>,
    landing_page: Response,
}

impl Endpoints {
    /// Serves the last cycle.
    pub(crate) fn new(served: Arc<Served>) -> Self {
        Self {
            served,
            landing_page: landing_page().response(),
        }
    }
}

impl Handler for Endpoints {
    fn handle(&self, request: &Request<'_>) -> Response {
        match (request.path(), self.served.page()) {
            ("/", _) => self.landing_page.clone(),
            ("/metrics", Some(page)) => page.metrics.served(request, METRICS),
            ("/-/ready", Some(_)) => {
                Response::text(StatusCode::OK, "genv-enforcer is ready.").uncached()
            }
            ("/-/healthy", Some(page)) if is_overdue(page.at.elapsed(), page.interval) => {
                unavailable(&format!(
                    "The last cycle ended {} s ago, and one is expected every {} s. See the log.",
                    page.at.elapsed().as_secs(),
                    page.interval.as_secs_f64()
                ))
            }
            ("/-/healthy", _) => {
                Response::text(StatusCode::OK, "genv-enforcer is healthy.").uncached()
            }
            ("/metrics" | "/-/ready", None) => {
                unavailable("No cycle has ended yet. Ask again in a moment.")
            }
            _ => Response::not_found(),
        }
    }
}

fn is_overdue(age: Duration, interval: Duration) -> bool {
    age > interval * MISSED_CYCLES + LATE
}

fn unavailable(words: &str) -> Response {
    Response::text(StatusCode::SERVICE_UNAVAILABLE, words).uncached()
}

fn landing_page() -> LandingPage {
    let link = |path: &str, text: &str, description: &str| Link {
        path: path.to_owned(),
        text: text.to_owned(),
        description: description.to_owned(),
    };
    LandingPage {
        name: "genv enforcer".to_owned(),
        description:
            "Applies the rules on the use of GPUs; 'genv-enforcer status' tells how it stands."
                .to_owned(),
        version: format!("{VERSION}, revision {REVISION}"),
        links: vec![
            link("/metrics", "Metrics", "what Prometheus scrapes"),
            link("/-/healthy", "Health", "200 while cycles go on"),
            link("/-/ready", "Readiness", "200 once a cycle has ended"),
        ],
    }
}
