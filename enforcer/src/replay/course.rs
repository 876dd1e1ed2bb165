//! The time of a recording: what is planned at each moment of it, as a dry run would have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use genv_core::duration::format_span;
use genv_core::model::{HostSnapshot, Snapshot};

use super::event::{Event, EventKind, Open, RuleSummary};
use crate::config::Config;
use crate::execute::breaker::Breaker;
use crate::execute::surprise::Expected;
use crate::groups::users;
use crate::groups::{UserGroups, waiver_of_unknown_groups};
use crate::host::users_of_devices;
use crate::plan::words;
use crate::plan::{History, Input, Key, Outcome, Plan, Stage, Step, StepKind, Violation};
use crate::records::Records;

/// Three missed intervals, and never less than this, are a gap.
const SHORTEST_GAP_SECONDS: f64 = 30.0;

/// What came of a cycle, or of a line.
pub(super) enum Said {
    Event(Box<Event>),
    /// Something about the recording itself.
    Note(String),
}

/// What is remembered from snapshot to snapshot.
pub(super) struct Course<'a> {
    config: &'a Config,
    groups: &'a mut dyn FnMut(&BTreeSet<String>) -> UserGroups,
    say: &'a mut dyn FnMut(Said) -> anyhow::Result<()>,
    /// Every host that was ever heard of, in the order in which they came.
    hosts: Vec<HostSnapshot>,
    positions: HashMap<String, usize>,
    /// The hosts of which a snapshot came since the last cycle.
    fresh: BTreeSet<usize>,
    /// The time of the first of these.
    began_seconds: f64,
    /// The latest of them.
    now_seconds: f64,
    history: History,
    records: Records,
    breaker: Breaker,
    expected: Expected,
    /// What was said of each violation, until it is over.
    open: BTreeMap<Key, Open>,
    pub(super) cycles: u64,
    pub(super) rules: BTreeMap<String, RuleSummary>,
    /// The most at once, by host.
    pub(super) unknown_processes: BTreeMap<String, u64>,
    pub(super) from_seconds: Option<f64>,
    pub(super) until_seconds: Option<f64>,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        config: &'a Config,
        groups: &'a mut dyn FnMut(&BTreeSet<String>) -> UserGroups,
        say: &'a mut dyn FnMut(Said) -> anyhow::Result<()>,
    ) -> Self {
        let rules = config.rules.iter();
        Self {
            config,
            groups,
            say,
            hosts: Vec::new(),
            positions: HashMap::new(),
            fresh: BTreeSet::new(),
            began_seconds: 0.0,
            now_seconds: 0.0,
            history: History::default(),
            records: Records::of_a_recording(),
            breaker: Breaker::default(),
            expected: Expected::default(),
            open: BTreeMap::new(),
            cycles: 0,
            rules: rules.map(|rule| (rule.name.clone(), RuleSummary::default())).collect(),
            unknown_processes: BTreeMap::new(),
            from_seconds: None,
            until_seconds: None,
        }
    }

    /// Says something about the recording.
    pub(super) fn note(&mut self, text: String) -> anyhow::Result<()> {
        (self.say)(Said::Note(text))
    }

    /// Names of the hosts, in the order in which they came.
    pub(super) fn hostnames(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.hostname.clone()).collect()
    }

    /// Takes the snapshot of a line. Those of several hosts that belong to one interval are looked at together.
    pub(super) fn take(&mut self, line: u64, snapshot: Snapshot) -> anyhow::Result<()> {
        let at_seconds = snapshot.timestamp_seconds;
        let position = self.position(&snapshot.hostname);
        self.note_time(line, position, &snapshot)?;
        let interval = self.config.interval.as_secs_f64();
        let interval = interval.max(finite(snapshot.interval_seconds));
        let elapsed = (at_seconds - self.began_seconds).abs();
        if !self.fresh.is_empty() && (self.fresh.contains(&position) || elapsed >= interval) {
            self.cycle()?;
        }
        if self.fresh.is_empty() {
            self.began_seconds = at_seconds;
            self.now_seconds = at_seconds;
        }
        self.now_seconds = self.now_seconds.max(at_seconds);
        self.fresh.insert(position);
        let host = &mut self.hosts[position];
        host.received_timestamp_seconds = Some(at_seconds);
        host.snapshot = Some(Arc::new(snapshot));
        Ok(())
    }

    fn position(&mut self, hostname: &str) -> usize {
        if let Some(&position) = self.positions.get(hostname) {
            return position;
        }
        let position = self.hosts.len();
        self.positions.insert(hostname.to_owned(), position);
        self.hosts.push(HostSnapshot {
            hostname: hostname.to_owned(),
            up: true,
            received_timestamp_seconds: None,
            snapshot: None,
            ssh: None,
        });
        position
    }

    /// Says where the time of a host is not as it should be.
    fn note_time(&mut self, line: u64, position: usize, snapshot: &Snapshot) -> anyhow::Result<()> {
        let host = &self.hosts[position];
        let Some(last) = host.received_timestamp_seconds else {
            return Ok(());
        };
        let name = words::name(&host.hostname);
        let step = snapshot.timestamp_seconds - last;
        let gap = (3.0 * finite(snapshot.interval_seconds)).max(SHORTEST_GAP_SECONDS);
        let note = if step < 0.0 {
            let back = format_span(-step);
            format!(
                "line {line}: the time of {name} goes back by {back}; what was seen before counts no more than it did"
            )
        } else if step > gap {
            let silent = format_span(step);
            format!("line {line}: {name} told nothing for {silent}; that time does not count")
        } else {
            return Ok(());
        };
        (self.say)(Said::Note(note))
    }

    /// Plans at the time of the latest snapshots, and says what is new.
    pub(super) fn cycle(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.fresh).is_empty() {
            return Ok(());
        }
        let now = self.now_seconds;
        self.cycles += 1;
        self.from_seconds = Some(self.from_seconds.map_or(now, |from| from.min(now)));
        self.until_seconds = Some(self.until_seconds.map_or(now, |until| until.max(now)));
        let known = (self.groups)(&users(&self.hosts));
        let waivers: Vec<_> = waiver_of_unknown_groups(known.unknown, self.config, now).into_iter().collect();
        let counting = self.records.count(&self.hosts, None, now);
        let input = Input {
            hosts: &counting.hosts,
            config: self.config,
            groups: &known.groups,
            waivers: &waivers,
            unconfirmed: Some(&counting.unconfirmed),
            paused_until_seconds: None,
            now_seconds: now,
        };
        let plan = self.history.plan(&input);
        for (hostname, count) in &plan.unknown_processes {
            let most = self.unknown_processes.entry(hostname.clone()).or_default();
            *most = (*most).max(*count);
        }
        self.say_what_is_over(&plan)?;
        self.say_what_is_held(&plan)?;
        let surprise = self.breaker.surprise(
            &self.config.breaker,
            &self.expected.hits(&plan),
            &users_of_devices(&self.hosts),
            now,
        );
        let breaker_is_open = self.breaker.open.is_some();
        self.expected.follow(&plan, breaker_is_open);
        if let Some(why) = surprise {
            self.trip(why)?;
        }
        for step in &plan.steps {
            let violation = plan.violations.iter().find(|it| it.key == step.key);
            if let Some(violation) = violation {
                self.take_step(violation, step)?;
            }
            self.history.settle(step, &Outcome::Would, now);
        }
        Ok(())
    }

    fn take_step(&mut self, violation: &Violation, step: &Step) -> anyhow::Result<()> {
        let now = self.now_seconds;
        let open = self.open.entry(step.key.clone()).or_default();
        open.is_said = true;
        let rule = self.rules.entry(step.key.rule.clone()).or_default();
        rule.users.insert(violation.username.clone());
        let kind = match &step.kind {
            StepKind::Report => {
                rule.violations += 1;
                EventKind::Violation
            }
            StepKind::Warn { number, of, end_seconds } => {
                rule.warnings += 1;
                EventKind::Warning { number: *number, of: *of, end_seconds: *end_seconds }
            }
            deed => {
                let (action, target) = words::deed(deed).unwrap_or_default();
                rule.actions += 1;
                open.acted_seconds = Some(now);
                EventKind::Action { action, target }
            }
        };
        self.event(violation, kind)
    }

    /// Says what was held against somebody, and is not any more.
    fn say_what_is_over(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let here: BTreeSet<&Key> = plan.violations.iter().map(|it| &it.key).collect();
        let gone: Vec<Key> =
            self.open.keys().filter(|key| !here.contains(key) && !self.history.remembers(key)).cloned().collect();
        for key in gone {
            let Some(open) = self.open.remove(&key) else {
                continue;
            };
            let Some(violation) = open.violation.filter(|_| open.is_said) else {
                continue;
            };
            let acted_seconds = open.acted_seconds;
            self.event(&violation, EventKind::Over { acted_seconds })?;
        }
        for violation in &plan.violations {
            let open = self.open.entry(violation.key.clone()).or_default();
            open.violation = Some(violation.clone());
        }
        Ok(())
    }

    /// Says why a violation waits, when it begins to, or for another reason.
    fn say_what_is_held(&mut self, plan: &Plan) -> anyhow::Result<()> {
        for violation in &plan.violations {
            let held = match &violation.stage {
                Stage::Held { why } => Some(why.clone()),
                _ => None,
            };
            let open = self.open.entry(violation.key.clone()).or_default();
            let is_new = open.held != held;
            open.held.clone_from(&held);
            if let Some(why) = held.filter(|_| is_new) {
                open.is_said = true;
                let rule = self.rules.entry(violation.key.rule.clone()).or_default();
                rule.held += 1;
                rule.users.insert(violation.username.clone());
                self.event(violation, EventKind::Held { why })?;
            }
        }
        Ok(())
    }

    fn event(&mut self, violation: &Violation, kind: EventKind) -> anyhow::Result<()> {
        let event = Event::of(violation, kind, self.now_seconds);
        (self.say)(Said::Event(Box::new(event)))
    }

    fn trip(&mut self, why: String) -> anyhow::Result<()> {
        if self.breaker.open.is_some() {
            return Ok(());
        }
        self.breaker.trip(self.now_seconds, why.clone());
        self.say_breaker(&why)
    }

    fn say_breaker(&mut self, why: &str) -> anyhow::Result<()> {
        let event = Event::breaker(why, self.now_seconds);
        (self.say)(Said::Event(Box::new(event)))
    }

    /// When and why the breaker would have tripped.
    pub(super) fn tripped(&self) -> Option<(f64, &str)> {
        let open = self.breaker.open.as_ref()?;
        Some((open.since_seconds, open.why.as_str()))
    }

    /// How many violations there are at the end, of which anything was said.
    pub(super) fn still_open(&self) -> usize {
        self.open.values().filter(|open| open.is_said).count()
    }
}

fn finite(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}
