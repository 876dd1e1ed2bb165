//! The served paths and their responses.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use genv_web::metrics::{LazyText, METRICS, TextSink};
use genv_web::{Handler, Request, Response, StatusCode, asset};

use crate::output::now_seconds;
use crate::page::{self, Findings};

/// The served paths; first the path that Prometheus scrapes.
pub(crate) const PATHS: [&str; 6] = ["/metrics", "/", "/page.css", "/page.js", "/-/healthy", "/-/ready"];

/// The number of missed cycles after which the enforcer is unhealthy.
pub(crate) const MISSED_CYCLES: u32 = 3;
/// The tolerated delay of a cycle by a machine under load or a held lock.
const TOLERATED_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct LastCycle(RwLock<Page>);

#[derive(Clone, Debug)]
struct Page {
    /// Absent before the first cycle.
    cycle: Option<Arc<EndedCycle>>,
    /// When the last cycle ended, or the program was started.
    at: Instant,
    interval: Duration,
    /// Whether the last cycle could not judge any host.
    all_blind: bool,
}

/// The metrics of a cycle, their requested encodings, and the findings.
#[derive(Debug)]
struct EndedCycle {
    metrics: String,
    text: LazyText,
    findings: Findings,
}

impl LastCycle {
    /// No cycle has ended yet.
    pub(crate) fn new(interval: Duration) -> Self {
        Self(RwLock::new(Page { cycle: None, at: Instant::now(), interval, all_blind: false }))
    }

    /// Replaces the served page.
    pub(crate) fn publish(&self, metrics: String, findings: Findings, interval: Duration, all_blind: bool) {
        let cycle = EndedCycle { metrics, text: LazyText::default(), findings };
        let page = Page { cycle: Some(Arc::new(cycle)), at: Instant::now(), interval, all_blind };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = page;
    }

    fn page(&self) -> Page {
        let page = self.0.read().unwrap_or_else(PoisonError::into_inner);
        page.clone()
    }
}

impl Page {
    fn is_overdue(&self) -> bool {
        self.at.elapsed() > self.interval * MISSED_CYCLES + TOLERATED_DELAY
    }
}

/// The enforcer's handler.
#[derive(Debug)]
pub(crate) struct Endpoints {
    last_cycle: Arc<LastCycle>,
}

impl Endpoints {
    pub(crate) const fn new(last_cycle: Arc<LastCycle>) -> Self {
        Self { last_cycle }
    }
}

impl Handler for Endpoints {
    fn handle(&self, request: &Request<'_>) -> Response {
        if let Some(asset) = asset(request) {
            return asset;
        }
        let page = self.last_cycle.page();
        match (request.path(), &page.cycle) {
            ("/", Some(cycle)) => cycle.findings.response(request, now_seconds()),
            ("/", None) => page::before_first_cycle(page.interval),
            ("/metrics", Some(cycle)) => {
                let encoding = request.encoding();
                let write = |out: TextSink<'_>| out(cycle.metrics.as_bytes());
                Response::encoded(encoding, METRICS, cycle.text.encoded(encoding, write))
            }
            ("/-/ready", Some(_)) if page.all_blind => {
                unavailable("genv-enforcer is blind: no host can be judged. 'genv-enforcer status' shows the reason.")
            }
            ("/-/ready", Some(_)) => Response::text(StatusCode::OK, "genv-enforcer is ready.").uncached(),
            ("/-/healthy", cycle) if page.is_overdue() => unavailable(&format!(
                "{} {} s ago, and a cycle is expected every {} s. See the log.",
                match cycle {
                    Some(_) => "The last cycle ended",
                    None => "No cycle has ended since the start",
                },
                page.at.elapsed().as_secs(),
                page.interval.as_secs_f64()
            )),
            ("/-/healthy", _) => Response::text(StatusCode::OK, "genv-enforcer is healthy.").uncached(),
            ("/metrics" | "/-/ready", None) => unavailable("No cycle has ended yet. Ask again in a moment."),
            _ => Response::not_found(),
        }
    }
}

fn unavailable(words: &str) -> Response {
    Response::text(StatusCode::SERVICE_UNAVAILABLE, words).uncached()
}

#[cfg(test)]
mod tests {
    use genv_core::enforcement::Enforcement;
    use genv_web::Method;
    use genv_web::header::HeaderMap;
    use jiff::tz::TimeZone;

    use super::*;

    /// The status codes of page, metrics, health and readiness when the last cycle, if any, ended so long ago.
    fn answers(cycled: bool, age: Duration) -> [u16; 4] {
        let interval = Duration::from_secs(10);
        let last_cycle = Arc::new(LastCycle::new(interval));
        if cycled {
            let findings = Findings::new(Enforcement::default(), Arc::default(), TimeZone::UTC);
            last_cycle.publish("a 1\n".to_owned(), findings, interval, false);
        }
        last_cycle.0.write().unwrap().at = Instant::now().checked_sub(age).unwrap();
        let endpoints = Endpoints::new(last_cycle);
        ["/", "/metrics", "/-/healthy", "/-/ready"].map(|path| {
            let (uri, headers) = (path.parse().unwrap(), HeaderMap::new());
            let response = endpoints.handle(&Request::new(&Method::GET, &uri, &headers));
            response.status().as_u16()
        })
    }

    #[test]
    fn the_enforcer_is_ready_after_a_cycle_and_healthy_until_cycles_are_overdue() {
        let (now, late) = (Duration::ZERO, Duration::from_secs(61));
        assert_eq!(answers(false, now), [200, 503, 200, 503]);
        assert_eq!(answers(true, now), [200, 200, 200, 200]);
        assert_eq!(answers(true, late), [200, 200, 503, 200]);
        assert_eq!(answers(false, late), [200, 503, 503, 503], "the first one hangs too");
    }
}
