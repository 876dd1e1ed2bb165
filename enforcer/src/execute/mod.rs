//! Executes steps on this host: the only code that signals.
//!
//! The executor opens a process (pidfd_open(2)), reads all facts that made the process a target again, and signals it through
//! the descriptor if the process is still alive. So the facts are facts of this process, and no other process gets the signal.
//! The intention is on the disk in `audit` before each action. `pace` spreads actions over time, and the `breaker` stops them
//! if the plan is a `surprise`.

pub(crate) mod audit;
mod audit_limit;
pub(crate) mod breaker;
mod detach;
mod dispatched;
mod evidence;
mod exempt;
mod pace;
mod record;
mod remaining;
pub(crate) mod report;
mod resume;
mod signal;
mod state_lock;
pub(crate) mod surprise;
#[cfg(test)]
mod tests;
mod trusted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use genv_core::model::now_seconds;
use genv_core::state::StateStore;

use crate::config::{BreakerLimits, Config, Mode, Never};
use crate::directory::{DirectoryLock, FileError, RuntimeDirectory};
use crate::plan::{Outcome, ProcessTarget, Step, StepKind, Subject, Target};
use audit::{Audit, AuditAction};
use audit_limit::AuditLimit;
pub(crate) use audit_limit::MAX_USER_LINES;
use breaker::Breaker;
pub(crate) use dispatched::Dispatched;
pub use evidence::{EvidenceSources, GpuUse, ReadGpuUse, ReadGpuUuid, gpu_use};
pub(crate) use exempt::ProtectedPrograms;
pub(crate) use pace::paced;
use pace::{CyclePace, TakenBack};
use remaining::RemainingProcess;
pub(crate) use resume::LogPosition;
use signal::Signalled;
pub(crate) use state_lock::Blocked;
use surprise::Hits;

/// The lock for actions, so that two programs share the limits.
const LOCK_FILE: &str = "execute.lock";

/// How long a program waits for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a cycle waits for genv's state: with the intervals in use, a held lock makes no cycle late.
const STATE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of a configuration that is about actions.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether the executor acts.
    pub mode: Mode,
    /// Exempt users and programs.
    pub never: Never,
    /// The limits of pace and breaker.
    pub breaker: BreakerLimits,
}

impl From<&Config> for Policy {
    fn from(config: &Config) -> Self {
        Self { mode: config.mode, never: config.never.clone(), breaker: config.breaker }
    }
}

/// Where an executor acts.
#[derive(Clone, Debug)]
pub struct ExecutorHost {
    /// This host, as snapshots call it.
    pub hostname: String,
    /// genv's state directory.
    pub genv_directory: PathBuf,
    /// The enforcer's own directory.
    pub state_directory: PathBuf,
}

/// Executes steps.
pub struct Executor {
    hostname: String,
    /// The machine that has sent the steps, if they are not from this machine.
    requested_by: Option<String>,
    policy: Policy,
    /// Whether the environment variable `GENV_TERMINATE_PROCESSES` lets processes be signalled.
    may_signal: bool,
    directory: RuntimeDirectory,
    store: StateStore,
    evidence: EvidenceSources,
    clock: Box<dyn Fn() -> f64 + Send>,
    breaker: Breaker,
    /// Why the breaker is open, if its file could not be written yet.
    unwritten: Option<breaker::Open>,
    audit: Audit,
    /// The position of this program in the audit log.
    position: LogPosition,
    /// Processes that were signalled and have not ended, by pid and start time.
    signalled: HashMap<(u32, u64), Signalled>,
    /// Why the last try to detach a device failed at the state lock.
    blocked: Option<Blocked>,
    /// Whether a try in this cycle has failed.
    lock_failed: bool,
    /// The reason why the state could not be written in this cycle.
    unchanged: Option<String>,
    /// The acts of this cycle.
    cycle: CyclePace,
    taken_back: TakenBack,
    /// Processes of detached devices that the pace has put off.
    remaining: Vec<RemainingProcess>,
    /// The last reason of each refused step: the audit has a repeated refusal once.
    refused: BTreeMap<(String, AuditAction, Target), String>,
    /// The number of audit lines of each user in this cycle.
    audit_limit: AuditLimit,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("hostname", &self.hostname)
            .field("policy", &self.policy)
            .field("breaker", &self.breaker)
            .finish_non_exhaustive()
    }
}

/// The findings at the beginning of a cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CycleNotes {
    /// Why the breaker opened, or would have opened in dry-run.
    pub tripped: Option<String>,
    /// Processes that SIGKILL did not end, each once.
    pub unkillable: Vec<ProcessTarget>,
}

/// The rule and the reason of a step.
struct Cause<'a> {
    rule: &'a str,
    why: &'a str,
}

impl Executor {
    /// Opens the enforcer's directory, and reads whether the breaker was open.
    pub fn open(place: ExecutorHost, policy: Policy, evidence: EvidenceSources) -> Result<Self, FileError> {
        let directory = RuntimeDirectory::open(place.state_directory)?;
        let mut executor = Self {
            hostname: place.hostname,
            requested_by: None,
            policy,
            may_signal: may_signal(std::env::var("GENV_TERMINATE_PROCESSES").ok().as_deref()),
            directory,
            store: StateStore::new(place.genv_directory).patience(STATE_LOCK_TIMEOUT),
            evidence,
            clock: Box::new(now_seconds),
            breaker: Breaker::default(),
            unwritten: None,
            audit: Audit::default(),
            position: LogPosition::begin(now_seconds()),
            signalled: HashMap::new(),
            blocked: None,
            lock_failed: false,
            unchanged: None,
            cycle: CyclePace::default(),
            taken_back: TakenBack::default(),
            remaining: Vec::new(),
            refused: BTreeMap::new(),
            audit_limit: AuditLimit::default(),
        };
        executor.remaining = remaining::load(&executor.directory, remaining::REMAINING_FILE)?;
        executor.breaker = Breaker::load(&executor.directory, executor.now());
        Ok(executor)
    }

    /// Sets the clock, which returns Unix time in seconds.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> f64 + Send + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Executes the steps that the enforcer of another machine has sent.
    ///
    /// # Errors
    /// The file with the processes that an earlier program has still to end cannot be read.
    pub fn requested_by(mut self, hostname: String) -> Result<Self, FileError> {
        self.remaining = remaining::load(&self.directory, remaining::REMOTE_REMAINING_FILE)?;
        self.requested_by = Some(hostname);
        Ok(self)
    }

    /// Writes to the audit log that a step is refused, and returns the outcome.
    pub fn refuse(&mut self, step: &Step, why: &str, outcome: Outcome) -> Outcome {
        let cause = Cause { rule: &step.key.rule, why };
        let Some((action, target)) = act_of(&step.kind) else {
            return outcome;
        };
        self.locked(|executor| {
            let record = executor.record(action, &target, &cause);
            executor.conclude(record, target, &outcome);
            outcome
        })
    }

    /// Follows another policy from now on.
    pub fn follow(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Whether genv's variable `GENV_TERMINATE_PROCESSES` lets processes be signalled.
    pub(crate) fn may_signal(&self) -> bool {
        self.may_signal
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.policy.mode
    }

    /// Whether the executor acts. In dry-run and while the breaker is open it does not.
    pub fn acts(&self) -> bool {
        self.policy.mode == Mode::Enforce && self.breaker.open.is_none()
    }

    /// The breaker, as it was when something was done last.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Begins a cycle with actions against the users `hit`, of `all` users who use or hold a device. Checks the breaker, and returns
    /// processes that SIGKILL did not end.
    pub fn begin_cycle(&mut self, hit: &BTreeSet<String>, all: &BTreeSet<String>) -> CycleNotes {
        self.begin(&Hits::of_users(hit), all)
    }

    /// The same with the due actions.
    pub(crate) fn begin(&mut self, hits: &Hits, all: &BTreeSet<String>) -> CycleNotes {
        let mut notes = CycleNotes { tripped: None, unkillable: self.check_signalled() };
        self.retry_state_lock();
        // Without the lock the breaker cannot be saved, but is in force.
        let _lock = self.lock();
        self.cycle = CyclePace::begin(&self.policy.breaker, all);
        self.taken_back.begin_cycle();
        if self.breaker.open.is_some() {
            return notes;
        }
        let (now, before) = (self.now(), self.breaker.clone());
        let limits = self.policy.breaker;
        let surprise = match self.requested_by {
            None => self.breaker.surprise(&limits, hits, all, now),
            // The requesting machine judges the growth of its plan: this host sees only its part.
            Some(_) => hits.too_many_users(&limits, all),
        };
        if let Some(why) = surprise {
            notes.tripped = Some(why.clone());
            if self.policy.mode == Mode::Enforce {
                self.trip(why);
                return notes;
            }
        }
        if self.breaker != before
            && let Err(error) = self.breaker.save(&self.directory)
        {
            tracing::error!(%error, "a restart would forget how much fell due");
        }
        notes
    }

    /// Executes a step that detaches, terminates or kills. `why` is the violation in one clause.
    pub fn execute(&mut self, step: &Step, why: &str) -> Outcome {
        let cause = Cause { rule: &step.key.rule, why };
        let gpus = device_of(&step.key.subject);
        let gpus = gpus.as_ref();
        self.locked(|executor| match &step.kind {
            StepKind::Detach(target) => executor.detach(target, &cause),
            StepKind::Terminate(target) => executor.signal(AuditAction::Terminate, target, gpus, &cause),
            StepKind::Kill(target) => executor.signal(AuditAction::Kill, target, gpus, &cause),
            StepKind::Report | StepKind::Warn { .. } => evidence::refuse_for_good("there is nothing to execute"),
        })
    }

    /// Runs `act` while no other program acts.
    fn locked(&mut self, act: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        match self.lock() {
            Ok(_lock) => act(self),
            Err(error) => evidence::refuse_for_now(error.to_string()),
        }
    }

    /// Takes the lock, and reads the breaker, which another program may have changed.
    fn lock(&mut self) -> Result<DirectoryLock, FileError> {
        let lock = self.directory.lock(LOCK_FILE, LOCK_TIMEOUT)?;
        self.breaker = Breaker::load(&self.directory, self.now());
        if let Some(open) = self.unwritten.take() {
            self.trip(open.why);
        }
        Ok(lock)
    }

    /// Opens the breaker. If the file cannot be written, the breaker is in force here, and the next lock tries again.
    fn trip(&mut self, why: String) {
        let now = self.now();
        self.breaker.trip(now, why);
        if let Err(error) = self.breaker.save(&self.directory) {
            self.unwritten.clone_from(&self.breaker.open);
            tracing::error!(%error, "the breaker opened, and a restart would forget it");
        }
    }

    /// Refuses every step while the breaker is open.
    pub(crate) fn check_breaker(&self) -> Result<(), Outcome> {
        match &self.breaker.open {
            None => Ok(()),
            Some(open) => Err(evidence::refuse_for_now(format!(
                "the breaker is open: {}: see to it, then 'genv-enforcer reset'",
                open.why
            ))),
        }
    }

    fn now(&self) -> f64 {
        (self.clock)()
    }
}

/// The action and the target of a step; absent for a message.
fn act_of(step: &StepKind) -> Option<(AuditAction, Target)> {
    match step {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Detach(target) => Some((AuditAction::Detach, Target::Attachment(target.clone()))),
        StepKind::Terminate(target) => Some((AuditAction::Terminate, Target::Process(target.clone()))),
        StepKind::Kill(target) => Some((AuditAction::Kill, Target::Process(target.clone()))),
    }
}

/// Whether the value of `GENV_TERMINATE_PROCESSES` permits signals: `0` and invalid numbers do not.
fn may_signal(variable: Option<&str>) -> bool {
    match variable.map(str::trim) {
        None | Some("") => true,
        Some(text) => text.parse().is_ok_and(|number: i64| number != 0),
    }
}

/// The device of a subject, if the subject has one.
fn device_of(subject: &Subject) -> Option<BTreeSet<u32>> {
    match subject {
        Subject::EnvironmentDevice { index, .. } | Subject::UserDevice { index, .. } => Some([index.gpu].into()),
        Subject::Process { .. } | Subject::Environment { .. } | Subject::User { .. } => None,
    }
}

/// Closes the breaker of a directory. Returns why it was open.
pub(crate) fn reset_breaker(directory: &RuntimeDirectory) -> Result<Option<breaker::Open>, FileError> {
    let _lock = directory.lock(LOCK_FILE, LOCK_TIMEOUT)?;
    let mut breaker = Breaker::load(directory, now_seconds());
    let open = breaker.open.take();
    breaker.closed().save(directory)?;
    Ok(open)
}
