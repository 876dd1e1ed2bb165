//! A change of the state. Slow sources are read first, then the change runs under the lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::fstat;

use super::StateStore;
use crate::proc::{ProcessTable, UserNamespace};
use crate::state::change::{EditableState, Facts, Policy, Refusal, Reply, Request, Requester, apply};
use crate::state::commit::{self, FileWriter, Loaded};
use crate::state::failure::StoreError;
use crate::state::fates::Fates;
use crate::state::jobs;
use crate::state::kernels::EndedKernels;
use crate::state::state_lock::StateLock;
use crate::state::waiting::{self, QueuePlace};
use crate::state::{DeviceState, State, Waiting, confirmed, directory, leases, liveness};

impl StateStore {
    /// Changes the state under the lock. If the change fails, no file is written.
    ///
    /// `change` must be fast: every genv command of this machine waits for it.
    ///
    /// # Errors
    /// The lock cannot be acquired, the state can be neither read nor written, or the change fails.
    pub fn update<T, E: From<StoreError>>(
        &mut self,
        change: impl FnOnce(&mut EditableState) -> Result<T, E>,
    ) -> Result<T, E> {
        let directory = directory::open_or_create(&self.path).map_err(StoreError::from)?;
        let directory = directory.as_fd();
        self.refuse_foreign(directory)?;
        let (lock, mut loaded, table, answers) = self.load(directory)?;
        let now_seconds = self.machine.now_seconds();
        let listed = confirmed::member_keys(&loaded.state.environments);
        if self.cleaning {
            let (state, ended, fates) = (&mut loaded.state, &answers.ended, &answers.fates);
            liveness::clean(state, &table, ended, fates, now_seconds);
            liveness::record_jobs(&mut state.environments, &self.new_jobs);
        }
        let mut editable = loaded.edit(&table, &answers.waiting, now_seconds);
        let jobs = confirmed::job_keys(&editable.environments);
        let value = change(&mut editable)?;
        editable.normalize();
        let members = confirmed::member_keys(&editable.environments);
        let newcomers = members.difference(&listed);
        let remaining_jobs = confirmed::job_keys(&editable.environments);
        let newcomers = newcomers.chain(jobs.difference(&remaining_jobs)).cloned().collect();
        self.refuse_other_devices(&mut loaded.state, &editable)?;
        let table = self.machine.newcomers(&editable, table);
        commit::identify_members(&loaded.state, &mut editable, &table);
        let mut records = commit::records(&loaded.state, &editable, &table);
        let mut files =
            FileWriter { disk: self.disk.as_ref(), directory, path: &self.path, notices: &mut self.notices };
        let before = (&loaded.state.environments[..], &loaded.state.devices[..]);
        let after = (&editable.environments[..], &editable.devices[..]);
        let changes = confirmed::changes(before, after, &newcomers);
        let (given, taken) = changes.into_iter().partition(|(_, change)| change.gives());
        // A reader in between sees no unconfirmed member, and no confirmation that is older than its member.
        let now_seconds = self.machine.now_seconds();
        let confirm = |changes, now_seconds| confirmed::write(directory, changes, after.0, now_seconds);
        let mut obstacle = confirm(given, now_seconds);
        let leases = leases::write(directory, &editable);
        if editable.leases != loaded.state.leases {
            leases.map_err(|errno| files.failed(&leases::own_name(), errno))?;
        }
        // The place must exist before other processes read the queue.
        let place = QueuePlace::keep(self.place.take(), directory, &editable.queue);
        files.write(&loaded, &mut records)?;
        let now_seconds = self.machine.now_seconds();
        obstacle = obstacle.or(confirm(taken, now_seconds));
        drop(lock);
        self.place = place;
        let obstacle = obstacle.map(|it| it.notice(&self.path));
        self.notices.extend(obstacle);
        self.new_jobs.clear();
        Ok(value)
    }

    /// Changes the state as a process requests, see [`apply`].
    ///
    /// `view` gets the state before, the state after and the reply. If it fails, nothing is written.
    ///
    /// # Errors
    /// As with [`StateStore::update`], or the request is refused.
    pub fn change<T, E: From<StoreError> + From<Refusal>>(
        &mut self,
        request: &Request,
        requester: &Requester,
        facts: &Facts,
        view: impl FnOnce(&EditableState, &EditableState, Reply) -> Result<T, E>,
    ) -> Result<T, E> {
        self.update(|state| {
            let (after, reply) = apply(state, request, requester, facts, &Policy::default(), state.now_seconds)?;
            let value = view(state, &after, reply)?;
            *state = after;
            Ok(value)
        })
    }

    /// Refuses to write a state whose uids stand for other users than here.
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

    /// Refuses a mixture of simulated and real devices.
    fn refuse_other_devices(&self, before: &mut State, after: &EditableState) -> Result<(), StoreError> {
        let attached = |devices: &[DeviceState]| {
            let attachments = devices.iter().map(|it| it.attachments.len());
            attachments.sum::<usize>()
        };
        let brings = after.devices_known || attached(&after.devices) > attached(&before.devices);
        let Some(simulated) = self.simulated.filter(|_| brings) else {
            return Ok(());
        };
        // Devices without a recorded kind are real in the default directory, and of unknown kind in any other.
        let default = self.path == Path::new(directory::DEFAULT_DIRECTORY);
        let unmarked = (default && !before.devices.is_empty()).then_some(false);
        match before.simulated.or(unmarked) {
            Some(known) if known != simulated => Err(StoreError::OtherDevices {
                path: self.path.clone(),
                kind: if known { "simulated" } else { "real" },
                remedy: if known { "remove that one" } else { "unset GENV_DEVICES and GENV_SCENARIO" },
            }),
            _ => {
                before.simulated = Some(simulated);
                Ok(())
            }
        }
    }

    /// Locks and reads the state. Slow sources are read without the lock.
    fn load(&mut self, directory: BorrowedFd<'_>) -> Result<(StateLock, Loaded, ProcessTable, Answers), StoreError> {
        let mut answers: Option<Answers> = None;
        loop {
            let mut lock = self.lock(directory, self.patience, true)?;
            self.notices.extend(lock.notice.take());
            waiting::remove_leftovers(self.disk.as_ref(), directory);
            let mut loaded = Loaded::read(directory, &self.path)?;
            let queue = &loaded.state.queued;
            let (processes, find) = (self.machine.processes.as_mut(), self.machine.find_waiting);
            let waiting = waiting::places(directory, queue, processes, find);
            let pids: Vec<u32> = waiting.keys().copied().collect();
            let table = self.machine.members(&loaded.state, &pids);
            self.machine.find_strangers(&mut loaded.state, &table, &self.path);
            let state = &loaded.state;
            let kernels = state.environments.iter().any(|it| !it.kernel_ids.is_empty());
            let questions = kernels
                || !liveness::without_shells(state, &table).is_empty()
                || self.seeks_jobs.is_some() && jobs::are_watched(state, &table);
            match answers.take() {
                Some(answers) => return Ok((lock, loaded, table, Answers { waiting, ..answers })),
                None if !questions || !self.cleaning => {
                    let answers = Answers { waiting, ..Answers::default() };
                    return Ok((lock, loaded, table, answers));
                }
                None => {
                    drop(lock);
                    self.find_jobs(state, &table);
                    answers = Some(Answers {
                        ended: self.machine.kernels.ended(&state.environments),
                        fates: self.machine.fates(state, &table, &self.path),
                        waiting,
                    });
                }
            }
        }
    }
}

/// The answers of slow sources, from before the lock, and the waiting processes.
#[derive(Default)]
struct Answers {
    /// The processes with proof of their wait, by pid.
    waiting: HashMap<u32, Waiting>,
    ended: EndedKernels,
    fates: Fates,
}
