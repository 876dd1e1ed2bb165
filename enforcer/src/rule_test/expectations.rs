//! What is to be found, said and done, and what of it did not come.

use std::time::Duration;

use genv_core::duration::format_duration;
use genv_core::yaml::{self, Located};

use super::Reader;
use super::course::{Cycle, Record};
use super::fact::Fact;
use super::file::{ActionEntry, ExpectEntry, TestEntry, ViolationEntry, WarningEntry};
use crate::config::Config;

/// In the order of their times.
pub(super) struct Expectations(Vec<Expectation>);

struct Expectation {
    /// `FILE:LINE:COLUMN`.
    place: String,
    at: Duration,
    /// All that break a rule then; absent: not looked at.
    violations: Option<Vec<Fact>>,
    /// Since the expectation before.
    warnings: Vec<Fact>,
    /// Since the expectation before.
    actions: Vec<Fact>,
}

/// More looks than this are a typing error.
const MOST_CYCLES: u128 = 100_000;

impl Reader<'_> {
    pub(super) fn expectations(&self, test: &TestEntry, config: &Config) -> Result<Expectations, yaml::Error> {
        let mut all: Vec<Expectation> = Vec::new();
        for entry in &test.expect.value {
            let expectation = self.expectation(entry, config)?;
            let at = entry.value.at.referenced;
            if all.last().is_some_and(|last| last.at >= expectation.at) {
                return self.refuse(at, "expectations are in the order of their times, each later than the one before");
            }
            if expectation.at.as_millis() / config.interval.as_millis().max(1) > MOST_CYCLES {
                let message = format!(
                    "until then there are more than {MOST_CYCLES} cycles at an interval of {}: give the test a longer \
                     interval",
                    format_duration(config.interval)
                );
                return self.refuse(at, message);
            }
            all.push(expectation);
        }
        if all.is_empty() {
            return self.refuse(test.expect.referenced, "nothing is expected: a test must be able to fail");
        }
        Ok(Expectations(all))
    }

    fn expectation(&self, entry: &Located<ExpectEntry>, config: &Config) -> Result<Expectation, yaml::Error> {
        let rule = |name: &Located<String>| self.known_rule(name, config);
        let ExpectEntry { at, violations, warnings, actions } = &entry.value;
        for violation in violations.iter().flatten() {
            rule(&violation.value.rule)?;
        }
        for warning in warnings {
            rule(&warning.value.rule)?;
        }
        for action in actions {
            rule(&action.value.rule)?;
            if !action.value.action.value.acts() {
                let message = "this takes nothing from anybody: expect it under violations or warnings";
                return self.refuse(action.value.action.referenced, message);
            }
        }
        let place = entry.referenced;
        Ok(Expectation {
            place: format!("{}:{}:{}", self.source_name, place.line(), place.column()),
            at: at.value.0,
            violations: violations
                .as_ref()
                .map(|list| list.iter().map(|entry| expected_violation(&entry.value)).collect()),
            warnings: warnings.iter().map(|entry| expected_warning(&entry.value)).collect(),
            actions: actions.iter().map(|entry| expected_action(&entry.value)).collect(),
        })
    }
}

fn expected_violation(entry: &ViolationEntry) -> Fact {
    Fact::default()
        .with_some("stage", entry.stage.map(|stage| stage.word()))
        .with("rule", &entry.rule.value)
        .with_some("user", entry.user.as_ref())
        .with_some("host", entry.host.as_ref())
        .with_some("eid", entry.eid.as_ref())
        .with_some("device", entry.device)
        .with_some("pid", entry.pid.as_ref().map(|pid| pid.0))
}

fn expected_warning(entry: &WarningEntry) -> Fact {
    Fact::default()
        .with("rule", &entry.rule.value)
        .with_some("user", entry.user.as_ref())
        .with_some("host", entry.host.as_ref())
        .with_some("number", entry.number.as_ref().map(|number| number.0))
}

fn expected_action(entry: &ActionEntry) -> Fact {
    Fact::default()
        .with("action", entry.action.value.word())
        .with("rule", &entry.rule.value)
        .with_some("user", entry.user.as_ref())
        .with_some("host", entry.host.as_ref())
        .with_some("eid", entry.eid.as_ref())
        .with_some("device", entry.device)
        .with_some("pid", entry.pid.as_ref().map(|pid| pid.0))
}

impl Expectations {
    /// The last time of all.
    pub(super) fn until(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |last| last.at)
    }

    /// What was expected and did not come, and the other way round.
    pub(super) fn misses(&self, record: &Record) -> Vec<String> {
        let mut misses = Vec::new();
        let mut rest = record.0.as_slice();
        let mut last = None;
        for expectation in &self.0 {
            let count = rest.partition_point(|cycle| cycle.at <= expectation.at);
            let (cycles, later) = rest.split_at(count);
            rest = later;
            // There may be none since the expectation before.
            last = cycles.last().or(last);
            let found = expectation.misses(cycles, last);
            if !found.is_empty() {
                let at = format_duration(expectation.at);
                misses.push(format!("{}: until {at}\n  {}", expectation.place, found.join("\n  ")));
            }
        }
        misses
    }
}

impl Expectation {
    /// What differs in the cycles since the expectation before, and in the `last` one until this one's time.
    fn misses(&self, cycles: &[Cycle], last: Option<&Cycle>) -> Vec<String> {
        let mut misses = Vec::new();
        if let (Some(expected), Some(cycle)) = (&self.violations, last) {
            let seen: Vec<_> = cycle.violations.iter().map(|fact| (cycle.at, fact)).collect();
            misses.extend(compare("violation", expected, &seen));
        }
        let since = |facts: fn(&Cycle) -> &[Fact]| -> Vec<(Duration, &Fact)> {
            let of = |cycle| facts(cycle).iter().map(|fact| (cycle.at, fact));
            cycles.iter().flat_map(of).collect()
        };
        let warnings = since(|cycle| &cycle.warnings);
        misses.extend(compare("warning", &self.warnings, &warnings));
        let actions = since(|cycle| &cycle.actions);
        misses.extend(compare("action", &self.actions, &actions));
        misses
    }
}

fn compare(what: &str, expected: &[Fact], seen: &[(Duration, &Fact)]) -> Vec<String> {
    let pairs = pair(expected, seen);
    let missing = pairs.iter().zip(expected).filter(|(seen, _)| seen.is_none());
    let missing = missing.map(|(_, fact)| format!("no {what} {fact}"));
    let unexpected = seen.iter().enumerate().filter(|(position, _)| !pairs.contains(&Some(*position)));
    let unexpected = unexpected.map(|(_, (at, fact))| format!("unexpected {what} at {}: {fact}", format_duration(*at)));
    missing.chain(unexpected).collect()
}

/// For each that is expected, the position of what was seen for it: as many pairs as there can be.
fn pair(expected: &[Fact], seen: &[(Duration, &Fact)]) -> Vec<Option<usize>> {
    /// Finds what was seen for one expectation, moving others to what else they fit, as in Kuhn's algorithm.
    fn find(
        position: usize,
        expected: &[Fact],
        seen: &[(Duration, &Fact)],
        taken: &mut [Option<usize>],
        tried: &mut [bool],
    ) -> bool {
        for (candidate, (_, fact)) in seen.iter().enumerate() {
            if tried[candidate] || !fact.is(&expected[position]) {
                continue;
            }
            tried[candidate] = true;
            let free = match taken[candidate] {
                None => true,
                Some(other) => find(other, expected, seen, taken, tried),
            };
            if free {
                taken[candidate] = Some(position);
                return true;
            }
        }
        false
    }

    let mut taken = vec![None; seen.len()];
    for position in 0..expected.len() {
        find(position, expected, seen, &mut taken, &mut vec![false; seen.len()]);
    }
    let mut pairs = vec![None; expected.len()];
    for (candidate, position) in taken.into_iter().enumerate() {
        if let Some(position) = position {
            pairs[position] = Some(candidate);
        }
    }
    pairs
}
