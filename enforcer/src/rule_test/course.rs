//! One test's time, from its begin to its last expectation.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use genv_core::collect::{CollectOptions, Collection};
use genv_core::model::HostSnapshot;
use genv_simulator::Engine;

use super::control::TestControl;
use super::fact::{self, Fact, Happened};
use super::stage::Stage;
use crate::config::Config;
use crate::plan::{History, Input, Outcome};

/// What a test plays.
pub(super) struct Course {
    pub(super) engine: Arc<Engine>,
    pub(super) config: Config,
    /// By user; of other users of the scenario: none.
    pub(super) groups: BTreeMap<String, BTreeSet<String>>,
    /// Processes that SIGTERM does not end, by pid.
    pub(super) stubborn: BTreeSet<u32>,
    pub(super) missing: Vec<Missing>,
    pub(super) control: TestControl,
    pub(super) until: Duration,
}

/// A time during which a host does not answer.
pub(super) struct Missing {
    pub(super) hostname: String,
    pub(super) from: Duration,
    /// Absent: it does not come back.
    pub(super) until: Option<Duration>,
}

/// What there was, cycle by cycle.
#[derive(Debug, Default)]
pub(super) struct Record(pub(super) Vec<Cycle>);

/// One look at the hosts.
#[derive(Debug)]
pub(super) struct Cycle {
    /// Since the begin.
    pub(super) at: Duration,
    pub(super) violations: Vec<Fact>,
    pub(super) warnings: Vec<Fact>,
    pub(super) actions: Vec<Fact>,
}

/// Sources are waited for in real time; a busy machine needs more of it than the shortest interval.
const PATIENT_INTERVAL: Duration = Duration::from_secs(10);

impl Course {
    pub(super) fn run(&self) -> io::Result<Record> {
        let scenario = self.engine.scenario();
        let epoch = scenario.hosts.iter().map(|host| host.epoch_milliseconds).min();
        let epoch = Duration::from_millis(epoch.and_then(|epoch| epoch.try_into().ok()).unwrap_or_default());
        let mut groups = self.groups.clone();
        for name in scenario.users.values() {
            groups.entry(name.clone()).or_default();
        }
        let mut stage = Stage::default();
        stage.turn_clock(milliseconds(epoch));
        let interval = self.config.interval.max(PATIENT_INTERVAL);
        let options = CollectOptions::every(interval);
        let sources = stage.sources(&self.engine);
        let mut collection = Collection::by_clock(sources, &options, stage.clock())?;
        let mut history = History::default();
        let mut record = Record::default();
        let mut at = Duration::ZERO;
        while at <= self.until {
            let now = epoch + at;
            stage.turn_clock(milliseconds(now));
            let mut publication = collection.cycle();
            for host in &mut publication.hosts {
                self.show(host, at);
            }
            let waivers = self.control.waivers(epoch, at);
            let input = Input {
                hosts: &publication.hosts,
                config: &self.config,
                groups: &groups,
                waivers: &waivers,
                unconfirmed: None,
                paused_until_seconds: self.control.paused_until_seconds(epoch, at),
                now_seconds: now.as_secs_f64(),
            };
            let planned = history.plan(&input);
            let mut cycle = Cycle {
                at,
                violations: planned.violations.iter().map(|it| fact::violation(it, input.hosts)).collect(),
                warnings: Vec::new(),
                actions: Vec::new(),
            };
            for step in &planned.steps {
                let violation = planned.violations.iter().find(|violation| violation.key == step.key);
                match fact::happened(step, violation, input.hosts) {
                    Some(Happened::Warning(fact)) => cycle.warnings.push(fact),
                    Some(Happened::Action(fact)) => cycle.actions.push(fact),
                    None => {}
                }
                stage.carry_out(&step.kind, &self.stubborn);
                history.settle(step, &Outcome::Done, input.now_seconds);
            }
            record.0.push(cycle);
            at += self.config.interval;
        }
        Ok(record)
    }

    /// A host as the test has it: collected as often as the rules are looked at, and not while it is missing.
    fn show(&self, host: &mut HostSnapshot, at: Duration) {
        let mut missing = self.missing.iter().filter(|missing| missing.hostname == host.hostname);
        if missing.any(|missing| missing.from <= at && missing.until.is_none_or(|until| at < until)) {
            host.up = false;
            host.snapshot = None;
        }
        if let Some(snapshot) = &mut host.snapshot {
            Arc::make_mut(snapshot).interval_seconds = self.config.interval.as_secs_f64();
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
