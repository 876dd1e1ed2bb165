//! Steps of a cycle that are executed on this host.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use genv_core::model::HostSnapshot;

use super::{Cycle, too_many};
use crate::config::{Config, Mode, Waiver};
use crate::control::Control;
use crate::directory::FileError;
use crate::execute::Executor;
use crate::notices::notice::Notice;
use crate::plan::words;
use crate::plan::{History, Input, Key, Outcome, Plan, ProcessTarget, Since, StepKind, Violation};
use crate::reload::InForce;
use crate::user_reports;

/// The outcome of a warning.
struct Warned {
    /// The outcome for the rule.
    outcome: Outcome,
    /// The reason for a failed delivery, where the rule does not wait for the delivery.
    unread: Option<String>,
}

impl Default for Warned {
    fn default() -> Self {
        Self { outcome: Outcome::Done, unread: None }
    }
}

/// How long the steps of a cycle may take, however short the interval.
const SHORTEST_BUDGET: Duration = Duration::from_secs(5);

/// Whether maintenance or a waiver exempts a remaining process of a detached device now.
pub(crate) fn is_exempt_now(
    config: &Config,
    given: &[Waiver],
    (hostname, now_seconds): (&str, f64),
    rule: &str,
    process: &ProcessTarget,
) -> bool {
    let under_maintenance = config.maintenance.iter().any(|window| {
        window.hosts.0.contains(hostname) && window.from_seconds <= now_seconds && now_seconds < window.until_seconds
    });
    let uid = format!("uid:{}", process.uid);
    let mut waivers = config.waivers.iter().chain(given);
    under_maintenance
        || waivers.any(|waiver| {
            now_seconds < waiver.until_seconds
                && (waiver.users.contains(&process.username) || waiver.users.contains(&uid))
                && (waiver.rules.is_empty() || waiver.rules.contains(rule))
        })
}

/// Drops remaining processes of detached devices that their rule would not end now.
pub(crate) fn keep_remaining(
    executor: &mut Executor,
    hosts: &[HostSnapshot],
    config: &Config,
    history: &History,
    now_seconds: f64,
) {
    let since = LazyCell::new(|| {
        let input = Input {
            hosts,
            config,
            groups: const { &BTreeMap::new() },
            waivers: &[],
            paused_until_seconds: None,
            unconfirmed: None,
            now_seconds,
        };
        Since::new(&input, history)
    });
    executor.keep_remaining(|name, process, gpu| {
        let mut rules = config.rules.iter().filter(|rule| rule.action.acts());
        let rule = rules.find(|rule| rule.name == name);
        rule.is_some_and(|rule| !since.is_spared(rule, process, gpu))
    });
}

impl Cycle {
    /// Notifies the holder of the lock of genv's state that no device can be detached, once per hold.
    pub(super) fn notify_lock_holder(&mut self, faults: &mut Vec<String>) -> bool {
        let blocked = self.executor.blocked().cloned();
        if let Some(blocked) = &blocked {
            faults.push(blocked.why.clone());
            let uid = blocked.holder.as_ref().and_then(|holder| holder.uid);
            let is_new = self.blocked.as_ref() != Some(blocked);
            if let Some((uid, holder)) = uid.zip(blocked.holder.as_ref()).filter(|_| is_new) {
                let text = format!(
                    "\r\ngenv-enforcer: your process {} ({}) holds the lock of genv's state, so that no other command can change it. End it: kill {}\r\n",
                    holder.pid, holder.name, holder.pid
                );
                let terminals = self.delivery.write_text(uid, &text);
                tracing::warn!(
                    event = "lock_held",
                    pid = holder.pid,
                    uid,
                    terminals,
                    "a process holds the lock of genv's state, and no device can be taken"
                );
            }
        }
        self.blocked = blocked;
        self.blocked.is_some()
    }

    /// Ends remaining processes of devices that an earlier cycle detached, except exempt ones.
    pub(super) fn end_remaining(
        &mut self,
        hosts: &[HostSnapshot],
        config: &Config,
        control: &Control,
        may_act: bool,
        now_seconds: f64,
    ) {
        if control.paused_until_seconds.is_some() || !may_act {
            return;
        }
        keep_remaining(&mut self.executor, hosts, config, &self.history, now_seconds);
        let given = control.waivers();
        let hostname = &self.hostname;
        self.executor
            .end_remaining(|rule, process| is_exempt_now(config, &given, (hostname, now_seconds), rule, process));
    }

    /// Executes all steps in their order, and settles the outcome of each.
    pub(super) fn take_steps(
        &mut self,
        plan: &Plan,
        rules: &InForce,
        now: &impl Fn() -> f64,
        stopping: &AtomicBool,
        unwritten: Option<&FileError>,
    ) {
        self.logged.keep(plan);
        let by_key: BTreeMap<&Key, &Violation> = plan.violations.iter().map(|it| (&it.key, it)).collect();
        let mode = self.executor.mode();
        let withheld = match mode {
            Mode::Enforce => self.executor.check_breaker().err(),
            Mode::DryRun => Some(Outcome::Would),
        };
        let mut warned = match withheld {
            None => self.warn(plan, &by_key, rules, now()).into_iter(),
            Some(_) => Vec::new().into_iter(),
        };
        let mut done = Vec::new();
        let began = Instant::now();
        let budget = budget(&rules.config);
        for step in &plan.steps {
            let Some(&violation) = by_key.get(&step.key) else {
                continue;
            };
            self.heartbeat.beat();
            let deed = words::deed(&step.kind);
            let is_action = deed.is_some();
            if is_action && stopping.load(Ordering::Relaxed) {
                break;
            }
            if is_action && began.elapsed() > budget {
                continue;
            }
            let mut unread = None;
            let outcome = match (&step.kind, unwritten) {
                (StepKind::Report, _) => message_outcome(mode),
                (StepKind::Warn { .. }, _) => match &withheld {
                    Some(outcome) => outcome.clone(),
                    None => {
                        let warned = warned.next().unwrap_or_default();
                        unread = warned.unread;
                        warned.outcome
                    }
                },
                (_, Some(error)) => {
                    Outcome::Refused { reason: format!("the history cannot be written: {error}"), again: true }
                }
                (_, None) => {
                    let why = violation.reason();
                    let step_began = Instant::now();
                    let outcome = self.executor.execute(step, &why);
                    if let Some((action, _)) = deed
                        && outcome != Outcome::Would
                    {
                        self.timed_actions.push((action, step_began.elapsed().as_secs_f64()));
                    }
                    outcome
                }
            };
            if is_action && outcome == Outcome::Done {
                done.push(Notice { violation, step: &step.kind });
            }
            // A warning without a recipient counts as failed, although its rule does not wait for the delivery.
            let failed = unread.as_ref().map(|reason| Outcome::Failed { reason: reason.clone() });
            let result = failed.as_ref().unwrap_or(&outcome);
            if !self.logged.is_repeated_refusal(step, result) {
                self.log_limit.step(violation, step, result, mode);
                self.counters.count(violation, &step.kind, result, mode);
            }
            self.settle(step, &outcome, now());
            if let Some(reason) = unread {
                self.history.note_unread(&step.key, reason);
            }
        }
        let now_seconds = now();
        self.reports.extend(done.iter().map(|it| user_reports::of_action(it.violation, it.step, now_seconds)));
        self.keep_reports(rules, now_seconds);
        self.delivery.report(&done, now_seconds, &rules.config.timezone);
    }

    /// Delivers the warnings of a plan. Returns the outcome of each, in their order.
    fn warn(
        &mut self,
        plan: &Plan,
        by_key: &BTreeMap<&Key, &Violation>,
        rules: &InForce,
        now_seconds: f64,
    ) -> Vec<Warned> {
        let config = &*rules.config;
        let socket = config.notify_socket.as_deref();
        self.delivery.set_notifier(socket, &self.hostname);
        let warnings = plan.steps.iter().filter_map(|step| {
            let violation = *by_key.get(&step.key)?;
            let is_warning = matches!(step.kind, StepKind::Warn { .. });
            is_warning.then_some(Notice { violation, step: &step.kind })
        });
        let warnings: Vec<Notice<'_>> = warnings.collect();
        let here: Vec<_> = warnings.iter().filter(|it| self.is_here(it)).copied().collect();
        let zone = &config.timezone;
        let listed = too_many::listed(plan).map(|it| &it.key).collect();
        let mut delivered = self.delivery.warn(&here, &listed, config.interval, now_seconds, zone).into_iter();
        let mut outcomes = Vec::new();
        for warning in &warnings {
            if !self.is_here(warning) {
                outcomes.push(Warned::default());
                continue;
            }
            let delivered = delivered.next().unwrap_or(Ok(()));
            let key = &warning.violation.key;
            match &delivered {
                Ok(()) => _ = self.undelivered.remove(key),
                Err(_) => _ = self.undelivered.insert(key.clone()),
            }
            let outcome = warning.outcome(&delivered, config);
            let unread = delivered.err().filter(|_| outcome == Outcome::Done);
            outcomes.push(Warned { outcome, unread });
        }
        outcomes
    }

    /// Whether a violation is on this host.
    fn is_here(&self, notice: &Notice<'_>) -> bool {
        let hostname = notice.violation.hostname.as_ref();
        hostname.is_none_or(|it| *it == self.hostname)
    }
}

/// How long the actions of a cycle may take; what is left over is planned again.
pub(super) fn budget(config: &Config) -> Duration {
    config.interval.max(SHORTEST_BUDGET)
}

/// The outcome of a step that is only a message.
pub(super) const fn message_outcome(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Done,
        Mode::DryRun => Outcome::Would,
    }
}
