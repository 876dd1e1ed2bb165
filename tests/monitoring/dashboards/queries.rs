//! Everything that a dashboard asks, asked of a real Prometheus: each query with all variables at All, with each value of
//! each variable while the others are at All, and for other time ranges.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use genv_tests::dashboard::{Dashboard, Panel, Target, Variable, list, text};
use genv_tests::metrics::Labels;
use genv_tests::prometheus::Prometheus;
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, VectorSelector};
use promql_parser::util::parse_duration;
use regex::{Captures, Regex};

use crate::dashboards::interpolate::{Choice, Times, interpolate, only};
use crate::dashboards::promql;

/// Pixels of one of the 24 columns of a panel, on a screen of 1,440: at most so many points are drawn.
const POINTS_OF_A_COLUMN: u64 = 60;

/// Time ranges that people choose, beside the one with which a dashboard opens.
const RANGES: [&str; 3] = ["5m", "24h", "30d"];

/// What shows nothing in five minutes without an error.
const OF_ERRORS: [&str; 2] = ["XID errors and who held the GPU", "XID errors in the time range"];

/// A field that the demonstration has no data for: only alerts about exporters have it, and none is down.
const ABSENT: (&str, &str) = ("What fires now", "instance");

/// A Prometheus that is asked about a time, and what it has answered.
pub(crate) struct Questions<'a> {
    prometheus: &'a Prometheus,
    /// In seconds of Unix time.
    span: (u64, u64),
    scrape_interval: Duration,
    asked: RefCell<HashMap<String, Vec<Labels>>>,
}

/// What is chosen when a dashboard is looked at.
struct Case {
    /// The variable, or `range`, whose value distinguishes it from the case with everything at All; that has neither.
    variable: String,
    value: String,
    choice: Choice,
    /// Instead of the range with which the dashboard opens.
    range: Option<Duration>,
}

impl Case {
    /// Whether each query of a panel has an answer. With one user or model the demonstration need not have one.
    fn is_answered(&self, panel: Panel<'_>) -> bool {
        match self.variable.as_str() {
            "" => true,
            // The demonstration has one job.
            "job" => true,
            "range" => self.value != "5m" || !OF_ERRORS.contains(&panel.title()),
            _ => false,
        }
    }

    /// A series of an answer that is of another value than the one that is chosen. A lab's enforcers have a job beside
    /// that of its exporters, and with a GPU its parts are chosen.
    fn stray<'a>(&self, answer: &'a [Labels]) -> Option<&'a String> {
        let beside = match self.variable.as_str() {
            "job" => "-enforcer",
            "index" => ":",
            _ => "",
        };
        let belongs = |found: &str| {
            let more = found.strip_prefix(&self.value);
            more.is_some_and(|more| more.is_empty() || !beside.is_empty() && more.starts_with(beside))
        };
        answer.iter().filter_map(|labels| labels.get(&self.variable)).find(|found| !belongs(found))
    }
}

impl<'a> Questions<'a> {
    /// # Errors
    /// The time is before 1970.
    pub(crate) fn new(
        prometheus: &'a Prometheus,
        (from, end): (SystemTime, SystemTime),
        scrape_interval: Duration,
    ) -> Result<Self> {
        let span = (from.duration_since(UNIX_EPOCH)?.as_secs(), end.duration_since(UNIX_EPOCH)?.as_secs());
        Ok(Self { prometheus, span, scrape_interval, asked: RefCell::default() })
    }

    /// What is wrong with the answers to a dashboard.
    ///
    /// # Errors
    /// Prometheus does not answer, or the dashboard asks in a way that is not known here.
    pub(crate) fn faults(&self, dashboard: &Dashboard) -> Result<Vec<String>> {
        let cases = self.cases(dashboard)?;
        let mut faults = Vec::new();
        for panel in dashboard.queried_panels() {
            let mut with_all = Vec::new();
            for target in panel.targets() {
                let place = format!("{}, {} / {}", dashboard.title(), panel.name(), target.reference());
                for case in &cases {
                    let with = format!("{place}, with {}={}", case.variable, case.value);
                    let answer = self.answer(dashboard, panel, target, case).with_context(|| with.clone())?;
                    if answer.is_empty() && case.is_answered(panel) {
                        faults.push(format!("{with}: returns nothing"));
                    }
                    faults.extend(case.stray(&answer).map(|stray| format!("{with}: tells of {stray}")));
                    if case.variable.is_empty() {
                        with_all.push((target, answer));
                    }
                }
            }
            let unknown = unknown_fields(panel, &with_all).into_iter();
            let unknown = unknown.filter(|field| (panel.title(), field.as_str()) != ABSENT);
            faults.extend(unknown.map(|field| format!("{}, {}: no field {field}", dashboard.title(), panel.name())));
        }
        faults.extend(self.unknown_selectors(dashboard, &cases[0])?);
        Ok(faults)
    }

    /// The values of a label of the series that match.
    ///
    /// # Errors
    /// Prometheus does not answer.
    pub(crate) fn values(&self, label: &str, matching: &str) -> Result<Vec<String>> {
        let (start, end) = self.span;
        let parameters = [("match[]", matching), ("start", &start.to_string()), ("end", &end.to_string())];
        Ok(serde_json::from_value(self.prometheus.ask(&format!("/api/v1/label/{label}/values"), &parameters)?)?)
    }

    /// The metrics that have a hostname.
    ///
    /// # Errors
    /// Prometheus does not answer.
    pub(crate) fn metrics_with_hostname(&self) -> Result<BTreeSet<String>> {
        Ok(self.values("__name__", r#"{hostname!=""}"#)?.into_iter().collect())
    }

    /// Everything at All; then each value of each variable, as Prometheus tells them; then other time ranges. A variable that
    /// offers no All is at all of its values while the others are tried: what is asked of one host is to be right of any.
    fn cases(&self, dashboard: &Dashboard) -> Result<Vec<Case>> {
        let mut all = Choice::new();
        let mut chosen = Vec::new();
        for variable in dashboard.variables().into_iter().filter(|variable| variable.kind() == "query") {
            let name = variable.name().to_owned();
            let values = self.values_of(variable, &all).with_context(|| format!("the variable {name}"))?;
            chosen.extend(values.into_iter().map(|value| (name.clone(), value)));
            all.insert(name, ".+".to_owned());
        }
        let case = |variable: &str, value: &str, choice: Choice| Case {
            variable: variable.to_owned(),
            value: value.to_owned(),
            choice,
            range: None,
        };
        let mut cases = vec![case("", "", all.clone())];
        for (name, value) in chosen {
            let mut choice = all.clone();
            choice.insert(name.clone(), only(&value));
            cases.push(case(&name, &value, choice));
        }
        for range in RANGES {
            cases.push(Case { range: Some(duration(range)?), ..case("range", range, all.clone()) });
        }
        Ok(cases)
    }

    /// The values of a variable, where the earlier ones are chosen so.
    fn values_of(&self, variable: Variable<'_>, chosen: &Choice) -> Result<Vec<String>> {
        let query = variable.query().strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = query.and_then(|query| query.rsplit_once(", ")).context("it asks no label_values")?;
        let whole = Times::new(self.span, 1000, self.scrape_interval, None);
        let values = self.values(label, &interpolate(selector, chosen, &whole)?)?;
        ensure!(!values.is_empty(), "it has no value");
        Ok(values)
    }

    /// Selectors that select nothing in all the past: of a metric or with a value of a label that does not exist. The rest of
    /// an expression may hide that.
    fn unknown_selectors(&self, dashboard: &Dashboard, all: &Case) -> Result<Vec<String>> {
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                let times = self.times(dashboard, panel, target, all)?;
                let expression = interpolate(target.expression(), &all.choice, &times)?;
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

    fn answer(&self, dashboard: &Dashboard, panel: Panel<'_>, target: Target<'_>, case: &Case) -> Result<Vec<Labels>> {
        let times = self.times(dashboard, panel, target, case)?;
        let expression = interpolate(target.expression(), &case.choice, &times)?;
        self.ask(&expression, &times, target.is_instant())
    }

    /// Labels of the series with a value that is a number.
    fn ask(&self, expression: &str, times: &Times, instant: bool) -> Result<Vec<Labels>> {
        let key = format!("{instant} {times:?} {expression}");
        if let Some(answer) = self.asked.borrow().get(&key) {
            return Ok(answer.clone());
        }
        let moment = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let answer: Vec<Labels> = if instant {
            let answer = self.prometheus.query_at(expression, moment(times.end))?.into_iter();
            answer.filter(|(_, value)| value.is_finite()).map(|(labels, _)| labels).collect()
        } else {
            // Grafana asks for whole steps of Unix time.
            let step = times.interval.as_secs().max(1);
            let [start, end] = [times.start, times.end].map(|seconds| moment(seconds / step * step));
            let series = self.prometheus.query_range(expression, start, end, times.interval)?.into_iter();
            let series = series.filter(|(_, values)| values.iter().any(|(_, value)| value.is_finite()));
            series.map(|(labels, _)| labels).collect()
        };
        self.asked.borrow_mut().insert(key, answer.clone());
        Ok(answer)
    }

    /// For which times a target is asked.
    fn times(&self, dashboard: &Dashboard, panel: Panel<'_>, target: Target<'_>, case: &Case) -> Result<Times> {
        let time = &dashboard.json["time"];
        let range = match (text(&panel.0["timeFrom"]), case.range) {
            ("", Some(range)) => range,
            ("", None) => {
                let from = text(&time["from"]).strip_prefix("now-").filter(|_| time["to"] == "now");
                duration(from.with_context(|| format!("the time range {time} is not known here"))?)?
            }
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

/// A duration as it stands in the options of a panel or in a time range: `10s`, `7d`.
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
