//! The steps of a cycle that other hosts execute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use genv_core::model::HostSnapshot;

use super::Cycle;
use super::local_steps::{budget, message_outcome};
use crate::config::{BreakerLimits, Mode, zone};
use crate::control::Control;
use crate::directory::FileError;
use crate::execute::{LogPosition, paced};
use crate::history_file::OnDisk;
use crate::plan::words;
use crate::plan::{Key, Outcome, Plan, Step, StepKind, Violation};
use crate::reload::InForce;
use crate::remote_steps::dispatcher::{Dispatcher, FinishedStep, SentStep, hosts_of};
use crate::remote_steps::{RemoteStep, Rules, StepRequest, VERSION};
use crate::user_reports::{self, Actions};

impl Cycle {
    /// Has other hosts execute all steps.
    #[must_use]
    pub(crate) fn with_dispatcher(mut self, dispatcher: Dispatcher) -> Self {
        self.dispatcher = Some(dispatcher);
        self.actions = Arc::new(Actions::load(&self.directory, self.done_file()));
        self.missing_capabilities.clear();
        self
    }

    /// Settles the reports that have arrived since the last cycle, and notes the processes that SIGKILL has not ended.
    pub(super) fn settle_reports(&mut self, hosts: &[HostSnapshot], now_seconds: f64, faults: &mut Vec<String>) {
        let Some(mut dispatcher) = self.dispatcher.take() else {
            return;
        };
        let finished = dispatcher.begin_cycle(hosts);
        if !finished.is_empty() {
            self.on_disk = OnDisk::default();
        }
        self.settle_finished(&mut dispatcher, finished, now_seconds);
        let unable = dispatcher.unable();
        faults.extend(unable.map(|(hostname, why)| format!("nothing can be done on {}: {why}", words::name(hostname))));
        for (target, dispatched) in dispatcher.unkillable(hosts) {
            self.executor.note_unkillable(dispatched);
            self.note_unkillable(&target, faults);
        }
        self.dispatcher = Some(dispatcher);
    }

    /// Sends all steps to their hosts, each host its steps in their order, and settles the reports that arrive at once.
    pub(super) fn dispatch(
        &mut self,
        plan: &Plan,
        rules: &InForce,
        control: &Control,
        now: &impl Fn() -> f64,
        stopping: &AtomicBool,
        unwritten: Option<&FileError>,
    ) {
        let Some(mut dispatcher) = self.dispatcher.take() else {
            return;
        };
        let position = self.executor.log_position();
        let by_key: BTreeMap<&Key, &Violation> = plan.violations.iter().map(|it| (&it.key, it)).collect();
        let mut by_host: BTreeMap<String, Vec<SentStep>> = BTreeMap::new();
        let (began, budget) = (Instant::now(), budget(&rules.config));
        for step in &plan.steps {
            let Some(&violation) = by_key.get(&step.key) else {
                continue;
            };
            self.heartbeat.beat();
            let is_action = words::deed(&step.kind).is_some();
            if is_action && stopping.load(Ordering::Relaxed) {
                break;
            }
            if is_action && began.elapsed() > budget {
                continue;
            }
            let mode = self.executor.mode();
            let limits = &rules.config.breaker;
            let outcome = self.prepare(&mut dispatcher, violation, step, unwritten, limits, &mut by_host);
            if let Some(outcome) = outcome {
                self.settle_remote(violation, step, &outcome, mode, now());
            }
        }
        // A request without steps has the host end the remaining processes of devices that it has detached.
        let unfinished = dispatcher.take_unfinished();
        if control.paused_until_seconds.is_none() && self.executor.acts() && unwritten.is_none() {
            for hostname in unfinished {
                by_host.entry(hostname).or_default();
            }
        }
        let hostnames: Vec<String> = by_host.keys().cloned().collect();
        for (hostname, steps) in by_host {
            let request = self.step_request(&hostname, rules, &steps, now());
            let request = serde_json::to_value(request).unwrap_or_default();
            dispatcher.send(&hostname, request, steps, position.clone());
        }
        let finished = dispatcher.wait_for(&hostnames);
        self.settle_finished(&mut dispatcher, finished, now());
        self.dispatcher = Some(dispatcher);
        self.keep_reports(rules, now());
    }

    /// Adds a step to the requests of its hosts. Returns an outcome for a step that is not sent to any host.
    fn prepare(
        &mut self,
        dispatcher: &mut Dispatcher,
        violation: &Violation,
        step: &Step,
        unwritten: Option<&FileError>,
        limits: &BreakerLimits,
        by_host: &mut BTreeMap<String, Vec<SentStep>>,
    ) -> Option<Outcome> {
        let mode = self.executor.mode();
        let hostnames = hosts_of(step, violation);
        let is_message = words::deed(&step.kind).is_none();
        if is_message && (mode == Mode::DryRun || step.kind == StepKind::Report || hostnames.is_empty()) {
            return Some(message_outcome(mode));
        }
        if is_message && let Err(outcome) = self.executor.check_breaker() {
            return Some(outcome);
        }
        if let Some(error) = unwritten.filter(|_| !is_message) {
            return Some(Outcome::Refused { reason: format!("the history cannot be written: {error}"), again: true });
        }
        for hostname in hostnames {
            if !dispatcher.may_send(&hostname, step) {
                continue;
            }
            let dispatched = if is_message {
                None
            } else {
                if self.executor.acts() && !dispatcher.may_hit(&hostname, step, limits) {
                    return Some(paced());
                }
                let why = violation.reason();
                match self.executor.dispatch(step, &why) {
                    Ok(dispatched) => Some(dispatched),
                    Err(outcome) => return Some(outcome),
                }
            };
            let sent = SentStep { step: step.clone(), violation: violation.clone(), dispatched };
            by_host.entry(hostname).or_default().push(sent);
        }
        None
    }

    fn step_request(&self, hostname: &str, rules: &InForce, steps: &[SentStep], now_seconds: f64) -> StepRequest {
        let steps = steps.iter().map(|sent| RemoteStep::new(&sent.step, &sent.violation, hostname));
        StepRequest {
            version: VERSION,
            asked_by: self.hostname.clone(),
            hostname: hostname.to_owned(),
            now_seconds,
            rules: Rules {
                source: rules.source.clone(),
                written: (*rules.written).clone(),
                hash: rules.config.hash.clone(),
                timezone: zone::sent(&rules.config.timezone, now_seconds),
            },
            steps: steps.collect(),
        }
    }

    fn settle_finished(&mut self, dispatcher: &mut Dispatcher, finished: Vec<FinishedStep>, now_seconds: f64) {
        for FinishedStep { sent, mut outcome, is_known } in finished {
            self.heartbeat.beat();
            let SentStep { step, violation, dispatched } = sent;
            match dispatched {
                Some(dispatched) => {
                    self.executor.conclude_dispatched(&dispatched, &outcome, is_known);
                    match (&step.kind, &outcome) {
                        (StepKind::Kill(target), Outcome::Done) => {
                            dispatcher.remember_killed((**target).clone(), dispatched);
                        }
                        (StepKind::Detach(target), Outcome::Done) => dispatcher.remember_detached(target.clone()),
                        _ => {}
                    }
                }
                // A warning that may be undelivered is sent again. With several hosts, one undelivered warning is enough.
                None => {
                    let has_many_hosts = violation.hostname.is_none();
                    if let Outcome::Failed { reason } | Outcome::Refused { reason, .. } = &outcome
                        && (!is_known || has_many_hosts)
                    {
                        outcome = Outcome::Refused { reason: reason.clone(), again: true };
                    }
                }
            }
            // The breaker can have opened since the request, which was sent in mode enforce.
            self.settle_remote(&violation, &step, &outcome, Mode::Enforce, now_seconds);
        }
    }

    fn settle_remote(&mut self, violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode, now_seconds: f64) {
        self.log_limit.step(violation, step, outcome, mode);
        self.counters.count(violation, &step.kind, outcome, mode);
        if words::deed(&step.kind).is_some() && *outcome == Outcome::Done {
            self.reports.push(user_reports::of_action(violation, &step.kind, now_seconds));
        }
        self.settle(step, outcome, now_seconds);
    }

    /// The steps in flight and the position in the audit log before them. The next program needs both if this program is
    /// killed.
    pub(super) fn in_flight(&self) -> (LogPosition, Vec<Step>) {
        let position = self.executor.log_position();
        match &self.dispatcher {
            None => (position, Vec::new()),
            Some(dispatcher) => {
                let (oldest, steps) = dispatcher.in_flight();
                (oldest.unwrap_or(position), steps.cloned().collect())
            }
        }
    }
}
