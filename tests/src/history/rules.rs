//! The rules that record, and the alerts, over a history: Prometheus' own engine evaluates them, and is given what they
//! record, and the series `ALERTS` and `ALERTS_FOR_STATE`.
//!
//! A rule is asked for all its evaluations at once, after the rules that it refers to. Prometheus would do the same step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use genv_core::duration::parse_duration;
use serde::Deserialize;

use super::write::{Writer, milliseconds};
use crate::metrics::Labels;
use crate::prometheus::{Prometheus, Series};

/// Groups begin at a moment of their own, neither with a scrape nor on the hour.
const OFFSET: Duration = Duration::from_secs(17 * 60 + 35);

#[derive(Debug, Deserialize)]
pub struct RulesFile {
    pub groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub struct Group {
    pub name: String,
    /// Time between evaluations, if it is not the usual one.
    pub interval: Option<String>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    #[serde(default)]
    pub record: String,
    #[serde(default)]
    pub alert: String,
    pub expr: String,
    #[serde(rename = "for")]
    pub lasting: Option<String>,
    /// How long an alert goes on firing when its condition holds no more.
    pub keep_firing_for: Option<String>,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub annotations: Labels,
}

impl RulesFile {
    pub fn shipped(name: &str) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prometheus/rules");
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// From when to when rules are evaluated, and how often unless their group tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
    pub(super) interval: Duration,
}

pub(super) fn record(prometheus: &Prometheus, writer: &mut Writer, file: &RulesFile, span: Span) -> Result<()> {
    let mut waiting = Vec::new();
    for group in &file.groups {
        let interval = match &group.interval {
            Some(text) => parse_duration(text).with_context(|| format!("the interval of {}", group.name))?,
            None => span.interval,
        };
        let records = group.rules.iter().filter(|rule| !rule.record.is_empty());
        waiting.extend(records.map(|rule| (rule, Span { interval, ..span })));
    }
    while !waiting.is_empty() {
        let names: BTreeSet<&str> = waiting.iter().map(|(rule, _)| &*rule.record).collect();
        let depends = |rule: &Rule| {
            let mut others = names.iter().filter(|name| **name != rule.record);
            others.any(|name| mentions(&rule.expr, name))
        };
        let (later, now): (Vec<_>, Vec<_>) = waiting.iter().partition(|(rule, _)| depends(rule));
        ensure!(!now.is_empty(), "rules in a circle: {names:?}");
        for (rule, span) in now {
            let series = if mentions(&rule.expr, &rule.record) {
                fixed_point(prometheus, writer, rule, span)
            } else {
                evaluate(prometheus, &rule.expr, span)
            };
            let series = series.with_context(|| rule.record.clone())?;
            write(writer, &rule.record, &rule.labels, &series, span)?;
        }
        writer.flush()?;
        waiting = later;
    }
    Ok(())
}

/// A rule that refers to what it recorded before. What it gives when its own past is what it gave, is what evaluating it
/// step by step gives: each evaluation depends on earlier ones alone.
fn fixed_point(prometheus: &Prometheus, writer: &mut Writer, rule: &Rule, span: Span) -> Result<Vec<Series>> {
    const MOST_PASSES: usize = 500;
    let mut before = Vec::new();
    for pass in 0..MOST_PASSES {
        let past = format!("{}:pass{pass}", rule.record);
        write(writer, &past, &rule.labels, &before, span)?;
        writer.flush()?;
        let series = evaluate(prometheus, &replaced(&rule.expr, &rule.record, &past), span)?;
        if series == before {
            prometheus.forget(&format!("{{__name__=~\"{}:pass[0-9]+\"}}", rule.record))?;
            return Ok(series);
        }
        before = series;
    }
    bail!("its own past still changes what it gives after {MOST_PASSES} passes")
}

pub(super) fn alert(prometheus: &Prometheus, writer: &mut Writer, file: &RulesFile, span: Span) -> Result<()> {
    let duration = |text: &Option<String>| text.as_ref().map_or(Ok(Duration::ZERO), |text| parse_duration(text));
    let last = span.to.duration_since(UNIX_EPOCH)?.as_secs_f64();
    for rule in file.groups.iter().flat_map(|group| &group.rules) {
        let mut labels = rule.labels.clone();
        ensure!(labels.values().all(|value| !value.contains("{{")), "a label of {} is a template", rule.alert);
        labels.insert("alertname".to_owned(), rule.alert.clone());
        let (lasting, keeping) =
            (duration(&rule.lasting)?.as_secs_f64(), duration(&rule.keep_firing_for)?.as_secs_f64());
        let evaluated = evaluate(prometheus, &rule.expr, span).with_context(|| rule.alert.clone())?;
        for (one, values) in evaluated {
            let times = values.into_iter().map(|(at, _)| at);
            let states = states(times, lasting, keeping, span.interval.as_secs_f64(), last);
            for (state, times) in [("pending", states.pending), ("firing", states.firing)] {
                let mut labels = labels.clone();
                labels.insert("alertstate".to_owned(), state.to_owned());
                write(writer, "ALERTS", &labels, &[(one.clone(), times)], span)?;
            }
            write(writer, "ALERTS_FOR_STATE", &labels, &[(one, states.since)], span)?;
        }
    }
    writer.flush()
}

#[derive(Default)]
struct States {
    /// Value 1 at each evaluation.
    pending: Vec<(f64, f64)>,
    firing: Vec<(f64, f64)>,
    /// Since when, at each evaluation at which it was in either.
    since: Vec<(f64, f64)>,
}

/// The states of an alert whose condition held at these `times`, of evaluations that are `step` apart up to `last`.
fn states(times: impl Iterator<Item = f64>, lasting: f64, keeping: f64, step: f64, last: f64) -> States {
    let mut states = States::default();
    let mut times = times.peekable();
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

fn evaluate(prometheus: &Prometheus, promql: &str, span: Span) -> Result<Vec<Series>> {
    let mut all: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (mut labels, values) in prometheus.query_range(promql, first_evaluation(span)?, span.to, span.interval)? {
        labels.remove("__name__");
        all.entry(labels).or_default().extend(values);
    }
    for values in all.values_mut() {
        // What a rule takes from its own past has a name, and what it takes from elsewhere has not: one series in two.
        values.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    }
    Ok(all.into_iter().collect())
}

/// The first evaluation in a span: all are whole intervals from [`OFFSET`].
fn first_evaluation(span: Span) -> Result<SystemTime> {
    let interval = i64::try_from(span.interval.as_millis())?;
    let offset = i64::try_from(OFFSET.as_millis())?;
    let left = (offset - milliseconds(span.from)?).rem_euclid(interval);
    Ok(span.from + Duration::from_millis(left.unsigned_abs()))
}

/// Writes series under a name, and where one of them pauses or ends, that it did.
fn write(writer: &mut Writer, name: &str, more: &Labels, series: &[Series], span: Span) -> Result<()> {
    let interval = i64::try_from(span.interval.as_millis())?;
    let last = milliseconds(span.to)?;
    for (labels, values) in series {
        let mut labels = labels.clone();
        labels.extend(more.clone());
        labels.insert("__name__".to_owned(), name.to_owned());
        let id = writer.series(labels);
        let mut values = values.iter().peekable();
        while let Some((seconds, value)) = values.next() {
            let at = whole_milliseconds(*seconds);
            writer.add(id, at, *value)?;
            let next = values.peek().map(|(seconds, _)| whole_milliseconds(*seconds));
            if next != Some(at + interval) && at + interval <= last {
                writer.end(id, at + interval)?;
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "Unix time in milliseconds fits in 53 bits")]
fn whole_milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}

fn mentions(expression: &str, name: &str) -> bool {
    replaced(expression, name, "") != expression
}

/// An expression with one metric's name in place of another's.
fn replaced(expression: &str, name: &str, by: &str) -> String {
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut text = String::new();
    let mut rest = expression;
    while let Some(at) = rest.find(name) {
        let (before, found) = rest.split_at(at);
        let after = &found[name.len()..];
        let previous = if before.is_empty() { &text } else { before };
        let whole = !previous.ends_with(part_of_a_name) && !after.starts_with(part_of_a_name);
        text.push_str(before);
        text.push_str(if whole { by } else { name });
        rest = after;
    }
    text.push_str(rest);
    text
}
