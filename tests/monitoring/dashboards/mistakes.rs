//! What the questions to Prometheus find out: a good dashboard, asked about two hours, with one thing wrong; and whether
//! Prometheus understands choices as they are meant.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::json;

use crate::dashboards::interpolate::{Choice, Chosen, interpolate};
use crate::dashboards::queries::Questions;
use crate::dashboards::refused::{STAT, TABLE, TIMESERIES, example};
use crate::dashboards::{SCRAPE_INTERVAL, demo};
use genv_tests::dashboard::Dashboard;

/// A panel, what stands in its first expression, what stands there instead, and all that is then told.
type Mistake = (usize, &'static str, &'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    // A metric that was renamed.
    (
        TIMESERIES,
        "utilization_ratio",
        "utilisation_ratio",
        &[
            r#"panel 'Utilization', target A: genv_device_utilisation_ratio{hostname=~".+",job=~".+"} selects nothing: there is no such metric or label value"#,
            "panel 'Utilization', target A: returns nothing with everything at All",
        ],
    ),
    // One where the rest of the expression hides it.
    (
        TIMESERIES,
        "avg by",
        r#"avg by (hostname) (genv_device_load{job=~"$job"}) or avg by"#,
        &[
            r#"panel 'Utilization', target A: genv_device_load{job=~".+"} selects nothing: there is no such metric or label value"#,
        ],
    ),
    // A value of a label that there is not.
    (
        TIMESERIES,
        "{job",
        r#"{index="eight", job"#,
        &[
            r#"panel 'Utilization', target A: genv_device_utilization_ratio{hostname=~".+",index="eight",job=~".+"} selects nothing: there is no such metric or label value"#,
            "panel 'Utilization', target A: returns nothing with everything at All",
        ],
    ),
    // One that is excluded, and there is no other.
    (
        TIMESERIES,
        "{job",
        r#"{index!~".+", job"#,
        &[
            r#"panel 'Utilization', target A: genv_device_utilization_ratio{hostname=~".+",index!~".+",job=~".+"} selects nothing: there is no such metric or label value"#,
            "panel 'Utilization', target A: returns nothing with everything at All",
        ],
    ),
    // A choice that is not heeded.
    (
        TIMESERIES,
        r#", hostname=~"$hostname""#,
        "",
        &[
            "panel 'Utilization', target A: tells of hostname=gpu02 although gpu01 is chosen",
            "panel 'Utilization', target A: tells of hostname=gpu01 although gpu02 is chosen",
        ],
    ),
    // Labels that an answer lacks.
    (
        STAT,
        "by (model)",
        "by (hostname)",
        &[r#"panel 'GPUs': target A: the legend "{{model}}" names model, which a series lacks"#],
    ),
    (TABLE, "by (username)", "by (user)", &[r#"panel 'Who holds what': joins by "username", which a series lacks"#]),
    // What is not a number is no answer.
    (
        TIMESERIES,
        "avg by",
        "0 / 0 * avg by",
        &["panel 'Utilization', target A: returns nothing with everything at All"],
    ),
];

#[test]
fn mistakes_that_only_data_shows_are_told() -> Result<()> {
    let past = demo("prometheus-3", Duration::from_secs(7200))?;
    let questions = Questions::new(&past, SCRAPE_INTERVAL);
    let told = |dashboard: &Dashboard| -> Result<Vec<String>> {
        let mut faults = questions.faults(dashboard, &[])?;
        // Single values have their absences in the example, too: dave has no environment.
        faults.retain(|fault| !fault.contains("returns nothing with") || fault.contains(" at All"));
        Ok(faults)
    };
    assert_eq!(told(&example())?, [""; 0]);
    for (panel, what, with, expected) in MISTAKES {
        let mut dashboard = example();
        let expression = &mut dashboard.json["panels"][*panel]["targets"][0]["expr"];
        let changed = expression.as_str().map(|expression| expression.replace(what, with));
        assert_ne!(expression.as_str(), changed.as_deref(), "{what} does not occur");
        *expression = json!(changed);
        let expected: Vec<_> = expected.iter().map(|fault| format!("dashboard 'Example', {fault}")).collect();
        assert_eq!(told(&dashboard)?, expected);
    }
    Ok(())
}

#[test]
fn chosen_values_select_themselves_whatever_their_letters() -> Result<()> {
    let past = demo("prometheus-3", Duration::from_secs(600))?;
    let questions = Questions::new(&past, SCRAPE_INTERVAL);
    let chosen = ["(none)", "alice"].map(str::to_owned);
    let choice = Choice::from([("username".to_owned(), Chosen::Values(chosen.to_vec()))]);
    let selector = r#"genv_user_energy_joules_total{username=~"$username"}"#;
    let selector = interpolate(selector, &choice, &questions.whole_past()?);
    let selector = selector.map_err(|error| anyhow!(error))?;
    assert_eq!(questions.values("username", &selector)?, chosen);
    Ok(())
}
