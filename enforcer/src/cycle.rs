//! One cycle: from what is true now to what is done about it, told, and remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use genv_core::enforcement::{
    ENFORCEMENT_FILE, ENFORCEMENT_VERSION, Enforcement, EnforcementConfig,
};
use genv_core::model::{HostSnapshot, Publication};
use genv_web::HealthLog;

use crate::capabilities;
use crate::config::{Mode, Waiver};
use crate::control::Control;
use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::execute::{Executor, Policy, users_hit};
use crate::groups::{self, Groups};
use crate::host::users_of_devices;
use crate::memory;
use crate::metrics::{self, Counters, Measured, mode_word};
use crate::plan::{History, Input, Key, Outcome, Plan, Step, StepKind, Violation, plan};
use crate::reload::InForce;
use crate::status;
use crate::tell::notice::notice;
use crate::tell::terminals::Terminals;
use crate::tell::words;

/// What is remembered from cycle to cycle, and everything that a cycle acts with.
#[derive(Debug)]
pub struct Cycle {
    /// This host, as snapshots call it.
    hostname: String,
    directory: RuntimeDirectory,
    executor: Executor,
    history: History,
    groups: Groups,
    terminals: Terminals,
    counters: Counters,
    started_seconds: f64,
    /// What could be learned of [`Control`] last.
    control: Option<Control>,
    /// What was wrong in the last cycle, said already.
    said: BTreeSet<String>,
    /// What stays wrong until a restart.
    lasting_faults: Vec<String>,
    /// What this process may not do, which is of importance where facts are of this host.
    missing_capabilities: Vec<String>,
    health: HealthLog,
}

/// What came of a cycle.
#[derive(Debug)]
pub struct Done {
    /// What is published in `status.json`.
    pub status: Enforcement,
    /// What is shown in the metrics.
    pub measured: Measured,
}

impl Cycle {
    /// Takes up what an earlier daemon left.
    ///
    /// # Errors
    /// The directory cannot be used, or a thread not be started.
    pub fn new(
        hostname: String,
        directory: RuntimeDirectory,
        executor: Executor,
        now_seconds: f64,
    ) -> anyhow::Result<Self> {
        let (history, fault) = memory::load(&directory)?;
        let groups = Groups::start().map_err(|error| {
            anyhow::anyhow!("cannot start the thread that asks for groups: {error}. Allow more processes (ulimit -u)")
        })?;
        Ok(Self {
            hostname,
            directory,
            executor,
            history,
            groups,
            terminals: Terminals::default(),
            counters: Counters::default(),
            started_seconds: now_seconds,
            control: None,
            said: BTreeSet::new(),
            lasting_faults: fault.into_iter().collect(),
            missing_capabilities: capabilities::missing(),
            health: HealthLog::default(),
        })
    }

    /// Does what is to be done now. `stopping` ends it before the next deed.
    pub fn run(
        &mut self,
        publication: &Publication,
        rules: &InForce,
        now: impl Fn() -> f64,
        stopping: &AtomicBool,
    ) -> Done {
        let began = Instant::now();
        let now_seconds = now();
        let config = &*rules.config;
        let hosts = &publication.hosts;
        let mut faults = self.lasting_faults.clone();
        if hosts.iter().any(|host| host.hostname == self.hostname) {
            faults.extend(self.missing_capabilities.iter().cloned());
        }
        self.health.note(publication);

        let control = self.control(now_seconds, &mut faults);
        let known = self.groups_of(hosts, rules);
        let mut waivers = control.waivers();
        let given = waivers.clone();
        waivers.extend(unknown_groups(known.unknown, now_seconds));
        let input = Input {
            hosts,
            config,
            groups: &known.groups,
            waivers: &waivers,
            paused_until_seconds: control.paused_until_seconds,
            now_seconds,
        };
        self.executor.follow(Policy::from(config));
        if self.executor.mode() == Mode::Enforce {
            self.history.forget_rehearsal();
        }
        let plan = plan(&input, &self.history);
        self.history.follow(&input, &plan);

        self.begin_deeds(&plan, hosts, &mut faults);
        let mode = self.executor.mode();
        let hostnames = || hosts.iter().map(|host| host.hostname.as_str());
        self.counters.shown();
        self.counters.begin(&config.rules, hostnames(), &plan, mode);
        self.take_steps(&plan, rules, &now, stopping, &mut faults);
        if let Err(error) = memory::save(&self.directory, &self.history) {
            faults.push(error.to_string());
        }

        let mode = self.executor.mode();
        let breaker = self.executor.breaker().open.clone();
        if let Some(open) = &breaker {
            faults.push(format!("the breaker is open: {}", open.why));
        }
        self.say_faults(&faults);
        let mut status = self.status(&plan, rules, mode, now());
        status.paused_until_seconds = control.paused_until_seconds;
        let waivers = config
            .waivers
            .iter()
            .filter(|it| it.until_seconds > now_seconds);
        status.waivers = waivers.chain(&given).map(status::waiver).collect();
        status.breaker = breaker.as_ref().map(|open| open.why.clone());
        status.faults = faults;
        if let Err(error) = self.publish(&status) {
            self.say_faults(&[error.to_string()]);
            status.faults.push(error.to_string());
        }
        let measured = Measured {
            violations: metrics::violations(&plan, &config.rules, hostnames()),
            stages: metrics::stages(&plan),
            unknown_processes: metrics::unknown_processes(&plan, hostnames()),
            last_cycle_seconds: now(),
            cycle_duration_seconds: began.elapsed().as_secs_f64(),
            breaker_open: breaker.is_some(),
            mode,
            paused_until_seconds: control.paused_until_seconds,
            config_hash: config.hash.clone(),
            reload_successful: rules.error.is_none(),
            reload_success_seconds: rules.loaded_seconds,
            faults: status.faults.len(),
            counters: self.counters.clone(),
        };
        Done { status, measured }
    }

    /// What administrators told. If it cannot be learned, what was known stands; if nothing was, everything waits.
    fn control(&mut self, now_seconds: f64, faults: &mut Vec<String>) -> Control {
        match Control::read(&self.directory, now_seconds) {
            Ok(control) => self.control.insert(control).clone(),
            Err(error) => {
                let known = self.control.clone();
                let rest = match known {
                    Some(_) => "what was told before stands",
                    None => "everything waits until then",
                };
                faults.push(format!("{error}; {rest}"));
                known.unwrap_or(Control {
                    paused_until_seconds: Some(f64::MAX),
                    waivers: Vec::new(),
                })
            }
        }
    }

    fn groups_of(&mut self, hosts: &[HostSnapshot], rules: &InForce) -> groups::Known {
        if groups::matter(&rules.config) {
            self.groups.of(&users(hosts))
        } else {
            groups::Known::default()
        }
    }

    fn begin_deeds(&mut self, plan: &Plan, hosts: &[HostSnapshot], faults: &mut Vec<String>) {
        let was_open = self.executor.breaker().open.is_some();
        let notes = self
            .executor
            .begin_cycle(&users_hit(plan), &users_of_devices(hosts));
        if let Some(why) = notes.tripped.filter(|_| !was_open) {
            tracing::error!(event = "breaker", why = why.as_str(), "the breaker trips");
        }
        for process in notes.unkillable {
            let process = words::process(&process);
            tracing::error!(
                event = "fault",
                process = process.as_str(),
                "a process did not end by SIGKILL; nothing more is done about it"
            );
            faults.push(format!("{process} did not end by SIGKILL"));
            self.counters.count_unkillable(&self.hostname);
        }
    }

    /// Takes all steps in their order, and settles how each went.
    fn take_steps(
        &mut self,
        plan: &Plan,
        rules: &InForce,
        now: &impl Fn() -> f64,
        stopping: &AtomicBool,
        faults: &mut Vec<String>,
    ) {
        let by_key: BTreeMap<&Key, &Violation> =
            plan.violations.iter().map(|it| (&it.key, it)).collect();
        let unwritten = self.write_ahead(plan, now());
        if let Some(error) = &unwritten {
            faults.push(error.to_string());
        }
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
            let outcome = match (&step.kind, &unwritten) {
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
            log(violation, step, &outcome, mode);
            self.counters.count(violation, &step.kind, &outcome, mode);
            self.history.settle(step, &outcome, now_seconds);
        }
    }

    /// Writes down that all deeds are done before any is, so that none is done twice if this program is killed in between.
    fn write_ahead(&self, plan: &Plan, now_seconds: f64) -> Option<FileError> {
        let deeds = || {
            plan.steps
                .iter()
                .filter(|it| words::deed(&it.kind).is_some())
        };
        if self.executor.mode() == Mode::DryRun || deeds().next().is_none() {
            return None;
        }
        let mut ahead = self.history.clone();
        for step in deeds() {
            ahead.settle(step, &Outcome::Done, now_seconds);
        }
        memory::save(&self.directory, &ahead).err()
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

    fn status(&self, plan: &Plan, rules: &InForce, mode: Mode, now_seconds: f64) -> Enforcement {
        let config = &rules.config;
        Enforcement {
            version: ENFORCEMENT_VERSION,
            pid: std::process::id(),
            started_timestamp_seconds: self.started_seconds,
            updated_timestamp_seconds: now_seconds,
            interval_seconds: config.interval.as_secs_f64(),
            mode: mode_word(mode).to_owned(),
            config: EnforcementConfig {
                source: rules.source.clone(),
                hash: config.hash.clone(),
                loaded_timestamp_seconds: rules.loaded_seconds,
                error: rules.error.clone(),
                rules: config.rules.iter().map(|rule| rule.name.clone()).collect(),
            },
            missing_hosts: plan.missing_hosts.iter().cloned().collect(),
            unknown_processes: plan.unknown_processes.clone(),
            violations: plan.violations.iter().map(status::held).collect(),
            ..Enforcement::default()
        }
    }

    fn publish(&self, status: &Enforcement) -> Result<(), FileError> {
        let content = serde_json::to_vec(status).unwrap_or_default();
        self.directory
            .replace(ENFORCEMENT_FILE, &content, Audience::Everybody)
    }

    /// Says in the log what is wrong, once as long as it stays so.
    fn say_faults(&mut self, faults: &[String]) {
        for fault in faults.iter().filter(|it| !self.said.contains(*it)) {
            tracing::error!(
                event = "fault",
                fault = fault.as_str(),
                "something is wrong with the enforcer"
            );
        }
        self.said = faults.iter().cloned().collect();
    }
}

/// How it went to say something.
const fn said(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Done,
        Mode::DryRun => Outcome::Would,
    }
}

/// Users of environments and processes.
pub(crate) fn users(hosts: &[HostSnapshot]) -> BTreeSet<String> {
    let snapshots = hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let users = snapshots.flat_map(|snapshot| {
        let environments = snapshot.environments.iter().map(|it| it.username.as_str());
        let processes = snapshot
            .processes
            .iter()
            .filter_map(|it| snapshot.user_of(it));
        environments.chain(processes)
    });
    users.map(str::to_owned).collect()
}

/// Exempts users whose groups nobody tells, for this cycle: a group's limit may be a higher one.
pub(crate) fn unknown_groups(users: BTreeSet<String>, now_seconds: f64) -> Option<Waiver> {
    (!users.is_empty()).then(|| Waiver {
        users,
        rules: BTreeSet::new(),
        until_seconds: now_seconds + 1.0,
        reason: "the groups of this user are not known".to_owned(),
    })
}

/// Says in the log what was done, or would have been, and why.
fn log(violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode) {
    let subject = words::subject(&violation.key.subject);
    let (rule, username) = (violation.key.rule.as_str(), violation.username.as_str());
    let hostname = violation.hostname.as_deref().unwrap_or(metrics::ALL_HOSTS);
    let (found, allowed) = (violation.found.as_str(), violation.allowed.as_str());
    let (mode, result) = (mode_word(mode), metrics::result(outcome));
    let reason = match outcome {
        Outcome::Refused { reason, .. } | Outcome::Failed { reason } => reason.as_str(),
        Outcome::Done | Outcome::Would => "",
    };
    match &step.kind {
        StepKind::Report => tracing::warn!(
            event = "violation",
            rule,
            username,
            hostname,
            subject = subject.as_str(),
            found,
            allowed,
            mode,
            "a rule is broken"
        ),
        StepKind::Warn {
            number,
            of,
            end_seconds,
        } => tracing::warn!(
            event = "warning",
            rule,
            username,
            hostname,
            subject = subject.as_str(),
            found,
            allowed,
            action = words::action(violation.action),
            number,
            of,
            end_timestamp_seconds = end_seconds,
            mode,
            result,
            "a user is warned"
        ),
        _ => {
            let (deed, target) = words::deed(&step.kind).unwrap_or_default();
            tracing::warn!(
                event = "action",
                rule,
                username,
                hostname,
                subject = subject.as_str(),
                found,
                allowed,
                action = deed,
                target = target.as_str(),
                mode,
                result,
                reason,
                "an action is taken"
            );
        }
    }
}
