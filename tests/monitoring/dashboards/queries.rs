//! Everything that a dashboard asks, asked of a real Prometheus: each query with all variables at All, for several time ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use genv_tests::dashboard::{Dashboard, Panel, Target, Variable, list, text};
use genv_tests::metrics::Labels;
use genv_tests::prometheus::Prometheus;
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, VectorSelector};
use promql_parser::util::parse_duration;
use regex::{Captures, Regex};

use crate::dashboards::interpolate::{Times, interpolate};
use crate::dashboards::{all, promql, with_all};

/// Pixels of one of the 24 columns of a panel, on a screen of 1,440: at most so many points are drawn.
const POINTS_OF_A_COLUMN: u64 = 60;

/// Time ranges that people choose, and nothing for the one with which a dashboard opens.
const RANGES: [&str; 4] = ["", "5m", "24h", "30d"];

/// What shows nothing in five minutes without an error.
const OF_ERRORS: [&str; 2] = ["XID errors and who held the GPU", "XID errors in the time range"];

/// A field that the demonstration has no data for: only alerts about exporters have it, and none is down.
const ABSENT: (&str, &str) = ("What fires now", "instance");

pub(crate) struct Questions<'a> {
    prometheus: &'a Prometheus,
    span: (u64, u64),
    scrape_interval: Duration,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(
        prometheus: &'a Prometheus,
        (from, end): (SystemTime, SystemTime),
        scrape_interval: Duration,
    ) -> Result<Self> {
        let span = (from.duration_since(UNIX_EPOCH)?.as_secs(), end.duration_since(UNIX_EPOCH)?.as_secs());
        Ok(Self { prometheus, span, scrape_interval })
    }

    pub(crate) fn faults(&self, dashboard: &Dashboard) -> Result<Vec<String>> {
        for variable in dashboard.variables().into_iter().filter(|variable| variable.kind() == "query") {
            self.has_values(variable, dashboard).with_context(|| format!("the variable {}", variable.name()))?;
        }
        let mut faults = Vec::new();
        for panel in dashboard.queried_panels() {
            let mut answers = Vec::new();
            for target in panel.targets() {
                for range in RANGES {
                    let place = format!("{}, {} / {}, {range}", dashboard.title(), panel.name(), target.reference());
                    let times = self.times(dashboard, panel, target, range)?;
                    let answer = self.ask(&with_all(dashboard, target, &times)?, &times, target.is_instant());
                    let answer = answer.with_context(|| place.clone())?;
                    let may_be_silent = range == "5m" && OF_ERRORS.contains(&panel.title());
                    if answer.is_empty() && !may_be_silent {
                        faults.push(format!("{place}: returns nothing"));
                    }
                    if range.is_empty() {
                        answers.push((target, answer));
                    }
                }
            }
            let unknown = unknown_fields(panel, &answers).into_iter();
            let unknown = unknown.filter(|field| (panel.title(), field.as_str()) != ABSENT);
            faults.extend(unknown.map(|field| format!("{}, {}: no field {field}", dashboard.title(), panel.name())));
        }
        faults.extend(self.unknown_selectors(dashboard)?);
        Ok(faults)
    }

    fn values(&self, label: &str, matching: &str) -> Result<Vec<String>> {
        let (start, end) = self.span;
        let parameters = [("match[]", matching), ("start", &start.to_string()), ("end", &end.to_string())];
        Ok(serde_json::from_value(self.prometheus.ask(&format!("/api/v1/label/{label}/values"), &parameters)?)?)
    }

    pub(crate) fn metrics_with_hostname(&self) -> Result<BTreeSet<String>> {
        Ok(self.values("__name__", r#"{hostname!=""}"#)?.into_iter().collect())
    }

    fn has_values(&self, variable: Variable<'_>, dashboard: &Dashboard) -> Result<()> {
        let query = variable.query().strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = query.and_then(|query| query.rsplit_once(", ")).context("it asks no label_values")?;
        let whole = Times::new(self.span, 1000, self.scrape_interval, None);
        let values = self.values(label, &interpolate(selector, &all(dashboard), &whole)?)?;
        ensure!(!values.is_empty(), "it has no value");
        Ok(())
    }

    /// Selectors that select nothing in all the past: of a metric or with a value of a label that does not exist. The rest of
    /// an expression may hide that.
    fn unknown_selectors(&self, dashboard: &Dashboard) -> Result<Vec<String>> {
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                let times = self.times(dashboard, panel, target, "")?;
                let expression = with_all(dashboard, target, &times)?;
                let expression = parser::parse(&expression).map_err(|error| anyhow!(error))?;
                for selector in promql::selectors(&expression) {
                    let mut vector = VectorSelector { offset: None, at: None, ..selector.vector.clone() };
                    // Nothing is not chosen.
                    let is_none = |matcher: &Matcher| matches!(matcher.op, MatchOp::NotRe(_)) && matcher.value == ".+";
                    vector.matchers.matchers.retain(|matcher| !is_none(matcher));
                    let place = format!("{}, {}", dashboard.title(), panel.name());
                    places.entry(vector.to_string()).or_insert(place);
                }
            }
        }
        let mut faults = Vec::new();
        for (selector, place) in places {
            if self.values("__name__", &selector)?.is_empty() {
                faults.push(format!("{place}: {selector} selects nothing: there is no such metric or label value"));
            }
        }
        Ok(faults)
    }

    fn ask(&self, expression: &str, times: &Times, instant: bool) -> Result<Vec<Labels>> {
        let moment = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        if instant {
            let answer = self.prometheus.query_at(expression, moment(times.end))?.into_iter();
            return Ok(answer.filter(|(_, value)| value.is_finite()).map(|(labels, _)| labels).collect());
        }
        // Grafana asks for whole steps of Unix time.
        let step = times.interval.as_secs().max(1);
        let [start, end] = [times.start, times.end].map(|seconds| moment(seconds / step * step));
        let series = self.prometheus.query_range(expression, start, end, times.interval)?.into_iter();
        let series = series.filter(|(_, values)| values.iter().any(|(_, value)| value.is_finite()));
        Ok(series.map(|(labels, _)| labels).collect())
    }

    fn times(&self, dashboard: &Dashboard, panel: Panel<'_>, target: Target<'_>, range: &str) -> Result<Times> {
        let time = &dashboard.json["time"];
        let range = match (text(&panel.0["timeFrom"]), range) {
            ("", "") => {
                let from = text(&time["from"]).strip_prefix("now-").filter(|_| time["to"] == "now");
                duration(from.with_context(|| format!("the time range {time} is not known here"))?)?
            }
            ("", range) => duration(range)?,
            (own, _) => duration(own)?,
        };
        let mut minima = [target.0, panel.0].into_iter().map(|of| text(&of["interval"]));
        let minimum = minima.find(|text| !text.is_empty()).map(duration).transpose()?;
        let columns = panel.0["gridPos"]["w"].as_u64().unwrap_or(24);
        let points = panel.0["maxDataPoints"].as_u64().unwrap_or(columns * POINTS_OF_A_COLUMN).max(1);
        let (_, end) = self.span;
        Ok(Times::new((end - range.as_secs(), end), points, self.scrape_interval, minimum))
    }
}

fn duration(text: &str) -> Result<Duration> {
    parse_duration(text).map_err(|error| anyhow!("{text:?}: {error}"))
}

/// The fields that legends, transformations, overrides and sorting of a panel name, and that no answer has.
pub(crate) fn unknown_fields(panel: Panel<'_>, answers: &[(Target<'_>, Vec<Labels>)]) -> BTreeSet<String> {
    let legend = Regex::new(r"\{\{\s*(\w+)\s*\}\}").expect("a regular expression");
    let mut unknown = BTreeSet::new();
    let mut known = BTreeSet::from(["Time".to_owned()]);
    for (target, series) in answers {
        known.insert(if answers.len() == 1 { "Value".to_owned() } else { format!("Value #{}", target.reference()) });
        for labels in series {
            known.extend(labels.keys().cloned());
            let named = legend.captures_iter(target.legend()).map(|found| found[1].to_owned());
            unknown.extend(named.filter(|label| !labels.contains_key(label)));
            let label = |found: &Captures<'_>| labels.get(&found[1]).cloned().unwrap_or_default();
            known.insert(legend.replace_all(target.legend(), label).into_owned());
        }
    }
    // The fields of a matrix are values of labels; without an answer they are not known.
    let is_matrix = panel.transformations().iter().any(|one| one["id"] == "groupingToMatrix");
    if is_matrix || answers.iter().any(|(_, series)| series.is_empty()) {
        return unknown;
    }
    let mut wanted = Vec::new();
    for transformation in panel.transformations() {
        let options = &transformation["options"];
        wanted.extend(options["byField"].as_str());
        for key in ["excludeByName", "indexByName", "renameByName"] {
            wanted.extend(options[key].as_object().into_iter().flatten().map(|(name, _)| name.as_str()));
        }
        let renamed = options["renameByName"].as_object().into_iter().flatten();
        known.extend(renamed.map(|(_, name)| text(name).to_owned()));
    }
    wanted.extend(list(&panel.0["options"]["sortBy"]).iter().map(|sort| text(&sort["displayName"])));
    let mut patterns = Vec::new();
    for field in panel.overrides() {
        let named = text(&field["matcher"]["options"]);
        match text(&field["matcher"]["id"]) {
            "byName" => wanted.push(named),
            "byRegexp" => patterns.push(named),
            _ => {}
        }
    }
    // Joined frames number the fields that several have.
    let number = Regex::new(r" \d+$").expect("a regular expression");
    let is_known = |name: &&str| known.contains(*name) || known.contains(&*number.replace(name, ""));
    unknown.extend(wanted.into_iter().filter(|name| !is_known(name)).map(str::to_owned));
    let is_matched = |pattern: &&str| {
        let regex = Regex::new(pattern.trim_matches('/'));
        regex.is_ok_and(|regex| known.iter().any(|name| regex.is_match(name)))
    };
    unknown.extend(patterns.into_iter().filter(|pattern| !is_matched(pattern)).map(str::to_owned));
    unknown
}
