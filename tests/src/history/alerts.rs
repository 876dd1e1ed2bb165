//! Alerts over a history, as Prometheus would have told them: the series `ALERTS` and `ALERTS_FOR_STATE`.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use genv_core::duration::parse_duration;

use super::rules::{Rule, RulesFile, Span, evaluate, write};
use super::write::Writer;
use crate::prometheus::{Prometheus, Series};

/// Evaluates the alerts, and writes when they were pending and when they fired.
///
/// # Errors
/// Prometheus refuses one of them.
pub(super) fn alert(prometheus: &Prometheus, writer: &mut Writer, file: &RulesFile, span: Span) -> Result<()> {
    let rules = file.groups.iter().flat_map(|group| &group.rules);
    for rule in rules.filter(|rule| !rule.alert.is_empty()) {
        told(prometheus, writer, rule, span).with_context(|| rule.alert.clone())?;
    }
    writer.flush()
}

fn told(prometheus: &Prometheus, writer: &mut Writer, rule: &Rule, span: Span) -> Result<()> {
    let mut labels = rule.labels.clone();
    ensure!(
        labels.values().all(|value| !value.contains("{{")),
        "cannot tell it over a history: one of its labels is a template"
    );
    labels.insert("alertname".to_owned(), rule.alert.clone());
    let duration = |text: &Option<String>| match text {
        Some(text) => parse_duration(text),
        None => Ok(Duration::ZERO),
    };
    let lasting = duration(&rule.lasting)?.as_secs_f64();
    let keeping = duration(&rule.keep_firing_for)?.as_secs_f64();
    let step = span.interval.as_secs_f64();
    let last = span.to.duration_since(UNIX_EPOCH)?.as_secs_f64();
    for (one, values) in evaluate(prometheus, &rule.expr, span)? {
        let times: Vec<f64> = values.into_iter().map(|(at, _)| at).collect();
        let states = states(&times, lasting, keeping, step, last);
        for (state, times) in [("pending", states.pending), ("firing", states.firing)] {
            let mut labels = labels.clone();
            labels.insert("alertstate".to_owned(), state.to_owned());
            write(writer, "ALERTS", &labels, &[(one.clone(), times)], span)?;
        }
        let since: [Series; 1] = [(one, states.since)];
        write(writer, "ALERTS_FOR_STATE", &labels, &since, span)?;
    }
    Ok(())
}

/// When one alert was in which state.
#[derive(Debug, Default, PartialEq)]
struct States {
    /// Value 1 at each evaluation.
    pending: Vec<(f64, f64)>,
    firing: Vec<(f64, f64)>,
    /// Since when, at each evaluation at which it was in either.
    since: Vec<(f64, f64)>,
}

/// The states of an alert whose condition held at these `times`, of evaluations that are `step` apart up to `last`.
fn states(times: &[f64], lasting: f64, keeping: f64, step: f64, last: f64) -> States {
    let mut states = States::default();
    let mut times = times.iter().copied().peekable();
    while let Some(began) = times.next() {
        let mut now = began;
        let mut held = began;
        let mut fires = false;
        // What fires goes on for a while after its condition held last.
        while now <= last && (now == held || fires && now - (held + step) < keeping) {
            fires |= now - began >= lasting;
            let one = if fires { &mut states.firing } else { &mut states.pending };
            one.push((now, 1.0));
            states.since.push((now, began));
            now += step;
            if let Some(next) = times.next_if(|next| (next - now).abs() < step / 2.0) {
                now = next;
                held = next;
            }
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(values: &[(f64, f64)]) -> Vec<f64> {
        values.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn an_alert_is_pending_then_fires_and_goes_on_for_a_while() {
        let times = [10.0, 20.0, 30.0, 40.0, 60.0, 200.0];
        let states = states(&times, 20.0, 25.0, 10.0, 200.0);
        assert_eq!(at(&states.pending), [10.0, 20.0, 200.0]);
        assert_eq!(at(&states.firing), [30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
        assert_eq!(states.since[8], (90.0, 10.0));
        assert_eq!(states.since[9], (200.0, 200.0));
    }

    #[test]
    fn a_condition_that_pauses_begins_anew() {
        let states = states(&[10.0, 20.0, 40.0, 50.0], 20.0, 25.0, 10.0, 50.0);
        assert!(states.firing.is_empty(), "{states:?}");
        assert_eq!(states.since[3], (50.0, 40.0));
    }
}
