//! One cycle: facts, plan, steps, status and history.

mod local_steps;
mod log;
mod log_limit;
mod outside;
mod persistence;
mod published;
mod remote_steps;
mod too_many;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use genv_core::enforcement::{DONE_FILE, Enforcement, HeldViolation};
use genv_core::model::{HostSnapshot, Publication};
use genv_web::HealthLog;

use crate::blind::{self, SourceStates};
use crate::capabilities;
use crate::config::Mode;
use crate::control::Control;
use crate::directory::{FileError, RuntimeDirectory};
use crate::execute::surprise::Expected;
use crate::execute::{Blocked, Executor, Policy};
use crate::groups::{self, Groups};
use crate::heartbeat::Heartbeat;
use crate::history_file::{self, OnDisk};
use crate::host::users_of_devices;
use crate::metrics::{self, Counters, Measured};
use crate::notices::delivery::NoticeDelivery;
use crate::plan::words;
use crate::plan::{History, Input, Key, Outcome, Plan, ProcessTarget, Step, StepKind};
use crate::records::{Counting, Here, Records};
use crate::reload::InForce;
use crate::remote_steps::dispatcher::Dispatcher;
use crate::unread::Unread;
use crate::user_reports::Actions;
pub(crate) use local_steps::{is_exempt_now, keep_remaining};
use log::LoggedConditions;
use log_limit::LogLimit;
use too_many::TooMany;

/// The state that cycles share, and the parts that act.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// This host, as snapshots call it.
    hostname: String,
    directory: RuntimeDirectory,
    executor: Executor,
    /// Sends the steps to other hosts, if they execute the steps.
    dispatcher: Option<Dispatcher>,
    history: History,
    on_disk: OnDisk,
    /// Environments as they were first seen.
    records: Records,
    /// The kernel's facts about this host, if the facts are of this host.
    here: Option<Here>,
    /// Whether the interrupted steps of an earlier daemon are settled.
    recovered: bool,
    groups: Groups,
    delivery: NoticeDelivery,
    counters: Counters,
    /// The actions of this cycle with their durations in seconds.
    timed_actions: Vec<(&'static str, f64)>,
    /// The violations that fall due without surprise.
    expected: Expected,
    started_seconds: f64,
    /// The last readable [`Control`].
    control: Option<Control>,
    /// Why no device could be taken in the last cycle.
    blocked: Option<Blocked>,
    /// The time of the last step.
    heartbeat: Arc<Heartbeat>,
    /// The state of each source.
    source_states: SourceStates,
    /// Lasting conditions that are in the log.
    logged: LoggedConditions,
    /// The number of log lines of each user in this cycle.
    log_limit: LogLimit,
    /// Users with more records or violations than the enforcer lists.
    too_many: TooMany,
    /// Violations with an undelivered last warning.
    undelivered: BTreeSet<Key>,
    /// The users with an unread warning.
    unread: Unread,
    /// Faults that last until a restart.
    lasting_faults: Vec<String>,
    /// Missing capabilities, which matter if the facts are of this host.
    missing_capabilities: Vec<String>,
    /// The actions of the last days.
    actions: Arc<Actions>,
    /// New actions.
    reports: Vec<HeldViolation>,
    /// Why the reports for users could not be written.
    report_fault: Option<FileError>,
    health: HealthLog,
}

/// The result of a cycle.
#[derive(Debug)]
pub(crate) struct Done {
    /// The content of `status.json`.
    pub(crate) status: Enforcement,
    /// The actions of the last days.
    pub(crate) actions: Arc<Actions>,
    /// The values of the metrics.
    pub(crate) measured: Measured,
    /// Whether no host can be judged.
    pub(crate) all_blind: bool,
}

impl Cycle {
    /// Loads the files of an earlier daemon.
    pub(crate) fn new(
        hostname: String,
        directory: RuntimeDirectory,
        executor: Executor,
        now_seconds: f64,
    ) -> anyhow::Result<Self> {
        let (history, fault) = history_file::load(&directory)?;
        let (records, records_fault) = Records::load(&directory)?;
        let groups = Groups::start().map_err(|error| {
            anyhow::anyhow!("cannot start the thread that asks for groups: {error}. Allow more processes (ulimit -u)")
        })?;
        Ok(Self {
            hostname,
            actions: Arc::new(Actions::load(&directory, DONE_FILE)),
            delivery: NoticeDelivery::open(&directory),
            directory,
            executor,
            dispatcher: None,
            expected: Expected::resumed(&history),
            history,
            on_disk: OnDisk::default(),
            records,
            here: None,
            recovered: false,
            groups,
            counters: Counters::default(),
            timed_actions: Vec::new(),
            started_seconds: now_seconds,
            control: None,
            blocked: None,
            heartbeat: Arc::default(),
            source_states: SourceStates::default(),
            logged: LoggedConditions::default(),
            log_limit: LogLimit::default(),
            too_many: TooMany::default(),
            undelivered: BTreeSet::new(),
            unread: Unread::default(),
            lasting_faults: fault.into_iter().chain(records_fault).collect(),
            missing_capabilities: capabilities::missing(),
            reports: Vec::new(),
            report_fault: None,
            health: HealthLog::default(),
        })
    }

    /// The time of the last step, for the watchdog.
    pub(crate) fn heartbeat(&self) -> Arc<Heartbeat> {
        Arc::clone(&self.heartbeat)
    }

    /// Judges the records of this host in this state directory by the kernel's facts.
    #[must_use]
    pub(crate) fn seeing(mut self, genv_directory: PathBuf) -> Self {
        self.here = Some(Here::new(genv_directory));
        self
    }

    /// Runs a cycle. `stopping` ends it before the next action.
    pub(crate) fn run(
        &mut self,
        publication: &Publication,
        rules: &InForce,
        now: impl Fn() -> f64,
        stopping: &AtomicBool,
    ) -> Done {
        let began = Instant::now();
        self.heartbeat.beat();
        let now_seconds = now();
        let config = &*rules.config;
        let mut faults = self.lasting_faults.clone();
        let counting = self.check_records(publication, now_seconds, &mut faults);
        let hosts = &counting.hosts;
        if hosts.iter().any(|host| host.hostname == self.hostname) {
            faults.extend(self.missing_capabilities.iter().cloned());
        }
        self.health.note(publication);

        let unknown = self.recover(now_seconds, &mut faults);
        self.settle_reports(hosts, now_seconds, &mut faults);
        let control = self.control(now_seconds, &mut faults);
        self.heartbeat.beat();
        let mut plan = self.plan(&counting, rules, &control, now_seconds);

        self.heartbeat.beat();
        self.begin_actions(&plan, hosts, &mut faults);
        let mode = self.executor.mode();
        if self.executor.acts() {
            too_many::limit_actions(&mut plan);
        }
        let hostnames = || hosts.iter().map(|host| host.hostname.as_str());
        self.counters.shown();
        self.counters.begin(&config.rules, hostnames(), &plan, mode);
        self.report_too_many(&counting, &mut plan, mode, now_seconds);
        let unwritten = unknown.or_else(|| self.write_ahead(&plan));
        faults.extend(unwritten.iter().map(FileError::to_string));
        if self.dispatcher.is_some() {
            self.dispatch(&plan, rules, &control, &now, stopping, unwritten.as_ref());
        } else {
            self.end_remaining(hosts, config, &control, unwritten.is_none(), now_seconds);
            self.take_steps(&plan, rules, &now, stopping, unwritten.as_ref());
        }
        self.log_limit.end();
        self.executor.end_cycle();
        let planned: BTreeSet<&Key> = plan.violations.iter().map(|it| &it.key).collect();
        self.undelivered.retain(|key| planned.contains(key));
        faults.extend(self.report_fault.iter().chain(&self.actions.unread).map(FileError::to_string));
        let lock_is_held = self.notify_lock_holder(&mut faults);
        if let Err(error) = self.save(&plan, now()) {
            faults.push(error.to_string());
        }

        let open = self.executor.breaker().open.clone();
        let breaker_since_seconds = open.as_ref().map(|open| open.since_seconds);
        let breaker = open.map(|open| open.why);
        self.logged.breaker(breaker.as_deref());
        let mut seen = BTreeSet::new();
        faults.retain(|fault| seen.insert(fault.clone()));
        let silent = |hostname: &str| plan.missing_hosts.contains(hostname);
        let blind = self.source_states.update(hosts, silent, now_seconds);
        self.logged.blind(&blind);
        let all_blind = blind::all_blind(hosts, &blind);
        let sources = self.source_states.measured(&blind);
        let outside = self.outside(&publication.hosts, &config.never);
        let (outside, exempt_outside, outside_known) = match outside {
            Some(uses) => (Some(uses.counted), uses.exempt, uses.known),
            None => (None, Vec::new(), Vec::new()),
        };
        let mut status = Enforcement {
            blind,
            disputed_records_total: counting.numbers.values().sum(),
            disputed_records: counting.disputed,
            breaker: breaker.clone(),
            breaker_since_seconds,
            faults: faults.clone(),
            outside,
            exempt_outside,
            outside_known,
            ..self.status(&plan, rules, &control, mode, now())
        };
        let open = breaker.as_ref();
        status.faults.extend(open.map(|why| format!("the breaker is open: {why}")));
        if let Err(error) = self.publish(&status) {
            faults.push(error.to_string());
            status.faults.push(error.to_string());
        }
        self.logged.faults(&faults);
        self.heartbeat.beat();
        let measured = Measured {
            violations: metrics::violations(&plan, &config.rules, hostnames()),
            stages: metrics::stages(&plan),
            unknown_processes: metrics::unknown_processes(&plan, hostnames()),
            unknown_user_processes: metrics::unknown_user_processes(&plan),
            last_cycle_seconds: now(),
            cycle_duration_seconds: began.elapsed().as_secs_f64(),
            actions: std::mem::take(&mut self.timed_actions),
            breaker_open: breaker.is_some(),
            mode,
            paused_until_seconds: control.paused_until_seconds,
            config_hash: config.hash.clone(),
            reload_successful: rules.error.is_none(),
            reload_success_seconds: rules.loaded_seconds,
            faults: status.faults.len(),
            disputed_records: counting.numbers,
            blind: sources,
            lock_is_held,
            undelivered: match &self.dispatcher {
                None => metrics::undelivered(&self.undelivered, &config.rules, &self.hostname),
                Some(_) => BTreeMap::new(),
            },
            counters: self.counters.clone(),
        };
        Done { status, actions: Arc::clone(&self.actions), measured, all_blind }
    }

    fn settle(&mut self, step: &Step, outcome: &Outcome, now_seconds: f64) {
        self.history.settle(step, outcome, now_seconds);
        if let (StepKind::Detach(target), Outcome::Done) = (&step.kind, outcome) {
            let (hostname, eid) = (&target.hostname, &target.eid);
            self.records.note_taken(hostname, eid, target.gpu, now_seconds);
        }
    }

    /// Adds violations of users with too many records or violations to the plan, and reports new ones.
    fn report_too_many(&mut self, counting: &Counting, plan: &mut Plan, mode: Mode, now_seconds: f64) {
        let outcome = local_steps::message_outcome(mode);
        for violation in self.too_many.add(&counting.too_many, plan, now_seconds) {
            let step = too_many::report(&violation);
            log::step(&violation, &step, &outcome, mode);
            self.counters.count(&violation, &step.kind, &outcome, mode);
            self.executor.report_too_many(&violation, &outcome);
        }
    }

    /// The hosts, with the records that count.
    fn check_records(&mut self, publication: &Publication, now_seconds: f64, faults: &mut Vec<String>) -> Counting {
        let here = self.here.as_mut().map(|here| here as _);
        let witness = here.map(|here| (self.hostname.as_str(), here));
        let counting = self.records.count(&publication.hosts, witness, now_seconds);
        self.logged.disputes(&counting.disputed);
        if let Err(error) = self.records.save(&self.directory) {
            faults.push(error.to_string());
        }
        counting
    }

    /// Makes the plan, and updates the history.
    fn plan(&mut self, counting: &Counting, rules: &InForce, control: &Control, now_seconds: f64) -> Plan {
        let (hosts, config) = (&counting.hosts[..], &*rules.config);
        let known = self.groups_of(hosts, rules);
        let mut waivers = control.waivers();
        waivers.extend(groups::waiver_of_unknown_groups(known.unknown, config, now_seconds));
        let input = Input {
            hosts,
            config,
            groups: &known.groups,
            waivers: &waivers,
            unconfirmed: Some(&counting.unconfirmed),
            paused_until_seconds: control.paused_until_seconds,
            now_seconds,
        };
        self.executor.follow(Policy::from(config));
        if self.executor.mode() == Mode::Enforce {
            self.history.forget_rehearsal();
        }
        self.history.plan(&input)
    }

    /// Reads the pauses and waivers. If they cannot be read, the last known ones apply; without known ones, the enforcer is
    /// paused.
    fn control(&mut self, now_seconds: f64, faults: &mut Vec<String>) -> Control {
        match Control::read(&self.directory, now_seconds) {
            Ok(control) => self.control.insert(control).clone(),
            Err(error) => {
                let known = self.control.clone();
                let rest = match known {
                    Some(_) => "the earlier pauses and waivers apply",
                    None => "the enforcer is paused until then",
                };
                faults.push(format!("{error}; {rest}"));
                known.unwrap_or(Control { paused_until_seconds: Some(f64::MAX), waivers: Vec::new() })
            }
        }
    }

    fn groups_of(&mut self, hosts: &[HostSnapshot], rules: &InForce) -> groups::UserGroups {
        if groups::are_needed(&rules.config) {
            self.groups.of(&groups::users(hosts))
        } else {
            groups::UserGroups::default()
        }
    }

    fn begin_actions(&mut self, plan: &Plan, hosts: &[HostSnapshot], faults: &mut Vec<String>) {
        let hits = self.expected.hits(plan);
        let notes = self.executor.begin(&hits, &users_of_devices(hosts));
        let breaker_is_open = self.executor.breaker().open.is_some();
        self.expected.follow(plan, breaker_is_open);
        match notes.tripped {
            Some(why) if self.executor.breaker().open.is_none() => {
                tracing::warn!(event = "breaker", why, "the breaker would trip");
            }
            _ => {
                let open = self.executor.breaker().open.as_ref();
                self.logged.breaker(open.map(|open| open.why.as_str()));
            }
        }
        for process in notes.unkillable {
            self.note_unkillable(&process, faults);
        }
    }

    fn note_unkillable(&mut self, target: &ProcessTarget, faults: &mut Vec<String>) {
        let process = words::process_target(target);
        tracing::error!(
            event = "fault",
            hostname = target.hostname.as_str(),
            process = process.as_str(),
            "a process did not end by SIGKILL; nothing more is done about it"
        );
        faults.push(format!("{process} did not end by SIGKILL"));
        self.counters.count_unkillable(&target.hostname);
    }
}
