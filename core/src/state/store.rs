//! Reading and changing the state of a host: one lock, one change as a whole.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::fstat;

use super::atomic::{Disk, RealDisk};
use super::attachments::{self, Visible};
use super::commit::{self, Files, Loaded};
use super::confirmed;
use super::editable::EditableState;
use super::fates::{self, Contexts, Fate, Fates};
use super::jobs::{self, FindEnvironments, NewJobs};
use super::kernels::{EndedKernels, Kernels};
use super::known;
use super::leases;
use super::linger::linger_seconds;
use super::liveness;
use super::lock::{DEFAULT_PATIENCE, LockError, LockHolder};
use super::refused;
use super::restore::{self, Restored};
use super::shape::Times;
use super::state_lock::{self, StateLock};
use super::waiting::{self, FindPlace, Place, Waiting};
use super::{DeviceState, EnvironmentState, ProcessId, State, StateDirectory, StateError, directory, strangers};
use crate::proc::{ProcReader, ProcessRequest, ProcessSource, ProcessTable, UserNamespace};

/// How long a reader waits for the writer of a file that looks damaged.
const READING_PATIENCE: Duration = Duration::from_millis(500);

/// How long a reader that found something to write down waits for the lock.
const NOTING_PATIENCE: Duration = Duration::from_millis(250);

/// Why the state was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The lock was not had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The state cannot be read.
    #[error(transparent)]
    Read(#[from] StateError),
    /// Invented devices would enter a state of real ones, or real ones a state of invented ones.
    #[error(
        "cannot change {}: its devices are {kind}, and those that this command knows are not: set GENV_TMPDIR to another \
         directory, or {remedy}", .path.display()
    )]
    OtherDevices {
        /// The state directory.
        path: PathBuf,
        /// What the devices are that are there.
        kind: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// It cannot be written; the old files stay.
    #[error("cannot write {path}: {why}: {remedy}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// The state of this host, to be read and changed.
#[derive(Debug)]
pub struct StateStore {
    path: PathBuf,
    patience: Option<Duration>,
    cleaning: bool,
    /// Finds the environments of the caller's processes; absent if no jobs are looked for. The search reads the variables of all
    /// these processes.
    seeks_jobs: Option<FindEnvironments>,
    /// Jobs that were found and are not written yet.
    new_jobs: NewJobs,
    simulated: Option<bool>,
    reader: StateDirectory,
    machine: Machine,
    disk: Box<dyn Disk>,
    notices: Vec<String>,
    /// Whether the last reading found something that is to be written down.
    has_news: bool,
    /// The place of this process in the queue.
    place: Option<Place>,
}

/// What the store asks of the machine.
struct Machine {
    processes: Box<dyn ProcessSource>,
    kernels: Kernels,
    contexts: Box<dyn FnMut() -> Option<Contexts> + Send>,
    clock: Box<dyn Fn() -> SystemTime + Send>,
    linger_seconds: f64,
    /// Finds a process that truly waits.
    find_waiting: FindPlace,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}

impl StateStore {
    /// The state in this directory, which the first change makes.
    #[must_use]
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

    /// Waits so long for the lock, instead of [`DEFAULT_PATIENCE`]; for ever with none.
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }

    #[cfg(test)]
    pub(super) fn finding_waiting(mut self, find: FindPlace) -> Self {
        self.machine.find_waiting = find;
        self
    }

    /// Whether members that ended are removed, as they are unless this says otherwise.
    #[must_use]
    pub fn cleaning(mut self, cleaning: bool) -> Self {
        self.cleaning = cleaning;
        self
    }

    /// Records processes of the caller's environments as their jobs, as commands of users do. The first reading or change
    /// looks for them.
    #[must_use]
    pub fn recording_jobs(mut self, find_environments: FindEnvironments) -> Self {
        self.seeks_jobs = Some(find_environments);
        self
    }

    /// Whether the devices that changes bring are invented. Without it nobody asks.
    #[must_use]
    pub fn simulated(mut self, simulated: bool) -> Self {
        self.simulated = Some(simulated);
        self
    }

    /// Asks another source about processes.
    #[must_use]
    pub fn processes(mut self, processes: impl ProcessSource + 'static) -> Self {
        self.machine.processes = Box::new(processes);
        self
    }

    /// Asks who has a context on which device, where an environment's last member ended. Without it nobody knows.
    #[must_use]
    pub fn contexts(mut self, ask: impl FnMut() -> Option<Contexts> + Send + 'static) -> Self {
        self.machine.contexts = Box::new(ask);
        self
    }

    /// Goes by another clock.
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
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state without the lock. Members that ended, and what ended with them, are left out.
    ///
    /// Writes nothing: of a damaged file, what is whole in it is told.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&mut self) -> Result<State, StateError> {
        self.read_where(|_| true)
    }

    /// As [`StateStore::read`], of one environment alone: the members of others are not looked for.
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
        let known = &mut state.recorded.known;
        known.retain(|_, known| wanted(&known.environment));
        if self.cleaning {
            let ended = self.machine.kernels.ended(&state.environments);
            let table = self.machine.members(&state, &[]);
            self.machine.find_strangers(&mut state, &table, &self.path);
            let fates = self.machine.fates(&state, &table, &self.path);
            let mut restored = self.machine.restored(&state, &table);
            restored.retain(|it| wanted(&it.environment));
            let visible = self.machine.visible(&state);
            // What is damaged is left to who changes something.
            let is_sound = is_whole
                && state.written_timestamp_seconds.is_some()
                && state.warnings.is_empty()
                && state.recorded.bare.is_empty();
            if is_sound {
                self.find_jobs(&state, &table);
                self.has_news = !self.new_jobs.is_empty() || self.machine.is_news(&state, &fates);
            }
            let now_seconds = self.machine.now_seconds();
            liveness::clean(&mut state, &table, &ended, &fates, now_seconds);
            restore::apply(&mut state, restored, now_seconds);
            attachments::attach_visible(
                &mut state.devices,
                &state.environments,
                &mut state.recorded.bare,
                &visible,
                now_seconds,
            );
        }
        Ok(state)
    }

    /// Records the findings of the last reading, if there are any: ended environments, and among the caller's environments
    /// new jobs, jobs at work and continuing environments. Without permission to write, or if the lock is not free soon, the
    /// next command records them.
    pub fn note_news(&mut self) {
        if std::mem::take(&mut self.has_news) {
            let patience = self.patience.replace(NOTING_PATIENCE);
            let _ = self.update(|_| Ok::<_, StoreError>(()));
            self.patience = patience;
        }
    }

    /// What is whole in the files, of which one cannot be read as it should.
    fn read_damaged(&mut self) -> Result<State, StateError> {
        let directory = directory::open(&self.path)?;
        // What looks damaged may be half written by genv 1.x, which holds the lock then.
        let lock = self.lock(directory.as_fd(), Some(READING_PATIENCE), false);
        let loaded = Loaded::read(directory.as_fd(), &self.path)?;
        drop(lock);
        self.notices.extend(loaded.damage(&self.path));
        Ok(loaded.state)
    }

    /// Changes the state under the lock. If the change fails nothing of it is written.
    ///
    /// Do in `change` nothing that may take long: every genv command of this machine waits for it.
    ///
    /// # Errors
    /// The lock cannot be had, the state can be neither read nor written, or the change fails.
    pub fn update<T, E: From<StoreError>>(
        &mut self,
        change: impl FnOnce(&mut EditableState) -> Result<T, E>,
    ) -> Result<T, E> {
        let directory = directory::open_or_create(&self.path).map_err(StoreError::from)?;
        let directory = directory.as_fd();
        self.refuse_foreign(directory)?;
        let (lock, mut loaded, table, asked) = self.load(directory)?;
        let now_seconds = self.machine.now_seconds();
        let listed = confirmed::places(&loaded.state.environments);
        if self.cleaning {
            let (state, ended, fates) = (&mut loaded.state, &asked.ended, &asked.fates);
            liveness::clean(state, &table, ended, fates, now_seconds);
            restore::apply(state, asked.restored, now_seconds);
            liveness::record_jobs(state, &self.new_jobs);
        }
        let mut editable = loaded.edit(&table, &asked.waiting, asked.visible, now_seconds);
        let jobs = editable.jobs.clone();
        let value = change(&mut editable)?;
        editable.normalize();
        let members = confirmed::places(&editable.environments);
        let newcomers = members.difference(&listed);
        let newcomers = newcomers.chain(jobs.difference(&editable.jobs));
        let newcomers = newcomers.cloned().collect();
        self.refuse_other_devices(&mut loaded.state, &editable)?;
        let table = self.machine.newcomers(&editable, table);
        let recorded = commit::record(&mut loaded, &editable, &table);
        #[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
        let times = Times { zone: loaded.time_zone.clone(), now_seconds: now_seconds.floor() as i64 };
        let mut files = Files { disk: self.disk.as_ref(), directory, path: &self.path, notices: &mut self.notices };
        let before = (&loaded.state.environments[..], &loaded.state.devices[..]);
        let after = (&editable.environments[..], &editable.devices[..]);
        let changes = confirmed::changes(before, after, &newcomers);
        let (given, taken) = changes.into_iter().partition(|(_, change)| change.gives());
        // Who reads in between sees nothing that is not confirmed, and takes no confirmation for older than what it is about.
        let now_seconds = self.machine.now_seconds();
        let confirm = |changes, now_seconds| confirmed::write(directory, changes, after.0, &recorded, now_seconds);
        let mut in_the_way = confirm(given, now_seconds);
        let leases = leases::write(directory, &editable);
        if editable.leases != loaded.state.leases {
            leases.map_err(|errno| files.failed(&leases::own_name(), errno))?;
        }
        // A place in the queue must hold before other processes read of it.
        let place = Place::keep(self.place.take(), directory, &editable.queue);
        files.write(&loaded, &editable, &recorded, &times)?;
        let now_seconds = self.machine.now_seconds();
        in_the_way = in_the_way.or(confirm(taken, now_seconds));
        drop(lock);
        self.place = place;
        let in_the_way = in_the_way.map(|it| it.notice(&self.path));
        self.notices.extend(in_the_way);
        self.new_jobs.clear();
        Ok(value)
    }

    fn find_jobs(&mut self, state: &State, table: &ProcessTable) {
        if let Some(find_environments) = self.seeks_jobs.take() {
            self.new_jobs = jobs::find_new(state, table, &self.path, find_environments);
        }
    }

    /// Whether the lock can be had within `patience`; it is let go at once.
    ///
    /// # Errors
    /// It cannot, or there is no state directory.
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

    /// Who holds the lock now, if anybody does and the kernel tells.
    #[must_use]
    pub fn lock_holder(&self) -> Option<LockHolder> {
        let directory = directory::open(&self.path).ok()?;
        state_lock::holder(directory.as_fd(), &self.path)
    }

    /// The processes that wait in the queue of a state, in order of arrival.
    pub fn waiting(&mut self, state: &State) -> Vec<Waiting> {
        let queue = &state.recorded.queue;
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

    /// What the last reads and changes have to tell people, such as that a file is damaged; each is told once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Refuses to write where uids mean other users than here.
    fn refuse_foreign(&self, directory: BorrowedFd<'_>) -> Result<(), StoreError> {
        let owner = fstat(directory).map(|found| found.st_uid);
        let why = owner.ok().and_then(|uid| UserNamespace::own().refuses(uid));
        why.map_or(Ok(()), |why| {
            Err(StoreError::Write {
                path: self.path.clone(),
                why: why.to_owned(),
                remedy: "run genv outside of the namespace, or name a directory of your own with GENV_TMPDIR",
            })
        })
    }

    /// Sees to it that invented devices and real ones are never in one state.
    fn refuse_other_devices(&self, before: &mut State, after: &EditableState) -> Result<(), StoreError> {
        let attached = |devices: &[DeviceState]| {
            let attachments = devices.iter().map(|it| it.attachments.len());
            attachments.sum::<usize>()
        };
        let brings = after.devices_known || attached(&after.devices) > attached(&before.devices);
        let Some(simulated) = self.simulated.filter(|_| brings) else {
            return Ok(());
        };
        // What nobody wrote down is real where genv is by itself, and anything in a directory that somebody chose.
        let default = self.path == Path::new(directory::DEFAULT_DIRECTORY);
        let unmarked = (default && !before.devices.is_empty()).then_some(false);
        match before.recorded.simulated.or(unmarked) {
            Some(known) if known != simulated => Err(StoreError::OtherDevices {
                path: self.path.clone(),
                kind: if known { "simulated" } else { "real" },
                remedy: if known { "remove that one" } else { "unset GENV_DEVICES and GENV_SCENARIO" },
            }),
            _ => {
                before.recorded.simulated = Some(simulated);
                Ok(())
            }
        }
    }

    /// Locks and reads; asks what may take long while nobody has to wait for it.
    fn load(&mut self, directory: BorrowedFd<'_>) -> Result<(StateLock, Loaded, ProcessTable, Asked), StoreError> {
        let mut asked: Option<Asked> = None;
        loop {
            let mut lock = self.lock(directory, self.patience, true)?;
            self.notices.extend(lock.notice.take());
            waiting::remove_leftovers(self.disk.as_ref(), directory);
            let mut loaded = Loaded::read(directory, &self.path)?;
            let queue = &loaded.state.recorded.queue;
            let (processes, find) = (self.machine.processes.as_mut(), self.machine.find_waiting);
            let waiting = waiting::places(directory, queue, processes, find);
            let pids: Vec<u32> = waiting.keys().copied().collect();
            let table = self.machine.members(&loaded.state, &pids);
            self.machine.find_strangers(&mut loaded.state, &table, &self.path);
            let state = &loaded.state;
            let kernels = state.environments.iter().any(|it| !it.kernel_ids.is_empty());
            let lost = !state.recorded.lost.is_empty();
            let bare = !state.recorded.bare.is_empty();
            let questions = kernels
                || lost
                || bare
                || !known::cleared(state, &table).is_empty()
                || !liveness::without_shells(state, &table).is_empty()
                || self.seeks_jobs.is_some() && jobs::are_watched(state, &table);
            match asked.take() {
                Some(asked) => return Ok((lock, loaded, table, Asked { waiting, ..asked })),
                None if !questions || !self.cleaning => {
                    let asked = Asked { waiting, ..Asked::default() };
                    return Ok((lock, loaded, table, asked));
                }
                None => {
                    drop(lock);
                    self.find_jobs(state, &table);
                    asked = Some(Asked {
                        ended: self.machine.kernels.ended(&state.environments),
                        fates: self.machine.fates(state, &table, &self.path),
                        restored: self.machine.restored(state, &table),
                        visible: self.machine.visible(state),
                        waiting,
                    });
                }
            }
        }
    }
}

/// The answers that were collected before the state was locked, and the waiting processes.
#[derive(Default)]
struct Asked {
    /// The processes that truly wait, by pid.
    waiting: HashMap<u32, Waiting>,
    ended: EndedKernels,
    fates: Fates,
    restored: Vec<Restored>,
    visible: Visible,
}

impl Machine {
    fn fates(&mut self, state: &State, table: &ProcessTable, directory: &Path) -> Fates {
        let mut ended = liveness::without_shells(state, table);
        ended.extend(known::cleared(state, table));
        let mut evidence = fates::Evidence {
            directory,
            now_seconds: self.now_seconds(),
            processes: self.processes.as_mut(),
            contexts: self.contexts.as_mut(),
            linger_seconds: self.linger_seconds,
        };
        fates::fates(state, &ended, &mut evidence)
    }

    /// Whether one of these fates is to be written down. An environment that has ended is removed at the next look: a later
    /// process of its user would keep others from knowing that it has ended.
    fn is_news(&self, state: &State, fates: &Fates) -> bool {
        let now_seconds = self.now_seconds();
        fates.iter().any(|(eid, fate)| {
            let mut listed = state.environments.iter();
            let members = listed.find(|it| it.eid == *eid).map(|it| &it.pids[..]);
            let (jobs, at_work) = match fate {
                Fate::Continues { jobs, at_work } => (jobs, at_work),
                Fate::Ends => return members.is_some(),
                Fate::Unknown => return false,
            };
            let is_recorded = |it: &ProcessId| members.is_some_and(|pids| pids.contains(&it.pid));
            let known = state.recorded.known.get(eid);
            !jobs.iter().all(is_recorded) || *at_work && fates::is_news(known, now_seconds, self.linger_seconds)
        })
    }

    fn find_strangers(&mut self, state: &mut State, table: &ProcessTable, directory: &Path) {
        let processes = self.processes.as_mut();
        state.recorded.strangers = strangers::find(state, table, processes, directory);
    }

    fn restored(&mut self, state: &State, table: &ProcessTable) -> Vec<Restored> {
        restore::find(state, table, self.processes.as_mut())
    }

    fn visible(&mut self, state: &State) -> Visible {
        attachments::visible(state, self.processes.as_mut())
    }

    fn now_seconds(&self) -> f64 {
        let now = (self.clock)().duration_since(UNIX_EPOCH);
        now.unwrap_or_default().as_secs_f64()
    }

    fn members(&mut self, state: &State, others: &[u32]) -> ProcessTable {
        let members = state.environments.iter().flat_map(|it| it.pids.iter());
        let lost = state.recorded.lost.iter().map(|it| &it.process.pid);
        self.look(members.chain(lost).chain(others).copied().collect())
    }

    /// The table with those who came since.
    fn newcomers(&mut self, editable: &EditableState, mut table: ProcessTable) -> ProcessTable {
        let members = editable.environments.iter().flat_map(|it| it.pids.iter());
        let newcomers = members
            .copied()
            .chain(editable.queue.iter().map(|it| it.pid))
            .filter(|pid| !table.lineage.contains_key(pid));
        let found = self.look(newcomers.collect());
        table.lineage.extend(found.lineage);
        table.hidden.extend(found.hidden);
        table.pid_namespace = table.pid_namespace.or(found.pid_namespace);
        table
    }

    fn look(&mut self, members: Vec<u32>) -> ProcessTable {
        if members.is_empty() {
            return ProcessTable::default();
        }
        self.processes.read(&ProcessRequest { processes: Vec::new(), members })
    }
}

#[cfg(test)]
mod tests;
