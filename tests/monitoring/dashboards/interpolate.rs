//! What Grafana makes of an expression before Prometheus sees it.
//!
//! <https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/>

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;

use crate::dashboards::variables;

/// What Grafana rounds intervals to, each with the interval up to which it does.
const ROUNDED_MILLISECONDS: [(u64, u64); 26] = [
    (10, 1),
    (15, 10),
    (35, 20),
    (75, 50),
    (150, 100),
    (350, 200),
    (750, 500),
    (1_500, 1_000),
    (3_500, 2_000),
    (7_500, 5_000),
    (12_500, 10_000),
    (17_500, 15_000),
    (25_000, 20_000),
    (45_000, 30_000),
    (90_000, 60_000),
    (210_000, 120_000),
    (450_000, 300_000),
    (750_000, 600_000),
    (1_050_000, 900_000),
    (1_500_000, 1_200_000),
    (2_700_000, 1_800_000),
    (5_400_000, 3_600_000),
    (9_000_000, 7_200_000),
    (16_200_000, 10_800_000),
    (32_400_000, 21_600_000),
    (86_400_000, 43_200_000),
];

/// A choice of values for each variable.
pub(crate) type Choice = BTreeMap<String, Chosen>;

/// What is chosen of one variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chosen {
    /// All, which stands for this regular expression.
    All(String),
    /// These values.
    Values(Vec<String>),
}

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
    /// panel wants points at least `minimum` apart.
    pub(crate) fn new(
        (start, end): (u64, u64),
        points: u64,
        scrape_interval: Duration,
        minimum: Option<Duration>,
    ) -> Self {
        let minimum = minimum.unwrap_or(scrape_interval);
        let interval = rounded(Duration::from_secs(end - start) / u32::try_from(points).unwrap_or(u32::MAX));
        let interval = interval.max(minimum);
        let rate_interval = (interval + minimum).max(minimum * 4);
        Self { start, end, interval, rate_interval }
    }
}

/// Puts values in the place of all variables of an expression.
///
/// # Errors
/// It has a variable, or a format of one, that is not known.
pub(crate) fn interpolate(expression: &str, choice: &Choice, times: &Times) -> Result<String, String> {
    let range = Duration::from_secs(times.end - times.start);
    variables::replace(expression, |name, format| {
        Ok(match name {
            "__interval" => seconds(times.interval),
            "__interval_ms" => times.interval.as_millis().to_string(),
            "__rate_interval" => seconds(times.rate_interval),
            "__range" => seconds(range),
            "__range_s" => range.as_secs().to_string(),
            "__range_ms" => range.as_millis().to_string(),
            "__from" => format!("{}000", times.start),
            "__to" => format!("{}000", times.end),
            _ => {
                let chosen = choice.get(name).ok_or_else(|| format!("there is no variable ${name}"))?;
                match (chosen, format) {
                    (Chosen::All(regex), _) => regex.clone(),
                    (Chosen::Values(values), None | Some("regex")) => alternatives(values),
                    (_, format) => {
                        return Err(format!("${name} is asked for in the format {format:?}"));
                    }
                }
            }
        })
    })
}

/// A regular expression, as it stands in a string of PromQL, that matches these values only.
fn alternatives(values: &[String]) -> String {
    static SPECIAL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[$^*{}\[\]'+?.()|]").expect("a regular expression"));
    let escape = |value: &String| {
        let value = value.replace('\\', r"\\\\");
        SPECIAL.replace_all(&value, r"\\$0").into_owned()
    };
    match values {
        [value] => escape(value),
        _ => format!("({})", values.iter().map(escape).collect::<Vec<_>>().join("|")),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn rounded(interval: Duration) -> Duration {
    let milliseconds = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let found = ROUNDED_MILLISECONDS.iter().find(|(below, _)| milliseconds < *below);
    let day = 86_400_000;
    Duration::from_millis(match found {
        Some((_, rounded)) => *rounded,
        None if milliseconds < 7 * day => day,
        None => 7 * day,
    })
}

/// Selector and label of a variable's query `label_values(selector, label)`.
///
/// # Errors
/// It is none.
pub(crate) fn label_values(query: &str) -> Result<(&str, &str), String> {
    let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    inside
        .and_then(|inside| inside.rsplit_once(','))
        .map(|(selector, label)| (selector.trim(), label.trim()))
        .filter(|(selector, label)| !selector.is_empty() && label.chars().all(|c| c.is_alphanumeric() || c == '_'))
        .ok_or_else(|| format!("asks {query:?}, not label_values(selector, label)"))
}

/// A duration as it stands in the options of a panel or in a time range: `10s`, `7d`.
///
/// # Errors
/// It is none.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    promql_parser::util::parse_duration(text).map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: (u64, u64) = (1_000_000_000, 1_000_086_400);

    fn times() -> Times {
        Times::new(DAY, 1000, Duration::from_secs(10), None)
    }

    #[test]
    fn points_of_a_day_are_a_minute_apart() {
        let times = times();
        assert_eq!(times.interval, Duration::from_secs(60));
        assert_eq!(times.rate_interval, Duration::from_secs(70));
    }

    #[test]
    fn a_rate_takes_in_four_scrapes_at_least() {
        let times = Times::new((1_000_000_000, 1_000_000_300), 1000, Duration::from_secs(10), None);
        assert_eq!(times.interval, Duration::from_secs(10));
        assert_eq!(times.rate_interval, Duration::from_secs(40));
    }

    #[test]
    fn a_panel_may_ask_for_points_further_apart() {
        let hour = Duration::from_secs(3600);
        let times = Times::new(DAY, 1000, Duration::from_secs(10), Some(hour));
        assert_eq!((times.interval, times.rate_interval), (hour, hour * 4));
    }

    #[test]
    fn chosen_values_match_themselves_only() {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        assert_eq!(alternatives(&values(&["gpu01"])), "gpu01");
        assert_eq!(alternatives(&values(&["(none)", r"a\b"])), r"(\\(none\\)|a\\\\b)");
    }

    #[test]
    fn every_variable_gets_its_value() {
        let choice = Choice::from([
            ("job".to_owned(), Chosen::All(".+".to_owned())),
            ("username".to_owned(), Chosen::Values(vec!["a.b".to_owned()])),
        ]);
        let expression = r#"topk(5, rate(a{job=~"$job",u=~"${username:regex}"}[$__rate_interval])) / $__range_s"#;
        assert_eq!(
            interpolate(expression, &choice, &times()).unwrap(),
            r#"topk(5, rate(a{job=~".+",u=~"a\\.b"}[70000ms])) / 86400"#
        );
    }

    #[test]
    fn a_query_of_a_variable_names_selector_and_label() {
        assert_eq!(label_values(r#"label_values(a{b="c,d"}, e)"#).unwrap(), (r#"a{b="c,d"}"#, "e"));
        assert!(label_values("label_values(a)").is_err());
    }
}
