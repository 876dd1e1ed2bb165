//! What Grafana makes of an expression before Prometheus sees it.
//!
//! <https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/>

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, bail};
use regex::{Captures, Regex};

// A name begins with no digit, so that the groups of a regular expression (`$1`) are left alone.
static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?::\w+)?\}").expect("a regular expression"));

/// For each variable the regular expression that stands for its chosen values.
pub(crate) type Choice = BTreeMap<String, String>;

/// The times for which a panel is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The time range, in whole seconds of Unix time.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The distance of points.
    pub(crate) interval: Duration,
    pub(crate) rate_interval: Duration,
}

impl Times {
    /// The times of a panel of `points` pixels over a range, where Prometheus scrapes every `scrape_interval` and the
    /// panel wants points at least `minimum` apart. Grafana also rounds the interval.
    pub(crate) fn new(
        (start, end): (u64, u64),
        points: u64,
        scrape_interval: Duration,
        minimum: Option<Duration>,
    ) -> Self {
        let minimum = minimum.unwrap_or(scrape_interval);
        let interval = Duration::from_secs((end - start).div_ceil(points)).max(minimum);
        Self { start, end, interval, rate_interval: (interval + minimum).max(minimum * 4) }
    }
}

/// Puts values in the place of all variables of an expression.
///
/// # Errors
/// It has a variable that is not known.
pub(crate) fn interpolate(expression: &str, choice: &Choice, times: &Times) -> Result<String> {
    let range = times.end - times.start;
    let mut unknown = None;
    let interpolated = VARIABLE.replace_all(expression, |found: &Captures<'_>| match name(found) {
        "__interval" => format!("{}ms", times.interval.as_millis()),
        "__interval_ms" => times.interval.as_millis().to_string(),
        "__rate_interval" => format!("{}ms", times.rate_interval.as_millis()),
        "__range" => format!("{range}s"),
        "__range_s" => range.to_string(),
        name => choice.get(name).cloned().unwrap_or_else(|| {
            unknown = Some(name.to_owned());
            String::new()
        }),
    });
    let interpolated = interpolated.into_owned();
    match unknown {
        None => Ok(interpolated),
        Some(name) => bail!("there is no variable ${name}"),
    }
}

/// A regular expression, as it stands in a string of PromQL, that matches this value only.
pub(crate) fn only(value: &str) -> String {
    regex::escape(value).replace('\\', r"\\")
}

/// The names of all variables in a text.
pub(crate) fn names(text: &str) -> Vec<String> {
    VARIABLE.captures_iter(text).map(|found| name(&found).to_owned()).collect()
}

fn name<'a>(found: &'a Captures<'_>) -> &'a str {
    found.get(1).or(found.get(2)).map_or("", |name| name.as_str())
}
