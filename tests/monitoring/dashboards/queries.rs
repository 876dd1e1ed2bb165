//! Everything that a dashboard asks, asked of a real Prometheus: each query with all variables at All, and with each value
//! of each variable while the others are at All.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use genv_tests::history::Past;
use genv_tests::metrics::Labels;

use crate::dashboards::absences::{self, Absence};
use crate::dashboards::choices::{self, Case};
use crate::dashboards::interpolate::{Choice, Times, duration, interpolate};
use crate::dashboards::{fields, promql};
use genv_tests::dashboard::{Dashboard, Panel, Target, text};

/// Pixels of one of the 24 columns of a panel, on a screen of 1,440: at most so many points are drawn.
const POINTS_OF_A_COLUMN: u64 = 60;

/// A lab's past, and what it has answered.
pub(crate) struct Questions<'a> {
    past: &'a Past,
    scrape_interval: Duration,
    asked: RefCell<HashMap<String, Vec<Labels>>>,
}

/// A query that returned nothing.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    pub(crate) panel: String,
    pub(crate) target: String,
    /// The variable (or `range`) and value that were chosen; none: all at All.
    pub(crate) chosen: Option<(String, String)>,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(past: &'a Past, scrape_interval: Duration) -> Self {
        Self { past, scrape_interval, asked: RefCell::default() }
    }

    /// What is wrong with the answers to a dashboard, where `absences` says what may be absent.
    ///
    /// # Errors
    /// Prometheus does not answer, or the dashboard asks in a way that is not known here.
    pub(crate) fn faults(&self, dashboard: &Dashboard, absences: &[Absence]) -> Result<Vec<String>> {
        let cases = choices::cases(dashboard, self)?;
        let job_cases = cases.iter().filter(|case| case.is_of("job")).count();
        let mut faults = Vec::new();
        let mut silences = Vec::new();
        for panel in dashboard.queried_panels() {
            let mut with_all = Vec::new();
            for target in panel.targets() {
                let place = format!("panel '{}', target {}", panel.name(), target.reference());
                for case in &cases {
                    let answer = self.answer(dashboard, panel, target, case);
                    let answer =
                        answer.with_context(|| format!("{}, {place}, {:?}", dashboard.title(), case.chosen))?;
                    if answer.is_empty() {
                        silences.push(Silence {
                            panel: panel.name(),
                            target: target.reference().to_owned(),
                            chosen: case.chosen.clone(),
                        });
                    }
                    let stray = case.stray(&answer).into_iter();
                    faults.extend(stray.map(|stray| format!("{place}: {stray}")));
                    if case.chosen.is_none() {
                        with_all.push((target, answer));
                    } else if job_cases == 1
                        && case.is_of("job")
                        && with_all.last().is_some_and(|(_, all)| *all != answer)
                    {
                        faults.push(format!("{place}: tells another thing with the only job chosen than with All"));
                    }
                }
            }
            let absent = absences::fields(dashboard, panel);
            let wrong = fields::faults(panel, &with_all, &absent).into_iter();
            faults.extend(wrong.map(|what| format!("panel '{}': {what}", panel.name())));
        }
        faults.extend(self.unknown_selectors(dashboard, &cases[0].choice)?);
        faults.extend(absences::judge(dashboard.uid(), &silences, absences));
        let faults = faults.into_iter();
        Ok(faults.map(|fault| format!("dashboard '{}', {fault}", dashboard.title())).collect())
    }

    fn answer(&self, dashboard: &Dashboard, panel: Panel<'_>, target: Target<'_>, case: &Case) -> Result<Vec<Labels>> {
        let times = self.times(dashboard, panel, target, case)?;
        let expression = interpolate(target.expression(), &case.choice, &times);
        let expression = expression.map_err(|error| anyhow!(error))?;
        self.ask(&expression, &times, target.is_instant())
    }

    /// The metrics that have a hostname.
    ///
    /// # Errors
    /// Prometheus does not answer.
    pub(crate) fn metrics_with_hostname(&self) -> Result<BTreeSet<String>> {
        let names = self.values("__name__", r#"{hostname!=""}"#)?;
        Ok(names.into_iter().collect())
    }

    /// All times of which anything is known.
    ///
    /// # Errors
    /// They are before 1970.
    pub(crate) fn whole_past(&self) -> Result<Times> {
        Ok(Times::new(self.span()?, 1000, self.scrape_interval, None))
    }

    /// The values of a label of the series that match.
    ///
    /// # Errors
    /// Prometheus does not answer.
    pub(crate) fn values(&self, label: &str, matching: &str) -> Result<Vec<String>> {
        let (start, end) = self.span()?;
        let parameters = [("match[]", matching), ("start", &start.to_string()), ("end", &end.to_string())];
        let answer = self.past.prometheus.ask(&format!("/api/v1/label/{label}/values"), &parameters)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Selectors that select nothing in all the past: of a metric or with a value of a label that does not exist. The rest of
    /// an expression may hide that.
    fn unknown_selectors(&self, dashboard: &Dashboard, all: &Choice) -> Result<Vec<String>> {
        let (start, end) = self.span()?;
        let (start, end) = (start.to_string(), end.to_string());
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                let expression = promql::parse(target.expression(), dashboard);
                let expression = expression.map_err(|error| anyhow!(error))?;
                for selector in promql::selectors(&expression) {
                    let place = format!("panel '{}', target {}", panel.name(), target.reference());
                    places.entry(selector.series(all)).or_insert(place);
                }
            }
        }
        let mut faults = Vec::new();
        for (selector, place) in places {
            let parameters = [("match[]", &*selector), ("start", &start), ("end", &end)];
            let series = self.past.prometheus.ask("/api/v1/series", &parameters)?;
            if series.as_array().is_none_or(Vec::is_empty) {
                faults.push(format!("{place}: {selector} selects nothing: there is no such metric or label value"));
            }
        }
        Ok(faults)
    }

    /// Labels of the series with a value that is a number.
    fn ask(&self, expression: &str, times: &Times, instant: bool) -> Result<Vec<Labels>> {
        let key = format!("{instant} {times:?} {expression}");
        if let Some(answer) = self.asked.borrow().get(&key) {
            return Ok(answer.clone());
        }
        let moment = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let prometheus = &self.past.prometheus;
        let answer: Vec<Labels> = if instant {
            let answer = prometheus.query_at(expression, moment(times.end))?.into_iter();
            answer.filter(|(_, value)| value.is_finite()).map(|(labels, _)| labels).collect()
        } else {
            // Grafana asks for whole steps of Unix time.
            let step = times.interval.as_secs().max(1);
            let whole = |seconds| moment(seconds / step * step);
            let series =
                prometheus.query_range(expression, whole(times.start), whole(times.end), times.interval)?.into_iter();
            series
                .filter(|(_, values)| values.iter().any(|(_, value)| value.is_finite()))
                .map(|(labels, _)| labels)
                .collect()
        };
        self.asked.borrow_mut().insert(key, answer.clone());
        Ok(answer)
    }

    /// For which times a target is asked.
    fn times(&self, dashboard: &Dashboard, panel: Panel<'_>, target: Target<'_>, case: &Case) -> Result<Times> {
        let known = |text: &str| duration(text).map_err(|error| anyhow!(error));
        let time = &dashboard.json["time"];
        let range = match (text(&panel.0["timeFrom"]), case.range) {
            ("", Some(range)) => range,
            ("", None) => {
                let from = text(&time["from"]).strip_prefix("now-");
                let from = from.filter(|_| time["to"] == "now");
                known(from.with_context(|| format!("the time range {time} is not known here"))?)?
            }
            (own, _) => known(own)?,
        };
        let mut minima = [target.0, panel.0].into_iter().map(|of| text(&of["interval"]));
        let minimum = minima.find(|text| !text.is_empty()).map(known).transpose()?;
        let columns = panel.0["gridPos"]["w"].as_u64().unwrap_or(24);
        let points = panel.0["maxDataPoints"].as_u64();
        let points = points.unwrap_or(columns * POINTS_OF_A_COLUMN).max(1);
        let (_, end) = self.span()?;
        let times = (end - range.as_secs(), end);
        Ok(Times::new(times, points, self.scrape_interval, minimum))
    }

    fn span(&self) -> Result<(u64, u64)> {
        let seconds = |moment: SystemTime| Ok::<_, anyhow::Error>(moment.duration_since(UNIX_EPOCH)?.as_secs());
        Ok((seconds(self.past.from())?, seconds(self.past.end())?))
    }
}
