//! The books of an enforcer: what its status told of each violation from its beginning to its end, what its log says was
//! said and done, what its audit explains, and what its metrics count.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use genv_core::enforcement::{Enforcement, HeldViolation};
use genv_tests::enforcer::Enforcer;
use genv_tests::metrics::Scrape;
use jiff::Timestamp;
use serde_json::Value;

/// A rule, and what breaks it.
pub(crate) type Key = (String, String);

/// Every violation that the status ever told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) seen: BTreeSet<Key>,
    pub(crate) now: BTreeMap<Key, HeldViolation>,
    pub(crate) unknown_processes: u64,
}

impl Ledger {
    /// Notes what the status tells now.
    pub(crate) fn look(&mut self, enforcer: &Enforcer) -> Result<()> {
        let status = Enforcement::read(&enforcer.setup().state_directory());
        let status = status.map_err(anyhow::Error::msg)?.context("no status")?;
        ensure!(status.faults.is_empty(), "{:?}", status.faults);
        self.unknown_processes = status.unknown_processes.values().sum();
        let violations = status.violations.into_iter();
        self.now = violations.map(|it| ((it.rule.clone(), it.subject.clone()), it)).collect();
        self.seen.extend(self.now.keys().cloned());
        Ok(())
    }

    /// How far a violation is.
    pub(crate) fn stage(&self, rule: &str, subject: &str) -> Option<&str> {
        let violation = self.now.get(&(rule.to_owned(), subject.to_owned()))?;
        Some(&violation.stage)
    }
}

/// What came of a violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Something was done: signals and devices taken, in order.
    Acted(Vec<String>),
    /// It was to be done, and was refused for this reason.
    Refused(String),
    /// It waits, for this reason.
    Waits(String),
    /// It was over before anything was done.
    Over,
}

/// All of it, once the day is over.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) audit: Vec<Value>,
    /// Fields of the log's events, with when each was written.
    log: Vec<(Timestamp, Value)>,
    scrape: Scrape,
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let text = value[key].as_str();
    text.with_context(|| format!("no {key} in {value}"))
}

fn key_of(event: &Value) -> Result<Key> {
    Ok((text(event, "rule")?.to_owned(), text(event, "subject")?.to_owned()))
}

impl Books {
    pub(crate) fn of(enforcer: &Enforcer) -> Result<Self> {
        let log = enforcer.log();
        let events = log.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line)?;
            let at = text(&line, "timestamp")?.parse()?;
            Ok((at, line["fields"].take()))
        });
        Ok(Self {
            log: events.collect::<Result<_>>().context("reading the log")?,
            audit: enforcer.audit()?,
            scrape: enforcer.scrape()?,
        })
    }

    fn events(&self, event: &str) -> impl Iterator<Item = &(Timestamp, Value)> {
        self.log.iter().filter(move |(_, it)| it["event"] == event)
    }

    /// The violation that a line of the audit is about: the log says it of what was signalled or taken.
    fn cause(&self, line: &Value) -> Result<Key> {
        let target = match (line["pid"].as_u64(), line["gpu"].as_u64()) {
            (Some(pid), _) => format!("process {pid} ("),
            (None, Some(gpu)) => format!("device {gpu} of environment {}", text(line, "eid")?),
            (None, None) => anyhow::bail!("about nothing: {line}"),
        };
        let mut actions = self.events("action").map(|(_, action)| action);
        let action = actions.find(|action| {
            let named = action["target"].as_str().unwrap_or_default();
            action["rule"] == line["rule"] && named.contains(&target)
        });
        key_of(action.with_context(|| format!("the log does not tell of {line}"))?)
    }

    /// Sees to it that the audit explains each deed: why and to whom, written down before it was done, and announced to
    /// the user as often as the rule says and as early as was said.
    pub(crate) fn are_explained(&self, warnings: &BTreeMap<&str, usize>) -> Result<()> {
        let mut intended: BTreeMap<&str, &Value> = BTreeMap::new();
        for line in &self.audit {
            for field in ["rule", "why", "username", "hostname", "action"] {
                ensure!(!text(line, field)?.is_empty(), "no {field}: {line}");
            }
            ensure!(line["mode"] == "enforce", "{line}");
            let (id, result) = (text(line, "id")?, text(line, "result")?);
            match result {
                "intended" => {
                    self.was_announced(line, warnings)?;
                    ensure!(intended.insert(id, line).is_none(), "twice: {line}");
                }
                "done" => {
                    let before = intended.remove(id);
                    let before = before.with_context(|| format!("not intended: {line}"))?;
                    for field in ["rule", "why", "action", "username", "pid", "eid", "gpu"] {
                        ensure!(before[field] == line[field], "{before} became {line}");
                    }
                }
                "refused" => {
                    ensure!(!text(line, "reason")?.is_empty(), "no reason: {line}");
                    ensure!(!intended.contains_key(id), "it was intended: {line}");
                }
                _ => anyhow::bail!("{result}: {line}"),
            }
        }
        ensure!(intended.is_empty(), "without an end: {intended:?}");
        Ok(())
    }

    fn was_announced(&self, line: &Value, warnings: &BTreeMap<&str, usize>) -> Result<()> {
        let key = self.cause(line)?;
        let at: Timestamp = text(line, "time")?.parse()?;
        let mut given = Vec::new();
        for (warned, warning) in self.events("warning") {
            if key_of(warning)? == key && *warned <= at {
                given.push(warning);
            }
        }
        // A violation that came back was warned of anew.
        let first = given.iter().rposition(|warning| warning["number"] == 1);
        let round = &given[first.with_context(|| format!("nobody was warned of {line}"))?..];
        let wanted = warnings.get(key.0.as_str()).copied();
        ensure!(Some(round.len()) == wanted, "{round:?} before {line}");
        for warning in round {
            // A warning to a user without a terminal counts too: the file does not set `undelivered`.
            let is_known = ["done", "failed"].contains(&text(warning, "result")?);
            ensure!(is_known, "{warning}");
            let end = warning["end_timestamp_seconds"].as_f64();
            let end = end.with_context(|| format!("no end: {warning}"))?;
            let early = end - at.as_duration().as_secs_f64();
            ensure!(early < 0.001, "{early} s before its time: {line}");
        }
        Ok(())
    }

    /// What came of each violation.
    pub(crate) fn ends(&self, ledger: &Ledger) -> Result<BTreeMap<Key, End>> {
        let mut done: BTreeMap<Key, Vec<String>> = BTreeMap::new();
        let mut refused: BTreeMap<Key, String> = BTreeMap::new();
        for line in &self.audit {
            let key = self.cause(line)?;
            ensure!(ledger.seen.contains(&key), "the status never told of {line}");
            match text(line, "result")? {
                "done" => {
                    let action = text(line, "action")?.to_owned();
                    done.entry(key).or_default().push(action);
                }
                "refused" => {
                    refused.insert(key, text(line, "reason")?.to_owned());
                }
                _ => {}
            }
        }
        let mut end = |key: &Key| {
            let now = ledger.now.get(key);
            Ok(match (done.remove(key), refused.remove(key), now) {
                (Some(deeds), ..) => End::Acted(deeds),
                (None, Some(reason), _) => End::Refused(reason),
                (None, None, None) => End::Over,
                (None, None, Some(now)) => {
                    ensure!(now.stage == "held", "nothing came of {now:?}");
                    let why = now.why.clone();
                    End::Waits(why.with_context(|| format!("no reason: {now:?}"))?)
                }
            })
        };
        let keys = ledger.seen.iter();
        keys.map(|key| Ok((key.clone(), end(key)?))).collect()
    }

    /// Sees to it that log, audit and metrics count the same, rule by rule.
    pub(crate) fn balance(&self, rules: &[&str], ends: &BTreeMap<Key, End>) -> Result<()> {
        for rule in rules {
            let counted = |family: &str, labels: &[(&str, &str)]| -> f64 {
                let all = [&[("rule", *rule)][..], labels].concat();
                let all = self.scrape.all(family, &all);
                all.iter().map(|(_, value)| value).sum()
            };
            let logged = |event: &str, field: &str, value: &str| {
                let of_rule = self.events(event).map(|(_, it)| it);
                let of_rule = of_rule.filter(|it| it["rule"] == *rule && it[field] == value);
                of_rule.count() as f64
            };
            let reported: Vec<Key> = self
                .events("violation")
                .filter(|(_, it)| it["rule"] == *rule)
                .map(|(_, it)| key_of(it))
                .collect::<Result<_>>()?;
            let actions = "genv_enforcer_actions_total";
            let reports = counted(actions, &[("action", "report"), ("result", "done")]);
            assert_eq!(reports, reported.len() as f64, "{rule}");
            let warned = counted("genv_enforcer_warnings_total", &[("result", "done")]);
            assert_eq!(warned, logged("warning", "result", "done"), "{rule}");
            for (word, signal) in [("terminate", Some("SIGTERM")), ("kill", Some("SIGKILL")), ("detach", None)] {
                let labels = |result| [("action", word), ("result", result)];
                for result in ["failed", "would"] {
                    assert_eq!(counted(actions, &labels(result)), 0.0, "{rule} {word}");
                }
                let deeds = counted(actions, &labels("done"));
                let done = |action: &str| {
                    let of_rule = self.audit.iter().filter(|it| it["rule"] == *rule);
                    let done = of_rule.filter(|it| it["result"] == "done");
                    done.filter(|it| it["action"] == action).count() as f64
                };
                match signal {
                    None => assert_eq!(deeds, done("detach"), "{rule} {word}"),
                    // What ends with a device that is taken is part of that.
                    Some(_) if done("detach") > 0.0 => assert_eq!(deeds, 0.0, "{rule} {word}"),
                    Some(signal) => assert_eq!(deeds, done(signal), "{rule} {word}"),
                }
            }
            for (key, end) in ends.iter().filter(|(key, _)| key.0 == *rule) {
                if matches!(end, End::Acted(_) | End::Refused(_)) {
                    ensure!(reported.contains(key), "never reported: {key:?} {end:?}");
                }
            }
            ensure!(reported.iter().all(|key| ends.contains_key(key)), "the status never told of one of {reported:?}");
        }
        Ok(())
    }
}
