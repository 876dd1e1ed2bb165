//! Steps of a cycle that are taken on this host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Cycle, log};
use crate::config::{Config, Mode};
use crate::control::Control;
use crate::directory::FileError;
use crate::plan::words;
use crate::plan::{Key, Outcome, Plan, Step, StepKind, Violation};
use crate::reload::InForce;
use crate::tell::notice::notice;

impl Cycle {
    /// Ends processes of which the device was taken in an earlier cycle, unless an administrator has them wait.
    pub(super) fn end_left(
        &mut self,
        config: &Config,
        control: &Control,
        may_act: bool,
        now_seconds: f64,
    ) {
        if control.paused_until_seconds.is_some() || !may_act {
            return;
        }
        let given = control.waivers();
        let hostname = &self.hostname;
        self.executor.end_left(|rule, process| {
            let under_maintenance = config.maintenance.iter().any(|window| {
                window.hosts.0.contains(hostname)
                    && window.from_seconds <= now_seconds
                    && now_seconds < window.until_seconds
            });
            let uid = format!("uid:{}", process.uid);
            let mut waivers = config.waivers.iter().chain(&given);
            under_maintenance
                || waivers.any(|waiver| {
                    now_seconds < waiver.until_seconds
                        && (waiver.users.contains(&process.username) || waiver.users.contains(&uid))
                        && (waiver.rules.is_empty() || waiver.rules.contains(rule))
                })
        });
    }

    /// Takes all steps in their order, and settles how each went.
    pub(super) fn take_steps(
        &mut self,
        plan: &Plan,
        rules: &InForce,
        now: &impl Fn() -> f64,
        stopping: &AtomicBool,
        unwritten: Option<&FileError>,
    ) {
        self.said.keep(plan);
        let by_key: BTreeMap<&Key, &Violation> =
            plan.violations.iter().map(|it| (&it.key, it)).collect();
        for step in &plan.steps {
            let Some(violation) = by_key.get(&step.key) else {
                continue;
            };
            let is_deed = words::deed(&step.kind).is_some();
            if is_deed && stopping.load(Ordering::Relaxed) {
                return;
            }
            let now_seconds = now();
            // It may trip at any deed.
            let mode = self.executor.mode();
            let outcome = match (&step.kind, unwritten) {
                (StepKind::Report, _) => said(mode),
                (StepKind::Warn { .. }, _) => {
                    self.tell(violation, step, mode, rules, now_seconds);
                    said(mode)
                }
                (_, Some(error)) => Outcome::Refused {
                    reason: format!("what was done could not be remembered: {error}"),
                    again: true,
                },
                (_, None) => {
                    let why = format!("{}; allowed: {}", violation.found, violation.allowed);
                    let outcome = self.executor.carry_out(step, &why);
                    if outcome == Outcome::Done {
                        self.tell(violation, step, mode, rules, now_seconds);
                    }
                    outcome
                }
            };
            if !self.said.is_refused_still(step, &outcome) {
                log::step(violation, step, &outcome, mode);
                self.counters.count(violation, &step.kind, &outcome, mode);
            }
            self.history.settle(step, &outcome, now_seconds);
        }
    }

    /// Tells the user, where a violation is on this host, and not in dry-run.
    fn tell(
        &self,
        violation: &Violation,
        step: &Step,
        mode: Mode,
        rules: &InForce,
        now_seconds: f64,
    ) {
        let here = violation
            .hostname
            .as_ref()
            .is_none_or(|it| *it == self.hostname);
        let Some(uid) = violation.uid.filter(|_| here && mode == Mode::Enforce) else {
            return;
        };
        if let Some(text) = notice(violation, &step.kind, now_seconds, &rules.config.timezone) {
            let terminals = self.terminals.tell(uid, &text);
            tracing::debug!(uid, terminals, "a user is told");
        }
    }
}

/// How it went to say something.
pub(super) const fn said(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Done,
        Mode::DryRun => Outcome::Would,
    }
}
