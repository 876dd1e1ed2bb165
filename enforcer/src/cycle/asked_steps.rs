//! Steps of a cycle that other hosts are asked to take.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use genv_core::model::HostSnapshot;

use super::Cycle;
use super::own_steps::{budget, said};
use crate::asking::{Asking, Begun, Settled, hosts_of};
use crate::config::{BreakerLimits, Mode};
use crate::directory::FileError;
use crate::execute::{Mark, paced};
use crate::history_file::OnDisk;
use crate::intents::{Intent, Intents, Rules, VERSION};
use crate::plan::words;
use crate::plan::{Key, Outcome, Plan, Step, StepKind, Violation};
use crate::reload::InForce;

impl Cycle {
    /// Settles what hosts have answered since the last cycle, and notes what did not end by SIGKILL.
    pub(super) fn take_answers(&mut self, hosts: &[HostSnapshot], now_seconds: f64, faults: &mut Vec<String>) {
        let Some(mut asking) = self.asking.take() else {
            return;
        };
        let settled = asking.take(hosts);
        if !settled.is_empty() {
            self.on_disk = OnDisk::default();
        }
        self.settle_answers(&mut asking, settled, now_seconds);
        faults.extend(
            asking.unable().map(|(hostname, why)| format!("nothing can be done on {}: {why}", words::name(hostname))),
        );
        for (target, asked) in asking.unkillable(hosts) {
            self.executor.note_unkillable(asked);
            self.note_unkillable(&target, faults);
        }
        self.asking = Some(asking);
    }

    /// Asks the hosts to take all steps, each host in their order, and settles what they answer at once.
    pub(super) fn ask_hosts(
        &mut self,
        asking: &mut Asking,
        plan: &Plan,
        rules: &InForce,
        now: &impl Fn() -> f64,
        stopping: &AtomicBool,
        unwritten: Option<&FileError>,
    ) {
        let mark = self.executor.mark();
        let by_key: BTreeMap<&Key, &Violation> = plan.violations.iter().map(|it| (&it.key, it)).collect();
        let mut begun: BTreeMap<String, Vec<Begun>> = BTreeMap::new();
        let (began, budget) = (Instant::now(), budget(&rules.config));
        for step in &plan.steps {
            let Some(&violation) = by_key.get(&step.key) else {
                continue;
            };
            self.progress.note();
            let is_deed = words::deed(&step.kind).is_some();
            if is_deed && stopping.load(Ordering::Relaxed) {
                break;
            }
            if is_deed && began.elapsed() > budget {
                continue;
            }
            let mode = self.executor.mode();
            let limits = &rules.config.breaker;
            let outcome = self.begin(asking, violation, step, unwritten, limits, &mut begun);
            if let Some(outcome) = outcome {
                self.settle_asked(violation, step, &outcome, mode, now());
            }
        }
        if self.executor.acts() && unwritten.is_none() {
            for hostname in asking.unfinished() {
                begun.entry(hostname).or_default();
            }
        }
        let asked: Vec<String> = begun.keys().cloned().collect();
        for (hostname, begun) in begun {
            let intents = self.intents(&hostname, rules, &begun, now());
            let intents = serde_json::to_value(intents).unwrap_or_default();
            asking.ask(&hostname, intents, begun, mark.clone());
        }
        let settled = asking.wait(&asked);
        self.settle_answers(asking, settled, now());
    }

    /// Adds a step to what its hosts are asked; returns how it went if they need not be, or may not.
    fn begin(
        &mut self,
        asking: &mut Asking,
        violation: &Violation,
        step: &Step,
        unwritten: Option<&FileError>,
        limits: &BreakerLimits,
        begun: &mut BTreeMap<String, Vec<Begun>>,
    ) -> Option<Outcome> {
        let mode = self.executor.mode();
        let hostnames = hosts_of(step, violation);
        let is_said = words::deed(&step.kind).is_none();
        if is_said && (mode == Mode::DryRun || step.kind == StepKind::Report || hostnames.is_empty()) {
            return Some(said(mode));
        }
        if is_said && let Err(outcome) = self.executor.ask_breaker() {
            return Some(outcome);
        }
        if let Some(error) = unwritten.filter(|_| !is_said) {
            return Some(Outcome::Refused {
                reason: format!("what was done could not be remembered: {error}"),
                again: true,
            });
        }
        for hostname in hostnames {
            if !asking.may_ask(&hostname, step) {
                continue;
            }
            let asked = if is_said {
                None
            } else {
                if self.executor.acts() && !asking.may_hit(&hostname, step, limits) {
                    return Some(paced());
                }
                let why = format!("{}; allowed: {}", violation.found, violation.allowed);
                match self.executor.ask(step, &why) {
                    Ok(asked) => Some(asked),
                    Err(outcome) => return Some(outcome),
                }
            };
            begun.entry(hostname).or_default().push(Begun { step: step.clone(), violation: violation.clone(), asked });
        }
        None
    }

    fn intents(&self, hostname: &str, rules: &InForce, begun: &[Begun], now_seconds: f64) -> Intents {
        let zone = rules.config.timezone.iana_name();
        let steps = begun.iter().map(|it| Intent::new(&it.step, &it.violation, hostname));
        Intents {
            version: VERSION,
            asked_by: self.hostname.clone(),
            hostname: hostname.to_owned(),
            now_seconds,
            rules: Rules {
                source: rules.source.clone(),
                written: (*rules.written).clone(),
                hash: rules.config.hash.clone(),
                timezone: zone.map(str::to_owned),
            },
            steps: steps.collect(),
        }
    }

    fn settle_answers(&mut self, asking: &mut Asking, settled: Vec<Settled>, now_seconds: f64) {
        for settled in settled {
            self.progress.note();
            let Settled { begun, mut outcome, is_known } = settled;
            let Begun { step, violation, asked } = begun;
            match asked {
                Some(asked) => {
                    self.executor.answered(&asked, &outcome, is_known);
                    match (&step.kind, &outcome) {
                        (StepKind::Kill(target), Outcome::Done) => {
                            asking.killed((**target).clone(), asked);
                        }
                        (StepKind::Detach(target), Outcome::Done) => asking.took(target.clone()),
                        _ => {}
                    }
                }
                // Who was not told, or may not have been, is told again; one of many hosts that cannot tell is enough.
                None => {
                    let of_many = violation.hostname.is_none();
                    if let Outcome::Failed { reason } | Outcome::Refused { reason, .. } = &outcome
                        && (!is_known || of_many)
                    {
                        outcome = Outcome::Refused { reason: reason.clone(), again: true };
                    }
                }
            }
            // The breaker may have opened since it was asked.
            self.settle_asked(&violation, &step, &outcome, Mode::Enforce, now_seconds);
        }
    }

    fn settle_asked(&mut self, violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode, now_seconds: f64) {
        self.lines.step(violation, step, outcome, mode);
        self.counters.count(violation, &step.kind, outcome, mode);
        self.settle(step, outcome, now_seconds);
    }

    /// What is being asked, for the next program if this one is killed: since when, and the deeds.
    pub(super) fn in_flight(&self) -> (Mark, Vec<Step>) {
        let mark = self.executor.mark();
        match &self.asking {
            None => (mark, Vec::new()),
            Some(asking) => {
                let (begun_at, steps) = asking.in_flight();
                (begun_at.unwrap_or(mark), steps.cloned().collect())
            }
        }
    }
}
