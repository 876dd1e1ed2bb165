//! Executes steps on this host: the only code that signals.
//!
//! A process is opened first (pidfd_open(2)), then everything that made it a target is read again, and only then, if the
//! descriptor still shows it alive, is it signalled, through that descriptor: whatever was read was of it, and nobody
//! else can be hit. Before anything is done the intention is on the disk in `audit`. Whatever the rules say, `pace` spreads what
//! is done over time, and the `breaker` stops it where the plan is a `surprise`.

pub(crate) mod audit;
pub(crate) mod breaker;
mod detach;
mod dispatched;
mod evidence;
mod left;
mod lines;
mod never;
mod pace;
mod record;
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
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use genv_core::state::StateStore;

use crate::config::{BreakerLimits, Config, Mode, Never};
use crate::directory::{DirectoryLock, FileError, RuntimeDirectory};
use crate::plan::{Outcome, ProcessTarget, Step, StepKind, Subject, Target};
use audit::{Action, Audit};
use breaker::Breaker;
pub(crate) use dispatched::Dispatched;
pub use evidence::{AskGpuUse, AskGpuUuid, Evidence, GpuUse, gpu_use};
use left::Left;
use lines::Lines;
pub(crate) use lines::MOST_LINES_OF_A_USER;
pub(crate) use never::ProtectedPrograms;
pub(crate) use pace::paced;
use pace::{CyclePace, TakenBack};
pub(crate) use resume::LogPosition;
use signal::Signalled;
pub(crate) use state_lock::Blocked;
use surprise::Hits;

/// Held while anything is done, so that two programs do not exceed together what each may do.
const LOCK_FILE: &str = "execute.lock";

/// How long one program waits for another.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// How long a cycle waits for genv's state: with the intervals in use, a held lock makes no cycle late.
const STATE_PATIENCE: Duration = Duration::from_secs(1);

/// What a configuration says of acting.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether anything is done.
    pub mode: Mode,
    /// Who and what is out of reach.
    pub never: Never,
    /// When to stop.
    pub breaker: BreakerLimits,
}

impl From<&Config> for Policy {
    fn from(config: &Config) -> Self {
        Self { mode: config.mode, never: config.never.clone(), breaker: config.breaker }
    }
}

/// Where an executor acts.
#[derive(Clone, Debug)]
pub struct Place {
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
    evidence: Evidence,
    clock: Box<dyn Fn() -> f64 + Send>,
    breaker: Breaker,
    /// Why the breaker is open, where that could not be written down yet.
    unwritten: Option<breaker::Open>,
    audit: Audit,
    /// The position of this program in the audit log.
    position: LogPosition,
    /// Processes that were signalled and have not ended, by pid and start time.
    signalled: HashMap<(u32, u64), Signalled>,
    /// Why no device could be taken when that was last tried.
    blocked: Option<Blocked>,
    /// Whether that was tried in this cycle.
    lock_failed: bool,
    /// The reason why the state could not be written in this cycle.
    unchanged: Option<String>,
    /// The acts of this cycle.
    cycle: CyclePace,
    taken_back: TakenBack,
    /// Processes of which the device was taken, and whose turn has not come.
    left: Vec<Left>,
    /// Why each step was refused last, so that one which is tried every cycle fills no disk.
    refused: BTreeMap<(String, Action, Target), String>,
    /// What the audit has of each user in this cycle.
    lines: Lines,
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

/// What the beginning of a cycle found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CycleNotes {
    /// Why the breaker opened, or in dry-run would have.
    pub tripped: Option<String>,
    /// Processes that did not end by SIGKILL, each told once.
    pub unkillable: Vec<ProcessTarget>,
}

/// What is the same for all that one step does.
struct Cause<'a> {
    rule: &'a str,
    why: &'a str,
}

impl Executor {
    /// Opens the enforcer's directory, and reads whether the breaker was open.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(place: Place, policy: Policy, evidence: Evidence) -> Result<Self, FileError> {
        let directory = RuntimeDirectory::open(place.state_directory)?;
        let mut executor = Self {
            hostname: place.hostname,
            requested_by: None,
            policy,
            may_signal: may_signal(std::env::var("GENV_TERMINATE_PROCESSES").ok().as_deref()),
            directory,
            store: StateStore::new(place.genv_directory).patience(STATE_PATIENCE),
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
            left: Vec::new(),
            refused: BTreeMap::new(),
            lines: Lines::default(),
        };
        executor.left = left::load(&executor.directory, left::LEFT_FILE)?;
        executor.breaker = Breaker::load(&executor.directory, executor.now());
        Ok(executor)
    }

    /// Goes by another clock, which tells Unix time in seconds.
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
        self.left = left::load(&self.directory, left::REMOTE_LEFT_FILE)?;
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
    #[must_use]
    pub(crate) fn may_signal(&self) -> bool {
        self.may_signal
    }

    /// The mode in force.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.policy.mode
    }

    /// Whether the executor acts. In dry-run and while the breaker is open it does not.
    #[must_use]
    pub fn acts(&self) -> bool {
        self.policy.mode == Mode::Enforce && self.breaker.open.is_none()
    }

    /// The breaker, as it was when something was done last.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Begins a cycle that ends or takes something of some of all users who use or hold a device: sees whether these are too
    /// many, and which processes did not end although they were killed.
    pub fn begin_cycle(&mut self, hit: &BTreeSet<String>, all: &BTreeSet<String>) -> CycleNotes {
        self.begin(&Hits::of_users(hit), all)
    }

    /// The same, where it is known what falls due.
    pub(crate) fn begin(&mut self, hits: &Hits, all: &BTreeSet<String>) -> CycleNotes {
        let mut notes = CycleNotes { tripped: None, unkillable: self.look_after_signalled() };
        self.try_lock_anew();
        // Without the lock it cannot be written down, and is in force all the same.
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
            // Whether a plan grew is judged where it was made: a part of it may be all that ever was asked of this host.
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
            StepKind::Terminate(target) => executor.signal(Action::Terminate, target, gpus, &cause),
            StepKind::Kill(target) => executor.signal(Action::Kill, target, gpus, &cause),
            StepKind::Report | StepKind::Warn { .. } => evidence::never("there is nothing to execute"),
        })
    }

    /// Does something while no other program acts.
    fn locked(&mut self, act: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        match self.lock() {
            Ok(_lock) => act(self),
            Err(error) => evidence::later(error.to_string()),
        }
    }

    /// Keeps other programs from acting, and reads what they may have changed.
    fn lock(&mut self) -> Result<DirectoryLock, FileError> {
        let lock = self.directory.lock(LOCK_FILE, LOCK_PATIENCE)?;
        self.breaker = Breaker::load(&self.directory, self.now());
        if let Some(open) = self.unwritten.take() {
            self.trip(open.why);
        }
        Ok(lock)
    }

    /// Opens the breaker. Where that cannot be written down, it is tried again, and in force here.
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
            Some(open) => Err(evidence::later(format!(
                "the breaker is open: {}: see to it, then 'genv-enforcer reset'",
                open.why
            ))),
        }
    }

    fn now(&self) -> f64 {
        (self.clock)()
    }
}

/// What a step does, and to what; nothing if it only says something.
fn act_of(step: &StepKind) -> Option<(Action, Target)> {
    match step {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Detach(target) => Some((Action::Detach, Target::Attachment(target.clone()))),
        StepKind::Terminate(target) => Some((Action::Terminate, Target::Process(target.clone()))),
        StepKind::Kill(target) => Some((Action::Kill, Target::Process(target.clone()))),
    }
}

/// Whether genv's variable lets processes be signalled: `0` does not, and what is no number does not either.
fn may_signal(variable: Option<&str>) -> bool {
    match variable.map(str::trim) {
        None | Some("") => true,
        Some(text) => text.parse().is_ok_and(|number: i64| number != 0),
    }
}

/// The device that a violation is about, if it is about one.
fn device_of(subject: &Subject) -> Option<BTreeSet<u32>> {
    match subject {
        Subject::EnvironmentDevice { index, .. } | Subject::UserDevice { index, .. } => Some([index.gpu].into()),
        Subject::Process { .. } | Subject::Environment { .. } | Subject::User { .. } => None,
    }
}

fn now_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// Closes the breaker of a directory; returns why it was open, if it was.
///
/// # Errors
/// That cannot be written down.
pub(crate) fn reset_breaker(directory: &RuntimeDirectory) -> Result<Option<breaker::Open>, FileError> {
    let _lock = directory.lock(LOCK_FILE, LOCK_PATIENCE)?;
    let mut breaker = Breaker::load(directory, now_seconds());
    let open = breaker.open.take();
    breaker.closed().save(directory)?;
    Ok(open)
}
