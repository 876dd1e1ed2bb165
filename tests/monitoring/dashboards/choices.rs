//! What people choose when they look at a dashboard.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use genv_tests::metrics::Labels;

use crate::dashboards::interpolate::{Choice, Chosen, duration, interpolate, label_values};
use crate::dashboards::queries::Questions;
use genv_tests::dashboard::{Dashboard, Variable, text};

/// Time ranges that people choose, beside the one with which a dashboard opens.
const RANGES: [&str; 3] = ["5m", "24h", "30d"];

/// What is chosen when a dashboard is looked at.
pub(crate) struct Case {
    /// What distinguishes it from the one with everything at All.
    pub(crate) chosen: Option<(String, String)>,
    pub(crate) choice: Choice,
    /// Instead of the range with which the dashboard opens.
    pub(crate) range: Option<Duration>,
}

impl Case {
    /// Whether a value of this variable is chosen.
    pub(crate) fn is_of(&self, variable: &str) -> bool {
        let chosen = self.chosen.as_ref();
        chosen.is_some_and(|(name, _)| name == variable)
    }

    /// A series of an answer that is of another value than the one that is chosen. A lab's enforcers have a job beside
    /// that of its exporters, and with a GPU its parts are chosen.
    pub(crate) fn stray(&self, answer: &[Labels]) -> Option<String> {
        let (variable, value) = self.chosen.as_ref()?;
        let mut values = answer.iter().filter_map(|labels| labels.get(variable));
        let of_enforcer = (variable == "job").then(|| format!("{value}-enforcer"));
        let part = (variable == "index").then(|| format!("{value}:"));
        let is_part = |found: &str| part.as_ref().is_some_and(|gpu| found.starts_with(gpu));
        let belongs = |found: &String| found == value || Some(found) == of_enforcer.as_ref() || is_part(found);
        let stray = values.find(|found| !belongs(found))?;
        Some(format!("tells of {variable}={stray} although {value} is chosen"))
    }
}

/// Everything at All; then each value of each variable, as Prometheus tells them; then other time ranges. A variable that
/// offers no All, of which one value is chosen at a time, is at all of them while the others are tried: what is asked of
/// one host is to be right of any.
///
/// # Errors
/// Prometheus does not answer, or a variable is of a kind that is not known here.
pub(crate) fn cases(dashboard: &Dashboard, questions: &Questions<'_>) -> Result<Vec<Case>> {
    let mut all = Choice::new();
    let mut values = Vec::new();
    for variable in dashboard.variables() {
        if variable.kind() == "datasource" {
            continue;
        }
        let name = variable.name().to_owned();
        let found = values_of(variable, &all, questions);
        let found = found.with_context(|| format!("the variable {name}"))?;
        values.extend(found.into_iter().map(|value| (name.clone(), value)));
        let all_of_it = match text(&variable.0["allValue"]) {
            "" => ".+",
            own => own,
        };
        all.insert(name, Chosen::All(all_of_it.to_owned()));
    }
    let case = |name: &str, value: &str, choice: Choice| Case {
        chosen: Some((name.to_owned(), value.to_owned())),
        choice,
        range: None,
    };
    let mut cases = vec![Case { chosen: None, choice: all.clone(), range: None }];
    for (name, value) in values {
        let mut choice = all.clone();
        choice.insert(name.clone(), Chosen::Values(vec![value.clone()]));
        cases.push(case(&name, &value, choice));
    }
    for range in RANGES {
        let of_range = duration(range).map_err(|error| anyhow!(error))?;
        cases.push(Case { range: Some(of_range), ..case("range", range, all.clone()) });
    }
    Ok(cases)
}

/// The values of a variable, where the earlier ones are chosen so.
fn values_of(variable: Variable<'_>, chosen: &Choice, questions: &Questions<'_>) -> Result<Vec<String>> {
    ensure!(variable.kind() == "query", "this test knows variables that are queries");
    let (selector, label) = label_values(variable.query()).map_err(|error| anyhow!(error))?;
    let selector = interpolate(selector, chosen, &questions.whole_past()?);
    let values = questions.values(label, &selector.map_err(|error| anyhow!(error))?)?;
    ensure!(!values.is_empty(), "it has no value");
    Ok(values)
}
