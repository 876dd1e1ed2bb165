//! Everything that a dashboard asks, asked of a real Prometheus: each query with all variables at All, and with each value
//! of each variable while the others are at All.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use genv_tests::history::Past;
use genv_tests::metrics::Labels;
use promql_parser::parser;

use crate::absences::{self, Absence};
use crate::dashboard::{Dashboard, Panel, Target, Variable, text};
use crate::interpolate::{Choice, Chosen, Times, duration, interpolate, label_values};
use crate::{fields, promql};

/// Pixels of one of the 24 columns of a panel, on a screen of 1,440: at most so many points are drawn.
const POINTS_OF_A_COLUMN: u64 = 60;

/// Time ranges that people choose, beside the one with which a dashboard opens.
const RANGES: [&str; 3] = ["5m", "24h", "30d"];

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

/// What is chosen when a dashboard is looked at.
struct Case {
    /// What distinguishes it from the one with everything at All.
    chosen: Option<(String, String)>,
    choice: Choice,
    /// Instead of the range with which the dashboard opens.
    range: Option<Duration>,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(past: &'a Past, scrape_interval: Duration) -> Self {
        Self {
            past,
            scrape_interval,
            asked: RefCell::default(),
        }
    }

    /// What is wrong with the answers to a dashboard, where `absences` says what may be absent.
    ///
    /// # Errors
    /// Prometheus does not answer, or the dashboard asks in a way that is not known here.
    pub(crate) fn faults(
        &self,
        dashboard: &Dashboard,
        absences: &[Absence],
    ) -> Result<Vec<String>> {
        let cases = self.cases(dashboard)?;
        let mut faults = Vec::new();
        let mut silences = Vec::new();
        for panel in dashboard.queried_panels() {
            let mut with_all = Vec::new();
            for target in panel.targets() {
                for case in &cases {
                    let answer = self.answer(dashboard, panel, target, case);
                    let answer = answer.with_context(|| {
                        let place = (panel.name(), target.reference());
                        format!("{}, {place:?}, {:?}", dashboard.title(), case.chosen)
                    })?;
                    if answer.is_empty() {
                        silences.push(Silence {
                            panel: panel.name(),
                            target: target.reference().to_owned(),
                            chosen: case.chosen.clone(),
                        });
                    }
                    if case.chosen.is_none() {
                        with_all.push((target, answer));
                    }
                }
            }
            let wrong = fields::faults(panel, &with_all, &absences::fields(dashboard, panel));
            let wrong = wrong.into_iter();
            faults.extend(wrong.map(|what| format!("panel '{}': {what}", panel.name())));
        }
        faults.extend(self.unknown_selectors(dashboard, &cases[0])?);
        faults.extend(absences::judge(dashboard.uid(), &silences, absences));
        let faults = faults.into_iter();
        Ok(faults
            .map(|fault| format!("dashboard '{}', {fault}", dashboard.title()))
            .collect())
    }

    fn answer(
        &self,
        dashboard: &Dashboard,
        panel: Panel<'_>,
        target: Target<'_>,
        case: &Case,
    ) -> Result<Vec<Labels>> {
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

    /// Everything at All; then each value of each variable; then other time ranges.
    fn cases(&self, dashboard: &Dashboard) -> Result<Vec<Case>> {
        let mut all = Choice::new();
        let mut values = Vec::new();
        for variable in dashboard.variables() {
            if variable.kind() == "datasource" {
                continue;
            }
            let name = variable.name().to_owned();
            let found = self.variable(variable, &all)?;
            values.extend(found.into_iter().map(|value| (name.clone(), value)));
            let chosen = if variable.0["includeAll"] == true {
                Chosen::All(text(&variable.0["allValue"]).to_owned())
            } else {
                Chosen::Plain(variable.current().to_owned())
            };
            all.insert(name, chosen);
        }
        let case = |name: &str, value: &str, choice: Choice| Case {
            chosen: Some((name.to_owned(), value.to_owned())),
            choice,
            range: None,
        };
        let mut cases = vec![Case {
            chosen: None,
            choice: all.clone(),
            range: None,
        }];
        for (name, value) in values {
            let only = match all[&name] {
                Chosen::All(_) | Chosen::Values(_) => Chosen::Values(vec![value.clone()]),
                Chosen::Plain(_) => Chosen::Plain(value.clone()),
            };
            let mut choice = all.clone();
            choice.insert(name.clone(), only);
            cases.push(case(&name, &value, choice));
        }
        for range in RANGES {
            let of_range = duration(range).map_err(|error| anyhow!(error))?;
            cases.push(Case {
                range: Some(of_range),
                ..case("range", range, all.clone())
            });
        }
        Ok(cases)
    }

    /// The values of a variable, where the earlier ones are chosen so.
    fn variable(&self, variable: Variable<'_>, chosen: &Choice) -> Result<Vec<String>> {
        let context = || format!("the variable {}", variable.name());
        let values = match variable.kind() {
            "query" => {
                let (selector, label) =
                    label_values(variable.query()).map_err(|error| anyhow!(error))?;
                let (start, end) = self.span()?;
                let times = Times::new((start, end), 1000, self.scrape_interval, None);
                let selector =
                    interpolate(selector, chosen, &times).map_err(|error| anyhow!(error));
                self.values(label, &selector.with_context(context)?)?
            }
            "custom" | "interval" => {
                let options = variable.query().split(',');
                options
                    .map(|option| {
                        option
                            .rsplit(" : ")
                            .next()
                            .unwrap_or(option)
                            .trim()
                            .to_owned()
                    })
                    .collect()
            }
            other => {
                return Err(anyhow!("its type {other:?} is not known to this test"))
                    .with_context(context);
            }
        };
        if values.is_empty() {
            return Err(anyhow!("it has no value")).with_context(context);
        }
        Ok(values)
    }

    fn values(&self, label: &str, matching: &str) -> Result<Vec<String>> {
        let (start, end) = self.span()?;
        let parameters = [
            ("match[]", matching),
            ("start", &start.to_string()),
            ("end", &end.to_string()),
        ];
        let answer = self
            .past
            .prometheus
            .ask(&format!("/api/v1/label/{label}/values"), &parameters)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Selectors that select nothing in all the past: of a metric or with a value of a label that does not exist. The rest of
    /// an expression may hide that.
    fn unknown_selectors(&self, dashboard: &Dashboard, all: &Case) -> Result<Vec<String>> {
        let (start, end) = self.span()?;
        let (start, end) = (start.to_string(), end.to_string());
        let mut places: BTreeMap<String, String> = BTreeMap::new();
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                let times = self.times(dashboard, panel, target, all)?;
                let expression = interpolate(target.expression(), &all.choice, &times)
                    .map_err(|error| anyhow!(error))?;
                let expression = parser::parse(&expression).map_err(|error| anyhow!(error))?;
                for selector in promql::selectors(&expression) {
                    let place = format!("panel '{}', target {}", panel.name(), target.reference());
                    places.entry(selector.series()).or_insert(place);
                }
            }
        }
        let mut faults = Vec::new();
        for (selector, place) in places {
            let parameters = [("match[]", &*selector), ("start", &start), ("end", &end)];
            let series = self.past.prometheus.ask("/api/v1/series", &parameters)?;
            if series.as_array().is_none_or(Vec::is_empty) {
                faults.push(format!(
                    "{place}: {selector} selects nothing: there is no such metric or label value"
                ));
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
            let answer = prometheus
                .query_at(expression, moment(times.end))?
                .into_iter();
            answer
                .filter(|(_, value)| value.is_finite())
                .map(|(labels, _)| labels)
                .collect()
        } else {
            // Grafana asks for whole steps of Unix time.
            let step = times.interval.as_secs();
            let whole = |seconds| moment(seconds / step * step);
            let series = prometheus
                .query_range(
                    expression,
                    whole(times.start),
                    whole(times.end),
                    times.interval,
                )?
                .into_iter();
            series
                .filter(|(_, values)| values.iter().any(|(_, value)| value.is_finite()))
                .map(|(labels, _)| labels)
                .collect()
        };
        self.asked.borrow_mut().insert(key, answer.clone());
        Ok(answer)
    }

    /// For which times a target is asked.
    fn times(
        &self,
        dashboard: &Dashboard,
        panel: Panel<'_>,
        target: Target<'_>,
        case: &Case,
    ) -> Result<Times> {
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
        let mut minima = [target.0, panel.0]
            .into_iter()
            .map(|of| text(&of["interval"]));
        let minimum = minima
            .find(|text| !text.is_empty())
            .map(known)
            .transpose()?;
        let columns = panel.0["gridPos"]["w"].as_u64().unwrap_or(24);
        let points = panel.0["maxDataPoints"].as_u64();
        let points = points.unwrap_or(columns * POINTS_OF_A_COLUMN).max(1);
        let (_, end) = self.span()?;
        let times = (end - range.as_secs(), end);
        Ok(Times::new(times, points, self.scrape_interval, minimum))
    }

    fn span(&self) -> Result<(u64, u64)> {
        let seconds = |moment: SystemTime| {
            Ok::<_, anyhow::Error>(moment.duration_since(UNIX_EPOCH)?.as_secs())
        };
        Ok((seconds(self.past.from())?, seconds(self.past.end())?))
    }
}
