//! One cycle: from what is true now to what is done about it, told, and remembered.

mod lines;
mod log;
mod memory;
mod outside;
mod own_steps;
mod published;
mod remote_steps;
mod too_many;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use genv_core::enforcement::Enforcement;
use genv_core::model::{HostSnapshot, Publication};
use genv_web::HealthLog;

use crate::blind::{self, Sight};
use crate::capabilities;
use crate::config::Mode;
use crate::control::Control;
use crate::directory::{FileError, RuntimeDirectory};
use crate::execute::surprise::Expected;
use crate::execute::{Blocked, Executor, Policy};
use crate::groups::{self, Groups};
use crate::history_file::{self, OnDisk};
use crate::host::users_of_devices;
use crate::metrics::{self, Counters, Measured};
use crate::plan::words;
use crate::plan::{History, Input, Key, Outcome, Plan, ProcessTarget, Step, StepKind};
use crate::progress::Progress;
use crate::records::{Counting, Here, Records};
use crate::reload::InForce;
use crate::remote_steps::dispatcher::Dispatcher;
use crate::tell::post::Post;
use crate::unread::Unread;
use lines::Lines;
use log::Said;
pub(crate) use own_steps::{is_left_alone, keep_left};
use too_many::TooMany;

/// What is remembered from cycle to cycle, and everything that a cycle acts with.
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
    /// What the kernel says of this host, where facts are of it.
    here: Option<Here>,
    /// Whether it is known what an earlier daemon was in the middle of.
    recovered: bool,
    groups: Groups,
    post: Post,
    counters: Counters,
    /// The actions of this cycle with their durations in seconds.
    timed_actions: Vec<(&'static str, f64)>,
    /// What was due in the last cycle.
    expected: Expected,
    started_seconds: f64,
    /// What could be learned of [`Control`] last.
    control: Option<Control>,
    /// Why no device could be taken in the last cycle.
    blocked: Option<Blocked>,
    /// Notes that a cycle goes on.
    progress: Arc<Progress>,
    /// Which sources show anything.
    sight: Sight,
    /// What the log says of it.
    said: Said,
    /// What the log has of each user in this cycle.
    lines: Lines,
    /// Users with more of something than any user needs.
    too_many: TooMany,
    /// Violations of which the last warning has not reached its user.
    undelivered: BTreeSet<Key>,
    /// The users with an unread warning.
    unread: Unread,
    /// What stays wrong until a restart.
    lasting_faults: Vec<String>,
    /// What this process may not do, which is of importance where facts are of this host.
    missing_capabilities: Vec<String>,
    /// Why what was done is not kept for users.
    not_kept: Option<FileError>,
    health: HealthLog,
}

/// What came of a cycle.
#[derive(Debug)]
pub(crate) struct Done {
    /// What is published in `status.json`.
    pub(crate) status: Enforcement,
    /// What is shown in the metrics.
    pub(crate) measured: Measured,
    /// Whether no host can be judged.
    pub(crate) sees_nothing: bool,
}

impl Cycle {
    /// Takes up what an earlier daemon left.
    ///
    /// # Errors
    /// The directory cannot be used, or a thread not be started.
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
            post: Post::open(&directory),
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
            progress: Arc::default(),
            sight: Sight::default(),
            said: Said::default(),
            lines: Lines::default(),
            too_many: TooMany::default(),
            undelivered: BTreeSet::new(),
            unread: Unread::default(),
            lasting_faults: fault.into_iter().chain(records_fault).collect(),
            missing_capabilities: capabilities::missing(),
            not_kept: None,
            health: HealthLog::default(),
        })
    }

    /// What notes that a cycle goes on.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Judges records of this host, which are in this directory of genv's, by what the kernel says.
    #[must_use]
    pub(crate) fn seeing(mut self, genv_directory: PathBuf) -> Self {
        self.here = Some(Here::new(genv_directory));
        self
    }

    /// Does what is to be done now. `stopping` ends it before the next deed.
    pub(crate) fn run(
        &mut self,
        publication: &Publication,
        rules: &InForce,
        now: impl Fn() -> f64,
        stopping: &AtomicBool,
    ) -> Done {
        let began = Instant::now();
        self.progress.note();
        let now_seconds = now();
        let config = &*rules.config;
        let mut faults = self.lasting_faults.clone();
        let counting = self.count_records(publication, now_seconds, &mut faults);
        let hosts = &counting.hosts;
        if hosts.iter().any(|host| host.hostname == self.hostname) {
            faults.extend(self.missing_capabilities.iter().cloned());
        }
        self.health.note(publication);

        let unknown = self.recover(now_seconds, &mut faults);
        self.settle_reports(hosts, now_seconds, &mut faults);
        let control = self.control(now_seconds, &mut faults);
        self.progress.note();
        let mut plan = self.plan(&counting, rules, &control, now_seconds);

        self.progress.note();
        self.begin_deeds(&plan, hosts, &mut faults);
        let mode = self.executor.mode();
        if self.executor.acts() {
            too_many::bound_deeds(&mut plan);
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
            self.end_left(hosts, config, &control, unwritten.is_none(), now_seconds);
            self.take_steps(&plan, rules, &now, stopping, unwritten.as_ref());
        }
        self.lines.end();
        self.executor.end_cycle();
        let planned: BTreeSet<&Key> = plan.violations.iter().map(|it| &it.key).collect();
        self.undelivered.retain(|key| planned.contains(key));
        faults.extend(self.not_kept.iter().map(FileError::to_string));
        let lock_is_held = self.tell_lock_holder(&mut faults);
        if let Err(error) = self.remember(&plan, now()) {
            faults.push(error.to_string());
        }

        let open = self.executor.breaker().open.clone();
        let breaker_since_seconds = open.as_ref().map(|open| open.since_seconds);
        let breaker = open.map(|open| open.why);
        self.said.breaker(breaker.as_deref());
        let mut seen = BTreeSet::new();
        faults.retain(|fault| seen.insert(fault.clone()));
        let silent = |hostname: &str| plan.missing_hosts.contains(hostname);
        let blind = self.sight.look(hosts, silent, now_seconds);
        self.said.blind(&blind);
        let sees_nothing = blind::sees_nothing(hosts, &blind);
        let sources = self.sight.measured(&blind);
        let outside = self.outside(&publication.hosts, &config.never);
        let (outside, exempt_outside) = match outside {
            Some(uses) => (Some(uses.counted), uses.exempt),
            None => (None, Vec::new()),
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
            ..self.status(&plan, rules, &control, mode, now())
        };
        let open = breaker.as_ref();
        status.faults.extend(open.map(|why| format!("the breaker is open: {why}")));
        if let Err(error) = self.publish(&status) {
            faults.push(error.to_string());
            status.faults.push(error.to_string());
        }
        self.said.faults(&faults);
        self.progress.note();
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
        Done { status, measured, sees_nothing }
    }

    /// Records the outcome of a step.
    fn settle(&mut self, step: &Step, outcome: &Outcome, now_seconds: f64) {
        self.history.settle(step, outcome, now_seconds);
        if let (StepKind::Detach(target), Outcome::Done) = (&step.kind, outcome) {
            let (hostname, eid) = (&target.hostname, &target.eid);
            self.records.note_taken(hostname, eid, target.gpu, now_seconds);
        }
    }

    /// Adds to the plan what users have too many of, and reports what is new.
    fn report_too_many(&mut self, counting: &Counting, plan: &mut Plan, mode: Mode, now_seconds: f64) {
        let outcome = own_steps::said(mode);
        for violation in self.too_many.add(&counting.too_many, plan, now_seconds) {
            let step = too_many::report(&violation);
            log::step(&violation, &step, &outcome, mode);
            self.counters.count(&violation, &step.kind, &outcome, mode);
            self.executor.report_too_many(&violation, &outcome);
        }
    }

    /// The hosts with what of their records counts.
    fn count_records(&mut self, publication: &Publication, now_seconds: f64, faults: &mut Vec<String>) -> Counting {
        let here = self.here.as_mut().map(|here| here as _);
        let witness = here.map(|here| (self.hostname.as_str(), here));
        let counting = self.records.count(&publication.hosts, witness, now_seconds);
        self.said.disputes(&counting.disputed);
        if let Err(error) = self.records.save(&self.directory) {
            faults.push(error.to_string());
        }
        counting
    }

    /// What is to be done now; the history follows it.
    fn plan(&mut self, counting: &Counting, rules: &InForce, control: &Control, now_seconds: f64) -> Plan {
        let (hosts, config) = (&counting.hosts[..], &*rules.config);
        let known = self.groups_of(hosts, rules);
        let mut waivers = control.waivers();
        waivers.extend(groups::waiver_of_unknown(known.unknown, config, now_seconds));
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
                known.unwrap_or(Control { paused_until_seconds: Some(f64::MAX), waivers: Vec::new() })
            }
        }
    }

    fn groups_of(&mut self, hosts: &[HostSnapshot], rules: &InForce) -> groups::Known {
        if groups::matter(&rules.config) { self.groups.of(&users(hosts)) } else { groups::Known::default() }
    }

    fn begin_deeds(&mut self, plan: &Plan, hosts: &[HostSnapshot], faults: &mut Vec<String>) {
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
                self.said.breaker(open.map(|open| open.why.as_str()));
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

/// Users of environments and processes.
pub(crate) fn users(hosts: &[HostSnapshot]) -> BTreeSet<String> {
    let snapshots = hosts.iter().filter_map(|host| host.snapshot.as_deref());
    let users = snapshots.flat_map(|snapshot| {
        let environments = snapshot.environments.iter().map(|it| it.username.as_str());
        let processes = snapshot.processes.iter().filter_map(|it| snapshot.user_of(it));
        environments.chain(processes)
    });
    let users: BTreeSet<&str> = users.collect();
    users.into_iter().map(str::to_owned).collect()
}
