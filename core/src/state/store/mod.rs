//! The store of a host's state: reads without the lock, and changes under the lock as a whole.

mod machine;
#[cfg(test)]
mod tests;
mod update;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use machine::Machine;

use super::commit::Loaded;
use super::failure::StoreError;
use super::fates::Contexts;
use super::jobs::{self, FindEnvironments, NewJobs};
use super::kernels::Kernels;
use super::linger::linger_seconds;
use super::liveness;
use super::refused;
use super::state_lock::{self, StateLock};
use super::waiting::{self, QueuePlace};
use super::{EnvironmentState, State, StateDirectory, StateError, Waiting, directory};
use crate::files::{Disk, LockError, LockHolder, RealDisk};
use crate::proc::{ProcReader, ProcessSource, ProcessTable};

/// How long a command waits for the lock if no other time is given. genv 1.4.3 holds it for as long as `nvidia-smi` takes.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// How long a reader waits for a writer where the file is damaged.
const READING_PATIENCE: Duration = Duration::from_millis(500);

/// How long a reader with new findings waits for the lock.
const NOTING_PATIENCE: Duration = Duration::from_millis(250);

/// The state of this host, to be read and changed.
#[derive(Debug)]
pub struct StateStore {
    path: PathBuf,
    patience: Option<Duration>,
    cleaning: bool,
    /// Finds the environments of the caller's processes; absent if no jobs are sought. The search reads the variables
    /// of all these processes.
    seeks_jobs: Option<FindEnvironments>,
    /// Jobs that were found and are not written yet.
    new_jobs: NewJobs,
    simulated: Option<bool>,
    reader: StateDirectory,
    machine: Machine,
    disk: Box<dyn Disk>,
    notices: Vec<String>,
    /// Whether the last read has findings to be recorded.
    has_news: bool,
    /// The place of this process in the queue.
    place: Option<QueuePlace>,
}
impl StateStore {
    /// The state in this directory, which the first change creates.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            patience: Some(DEFAULT_PATIENCE),
            cleaning: true,
            seeks_jobs: None,
            new_jobs: NewJobs::new(),
            simulated: None,
            reader: StateDirectory::new(&path),
            path,
            machine: Machine {
                processes: Box::new(ProcReader::new()),
                kernels: Kernels::default().limiting_starts(),
                contexts: Box::new(|| None),
                clock: Box::new(SystemTime::now),
                linger_seconds: linger_seconds(),
                find_waiting: waiting::waiting,
            },
            disk: Box::new(RealDisk),
            notices: Vec::new(),
            has_news: false,
            place: None,
        }
    }

    /// Sets the longest wait for the lock, instead of [`DEFAULT_PATIENCE`]; `None`: no limit.
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }

    #[cfg(test)]
    pub(super) fn finding_waiting(mut self, find: waiting::FindWaiting) -> Self {
        self.machine.find_waiting = find;
        self
    }

    /// Sets whether ended members are removed; the default is true.
    #[must_use]
    pub fn cleaning(mut self, cleaning: bool) -> Self {
        self.cleaning = cleaning;
        self
    }

    /// Records processes of the caller's environments as jobs, as commands of users do. The first read or change seeks
    /// them.
    #[must_use]
    pub fn recording_jobs(mut self, find_environments: FindEnvironments) -> Self {
        self.seeks_jobs = Some(find_environments);
        self
    }

    /// Sets whether the devices of changes are simulated. By default this is not checked.
    #[must_use]
    pub fn simulated(mut self, simulated: bool) -> Self {
        self.simulated = Some(simulated);
        self
    }

    /// Sets another source of processes.
    #[must_use]
    pub fn processes(mut self, processes: impl ProcessSource + 'static) -> Self {
        self.machine.processes = Box::new(processes);
        self
    }

    /// Sets the source of contexts on devices, for environments whose last member ended. By default contexts are not
    /// known.
    #[must_use]
    pub fn contexts(mut self, ask: impl FnMut() -> Option<Contexts> + Send + 'static) -> Self {
        self.machine.contexts = Box::new(ask);
        self
    }

    /// Sets another clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + 'static) -> Self {
        self.machine.clock = Box::new(clock);
        self
    }

    #[cfg(test)]
    pub(super) fn disk(mut self, disk: impl Disk + 'static) -> Self {
        self.disk = Box::new(disk);
        self
    }

    #[cfg(test)]
    pub(super) fn kernels(mut self, kernels: Kernels) -> Self {
        self.machine.kernels = kernels;
        self
    }

    /// The state directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state without the lock. Ended members and environments are left out.
    ///
    /// No file is written. In place of a damaged file its copy is read.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&mut self) -> Result<State, StateError> {
        self.read_where(|_| true)
    }

    /// As [`StateStore::read`], for one environment alone: the members of others are not read.
    ///
    /// # Errors
    /// As [`StateStore::read`].
    pub fn read_environment(&mut self, eid: &str) -> Result<State, StateError> {
        self.read_where(|environment| environment.eid == eid)
    }

    fn read_where(&mut self, wanted: impl Fn(&EnvironmentState) -> bool) -> Result<State, StateError> {
        self.has_news = false;
        let (mut state, is_whole) = match self.reader.read_files() {
            Ok(state) => (state, true),
            Err(error) => (self.read_damaged().map_err(|_| error)?, false),
        };
        state.environments.retain(&wanted);
        if self.cleaning {
            let ended = self.machine.kernels.ended(&state.environments);
            let table = self.machine.members(&state, &[]);
            self.machine.find_strangers(&mut state, &table, &self.path);
            let fates = self.machine.fates(&state, &table, &self.path);
            // Damage is left to the next change.
            let is_sound = is_whole && state.written_timestamp_seconds.is_some() && state.warnings.is_empty();
            if is_sound {
                self.find_jobs(&state, &table);
                self.has_news = !self.new_jobs.is_empty() || self.machine.is_news(&state, &fates);
            }
            let now_seconds = self.machine.now_seconds();
            liveness::clean(&mut state, &table, &ended, &fates, now_seconds);
        }
        Ok(state)
    }

    /// Records the findings of the last reading, if there are any: ended environments, and among the caller's
    /// environments new jobs, jobs at work and continuing environments. Without permission to write, or if the lock is
    /// not free soon, the next command records them.
    pub fn note_news(&mut self) {
        if std::mem::take(&mut self.has_news) {
            let patience = self.patience.replace(NOTING_PATIENCE);
            let _ = self.update(|_| Ok::<_, StoreError>(()));
            self.patience = patience;
        }
    }

    /// The copy of a damaged file.
    fn read_damaged(&mut self) -> Result<State, StateError> {
        let directory = directory::open(&self.path)?;
        // A command may import earlier files meanwhile, or write the file again.
        let lock = self.lock(directory.as_fd(), Some(READING_PATIENCE), false);
        let loaded = Loaded::read(directory.as_fd(), &self.path)?;
        drop(lock);
        self.notices.extend(loaded.damage(&self.path));
        Ok(loaded.state)
    }
    fn find_jobs(&mut self, state: &State, table: &ProcessTable) {
        if let Some(find_environments) = self.seeks_jobs.take() {
            self.new_jobs = jobs::find_new(state, table, &self.path, find_environments);
        }
    }

    /// Tries to acquire the lock within `patience`, and releases it at once.
    ///
    /// # Errors
    /// The lock cannot be acquired, or there is no state directory.
    pub fn try_lock(&self, patience: Duration) -> Result<(), StoreError> {
        let directory = directory::open(&self.path)?;
        self.lock(directory.as_fd(), Some(patience), false)?;
        Ok(())
    }

    /// As [`StateStore::try_lock`], but like a change it moves away an obstacle that cannot be a lock. If this call
    /// succeeds, the change that follows gets the lock too.
    ///
    /// # Errors
    /// As [`StateStore::try_lock`].
    pub fn try_lock_to_change(&mut self, patience: Duration) -> Result<(), StoreError> {
        let directory = directory::open(&self.path)?;
        let mut lock = self.lock(directory.as_fd(), Some(patience), true)?;
        self.notices.extend(lock.notice.take());
        Ok(())
    }

    fn lock(
        &self,
        directory: BorrowedFd<'_>,
        patience: Option<Duration>,
        repairs: bool,
    ) -> Result<StateLock, LockError> {
        state_lock::acquire(directory, &self.path, patience, repairs)
    }

    /// The present holder of the lock, if there is one and the kernel shows it.
    pub fn lock_holder(&self) -> Option<LockHolder> {
        let directory = directory::open(&self.path).ok()?;
        state_lock::holder(directory.as_fd(), &self.path)
    }

    /// The processes that wait in the queue of a state, in order of arrival.
    pub fn waiting(&mut self, state: &State) -> Vec<Waiting> {
        let queue = &state.queued;
        if queue.is_empty() {
            return Vec::new();
        }
        let machine = &mut self.machine;
        let (processes, find) = (machine.processes.as_mut(), machine.find_waiting);
        let directory = directory::open(&self.path);
        directory.map_or_else(|_| Vec::new(), |it| waiting::now(it.as_fd(), queue, processes, find))
    }

    /// Counts a refused request for devices ([`State::refused_requests`]). No request fails because it is not counted.
    pub fn count_refused(&self) {
        if let Ok(directory) = directory::open(&self.path) {
            let _ = refused::count(directory.as_fd());
        }
    }

    /// Notices of the last reads and changes for the user, such as a damaged file. Each is returned once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}
