//! The served paths and their responses.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use genv_web::build::{REVISION, VERSION};
use genv_web::metrics::{LazyText, METRICS, TextSink};
use genv_web::{Foot, Handler, PageLink, Request, Response, StatusCode, asset};
use maud::html;

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
    metrics: Option<Arc<Metrics>>,
    /// When the last cycle ended, or the program was started.
    at: Instant,
    interval: Duration,
    /// Whether the last cycle could not judge any host.
    all_blind: bool,
}

/// The metrics of a cycle, and their requested encodings.
#[derive(Debug)]
struct Metrics {
    exposition: String,
    text: LazyText,
}

impl LastCycle {
    /// No cycle has ended yet.
    pub(crate) fn new(interval: Duration) -> Self {
        Self(RwLock::new(Page { metrics: None, at: Instant::now(), interval, all_blind: false }))
    }

    /// Replaces the served page.
    pub(crate) fn publish(&self, metrics: String, interval: Duration, all_blind: bool) {
        let metrics = Metrics { exposition: metrics, text: LazyText::default() };
        let page = Page { metrics: Some(Arc::new(metrics)), at: Instant::now(), interval, all_blind };
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
    landing_page: Response,
}

impl Endpoints {
    pub(crate) fn new(last_cycle: Arc<LastCycle>) -> Self {
        Self { last_cycle, landing_page: landing_page() }
    }
}

impl Handler for Endpoints {
    fn handle(&self, request: &Request<'_>) -> Response {
        if let Some(asset) = asset(request) {
            return asset;
        }
        let page = self.last_cycle.page();
        match (request.path(), &page.metrics) {
            ("/", _) => self.landing_page.clone(),
            ("/metrics", Some(metrics)) => {
                let encoding = request.encoding();
                let write = |out: TextSink<'_>| out(metrics.exposition.as_bytes());
                Response::encoded(encoding, METRICS, metrics.text.encoded(encoding, write))
            }
            ("/-/ready", Some(_)) if page.all_blind => {
                unavailable("genv-enforcer is blind: no host can be judged. 'genv-enforcer status' shows the reason.")
            }
            ("/-/ready", Some(_)) => Response::text(StatusCode::OK, "genv-enforcer is ready.").uncached(),
            ("/-/healthy", metrics) if page.is_overdue() => unavailable(&format!(
                "{} {} s ago, and a cycle is expected every {} s. See the log.",
                match metrics {
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

fn landing_page() -> Response {
    let link = |path: &str, text: &str, description: &str| PageLink {
        path: path.to_owned(),
        text: text.to_owned(),
        description: description.to_owned(),
    };
    let foot = Foot {
        description: "genv-enforcer applies the rules on the use of GPUs; 'genv-enforcer status' shows its state."
            .to_owned(),
        version: format!("{VERSION}, revision {REVISION}"),
        links: vec![
            link("/metrics", "Metrics", "what Prometheus scrapes"),
            link("/-/healthy", "Health", "200 while cycles go on"),
            link("/-/ready", "Readiness", "200 while the last cycle saw a host"),
        ],
    };
    let (facts, main) = (html! {}, html! {});
    genv_web::Page { title: "Enforcer", facts, main, live: None, foot: Some(&foot) }.response()
}

#[cfg(test)]
mod tests {
    use genv_web::Method;
    use genv_web::header::HeaderMap;

    use super::*;

    /// The status codes of metrics, health and readiness when the last cycle, if any, ended so long ago.
    fn answers(cycled: bool, age: Duration) -> [u16; 3] {
        let interval = Duration::from_secs(10);
        let last_cycle = Arc::new(LastCycle::new(interval));
        if cycled {
            last_cycle.publish("a 1\n".to_owned(), interval, false);
        }
        last_cycle.0.write().unwrap().at = Instant::now().checked_sub(age).unwrap();
        let endpoints = Endpoints::new(last_cycle);
        ["/metrics", "/-/healthy", "/-/ready"].map(|path| {
            let (uri, headers) = (path.parse().unwrap(), HeaderMap::new());
            let response = endpoints.handle(&Request::new(&Method::GET, &uri, &headers));
            response.status().as_u16()
        })
    }

    #[test]
    fn the_enforcer_is_ready_after_a_cycle_and_healthy_until_cycles_are_overdue() {
        let (now, late) = (Duration::ZERO, Duration::from_secs(61));
        assert_eq!(answers(false, now), [503, 200, 503]);
        assert_eq!(answers(true, now), [200, 200, 200]);
        assert_eq!(answers(true, late), [200, 503, 200]);
        assert_eq!(answers(false, late), [503, 503, 503], "the first one hangs too");
    }
}
