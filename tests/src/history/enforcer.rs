//! An enforcer that is told what the exporter collected, at the time of that.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use genv_core::model::HostSnapshot;
use genv_enforcer::config::{Config, Mode};
use genv_enforcer::metrics::{self, Counters, Measured};
use genv_enforcer::plan::{History, Input, Outcome, StepKind};
use genv_web::metrics::{MetricFamily, Samples};

/// How long it is paused before it is switched on.
const PAUSE: Duration = Duration::from_secs(30 * 60);

/// Rules, and since when they are enforced.
#[derive(Clone, Debug)]
pub(super) struct Enforcement {
    pub(super) config: Config,
    /// From the beginning of the history; before, the mode is dry-run.
    pub(super) switched_on: Duration,
}

/// The real plan, its history and its counters. Nothing is carried out: of a deed on hosts that are not this one the
/// executor would say no.
pub(super) struct PlayedEnforcer {
    enforcement: Enforcement,
    began_seconds: f64,
    history: History,
    counters: Counters,
}

impl PlayedEnforcer {
    pub(super) fn new(enforcement: &Enforcement, began: SystemTime) -> Result<Self> {
        Ok(Self {
            enforcement: enforcement.clone(),
            began_seconds: began.duration_since(UNIX_EPOCH)?.as_secs_f64(),
            history: History::default(),
            counters: Counters::default(),
        })
    }

    /// A cycle so long after the beginning, and what would be served at `/metrics` after it.
    pub(super) fn cycle(&mut self, hosts: &[HostSnapshot], passed: Duration) -> Vec<MetricFamily> {
        let Enforcement { config, switched_on } = &mut self.enforcement;
        let switched_on = *switched_on;
        let mut loaded_seconds = self.began_seconds;
        if passed >= switched_on {
            config.mode = Mode::Enforce;
            loaded_seconds += switched_on.as_secs_f64();
            self.history.forget_rehearsal();
        }
        let now_seconds = self.began_seconds + passed.as_secs_f64();
        let is_paused = passed < switched_on && passed + PAUSE >= switched_on;
        let paused_until = self.began_seconds + switched_on.as_secs_f64();
        let paused_until_seconds = is_paused.then_some(paused_until);
        let input = Input {
            hosts,
            config,
            groups: &BTreeMap::new(),
            waivers: &[],
            unconfirmed: None,
            paused_until_seconds,
            now_seconds,
        };
        let plan = self.history.plan(&input);
        let hostnames = || hosts.iter().map(|host| host.hostname.as_str());
        let mode = config.mode;
        self.counters.shown();
        self.counters.begin(&config.rules, hostnames(), &plan, mode);
        for step in &plan.steps {
            let mut violations = plan.violations.iter();
            let Some(violation) = violations.find(|it| it.key == step.key) else {
                continue;
            };
            let outcome = match (&step.kind, mode) {
                (_, Mode::DryRun) => Outcome::Would,
                (StepKind::Report | StepKind::Warn { .. }, Mode::Enforce) => Outcome::Done,
                (_, Mode::Enforce) => Outcome::Refused { reason: "it is on another host".to_owned(), again: false },
            };
            self.counters.count(violation, &step.kind, &outcome, mode);
            self.history.settle(step, &outcome, now_seconds);
        }
        let measured = Measured {
            violations: metrics::violations(&plan, &config.rules, hostnames()),
            stages: metrics::stages(&plan),
            unknown_processes: metrics::unknown_processes(&plan, hostnames()),
            unknown_user_processes: metrics::unknown_user_processes(&plan),
            last_cycle_seconds: now_seconds,
            cycle_duration_seconds: 0.002,
            actions: Vec::new(),
            breaker_open: false,
            mode,
            paused_until_seconds,
            config_hash: config.hash.clone(),
            reload_successful: true,
            reload_success_seconds: loaded_seconds,
            faults: 0,
            disputed_records: metrics::unknown_processes(&plan, hostnames())
                .into_keys()
                .map(|hostname| (hostname, 0))
                .collect(),
            blind: Default::default(),
            lock_is_held: false,
            undelivered: hostnames()
                .flat_map(|hostname| {
                    let rules = config.rules.iter();
                    rules.map(move |rule| ((hostname.to_owned(), rule.name.clone()), 0))
                })
                .collect(),
            counters: self.counters.clone(),
        };
        let mut all = Vec::new();
        metrics::families(&measured, &mut Samples::default(), |family| {
            all.push(family.clone());
        });
        all
    }
}
