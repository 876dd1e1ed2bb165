//! The state while it is being changed, under the lock.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rustix::process::geteuid;

use super::allocate::{self, AllocateError, AttachRequest};
use super::attachments::{self, Visible};
use super::inventory::{self, Inventory};
use super::jobs::reads_environs_of;
use super::known::{Known, KnownEnvironments};
use super::leases::Leases;
use super::liveness::end_environments;
use super::members::{LostMember, ProcessId};
use super::waiting::{MOST_OF_ONE_USER, RequestedDevices, Waiting};
use super::{AttachmentState, DeviceState, EnvironmentState, Expectation};
use crate::model::MemoryAmount;

/// Environments, devices and the queue, to be changed as one.
#[derive(Clone, Debug, PartialEq)]
pub struct EditableState {
    pub(super) environments: Vec<EnvironmentState>,
    pub(super) devices: Vec<DeviceState>,
    /// Processes that wait for devices, first come first.
    pub(super) queue: Vec<Waiting>,
    /// Members of environments that a damaged file has lost.
    pub(super) lost: Vec<LostMember>,
    /// Environments whose devices a damaged file has lost, and what is known of them.
    pub(super) bare: BTreeSet<String>,
    pub(super) visible: Visible,
    /// Members that are jobs: the environment and the pid of each.
    pub(super) jobs: HashSet<(String, u32)>,
    /// What is known of environments that hold devices, and of those that may be restored.
    pub(super) known: KnownEnvironments,
    pub(super) leases: Leases,
    /// Whether the machine was looked at, even if it has no device.
    pub(super) devices_known: bool,
    /// The last request of this change.
    pub(super) requested: Option<RequestedDevices>,
    pub(super) now_seconds: f64,
}

/// A member of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberId {
    /// A process, by pid.
    Process(u32),
    /// A Jupyter kernel, by id.
    Kernel(String),
}

/// What [`EditableState::activate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// There is a new environment.
    Created,
    /// The environment was there already.
    Joined,
}

/// What an environment is configured with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Its name.
    pub name: Option<String>,
    /// How many devices it is attached to.
    pub gpus: Option<u32>,
    /// How much memory it claims of each; absent: all.
    pub gpu_memory: Option<MemoryAmount>,
}

/// Why the state cannot be changed as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// It ended, or never was.
    #[error("there is no environment {}. 'genv envs' lists those that there are", .eid.escape_debug())]
    NoSuchEnvironment {
        /// Its id.
        eid: String,
    },
    /// There are not the devices that were asked for.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}

impl EditableState {
    /// The environments, in the order of the file.
    #[must_use]
    pub fn environments(&self) -> &[EnvironmentState] {
        &self.environments
    }

    /// One environment.
    #[must_use]
    pub fn environment(&self, eid: &str) -> Option<&EnvironmentState> {
        self.environments.iter().find(|it| it.eid == eid)
    }

    /// The ids of environments whose records were lost with a damaged file, each with a member that was recorded of it.
    pub fn lost(&self) -> impl Iterator<Item = (&str, ProcessId)> {
        self.lost.iter().map(|it| (it.eid.as_str(), it.process))
    }

    /// The devices, by index without gaps. Empty until an inventory was merged once.
    #[must_use]
    pub fn devices(&self) -> &[DeviceState] {
        &self.devices
    }

    /// Indices of the devices that an environment is attached to.
    #[must_use]
    pub fn attached(&self, eid: &str) -> Vec<u32> {
        super::attached(&self.devices, eid)
    }

    /// Adds a member to an environment, which is made if it is not there.
    ///
    /// User and username are those of a new environment; whoever joins does not change them.
    pub fn activate(&mut self, eid: &str, uid: u32, username: Option<&str>, member: &MemberId) -> Activation {
        let position = self.environments.iter().position(|it| it.eid == eid);
        let (environment, activation) = match position {
            Some(position) => (&mut self.environments[position], Activation::Joined),
            None => {
                let environment = EnvironmentState {
                    eid: eid.to_owned(),
                    uid,
                    username: username.map(str::to_owned),
                    created_timestamp_seconds: Some(self.now_seconds),
                    name: None,
                    gpus: None,
                    gpu_memory: None,
                    pids: Vec::new(),
                    kernel_ids: Vec::new(),
                };
                self.environments.push(environment);
                // Of an ended environment with the same id.
                self.leases.remove(eid);
                let last = self.environments.len() - 1;
                (&mut self.environments[last], Activation::Created)
            }
        };
        match member {
            MemberId::Process(pid) => {
                add(&mut environment.pids, pid);
                self.jobs.remove(&(eid.to_owned(), *pid));
            }
            MemberId::Kernel(id) => add(&mut environment.kernel_ids, id),
        }
        activation
    }

    /// Removes a member from an environment, which ends with its last one that is no job. Tells whether it was a member.
    pub fn leave(&mut self, eid: &str, member: &MemberId) -> bool {
        let leaves = |lost: &LostMember| *member == MemberId::Process(lost.process.pid);
        self.lost.retain(|lost| lost.eid != eid || !leaves(lost));
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        let Some(environment) = environment.filter(|it| it.has(member)) else {
            self.forget_cleared(eid);
            self.end_environments();
            return false;
        };
        let is_job = |pid: &u32| self.jobs.contains(&(eid.to_owned(), *pid));
        match member {
            MemberId::Process(pid) => {
                environment.pids.retain(|it| it != pid);
                if !is_job(pid) && environment.pids.iter().all(is_job) {
                    environment.pids.clear();
                }
            }
            MemberId::Kernel(id) => environment.kernel_ids.retain(|it| it != id),
        }
        self.end_environments();
        true
    }

    /// As [`EditableState::leave`], for a shell, which may have ended already. The environment ends if its remaining
    /// members are all jobs.
    pub fn leave_as_shell(&mut self, eid: &str, pid: u32) {
        self.leave(eid, &MemberId::Process(pid));
        let is_job = |pid: &u32| self.jobs.contains(&(eid.to_owned(), *pid));
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        if let Some(environment) = environment
            && environment.pids.iter().all(is_job)
        {
            environment.pids.clear();
        }
        self.end_environments();
    }

    /// Takes care that an environment which genv 1.x cleared is not restored: its user leaves it.
    fn forget_cleared(&mut self, eid: &str) {
        let is_own = |known: &Known| reads_environs_of(known.environment.uid);
        if self.environment(eid).is_none() && self.known.get(eid).is_some_and(is_own) {
            self.known.remove(eid);
        }
    }

    /// Removes a member from every environment that it is in; returns their ids.
    pub fn deactivate(&mut self, member: &MemberId) -> Vec<String> {
        let environments = self.environments.iter();
        let eids: Vec<String> = environments
            .filter(|environment| environment.has(member))
            .map(|environment| environment.eid.clone())
            .collect();
        for eid in &eids {
            self.leave(eid, member);
        }
        eids
    }

    /// What an environment is configured with.
    ///
    /// # Errors
    /// It does not exist.
    pub fn configuration(&self, eid: &str) -> Result<Configuration, ChangeError> {
        let environment = self.environment(eid).ok_or_else(|| no_such(eid))?;
        Ok(Configuration { name: environment.name.clone(), gpus: environment.gpus, gpu_memory: environment.gpu_memory })
    }

    /// Configures an environment. Its attachments stay as they are until it is attached again.
    ///
    /// # Errors
    /// It does not exist.
    pub fn configure(&mut self, eid: &str, configuration: Configuration) -> Result<(), ChangeError> {
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        let environment = environment.ok_or_else(|| no_such(eid))?;
        environment.name = configuration.name;
        environment.gpus = configuration.gpus;
        environment.gpu_memory = configuration.gpu_memory;
        Ok(())
    }

    /// The end of an environment's lease, Unix time.
    #[must_use]
    pub fn lease_end(&self, eid: &str) -> Option<f64> {
        self.leases.get(eid).copied()
    }

    /// Lets the lease of an environment of the caller end so long after now.
    pub fn lease(&mut self, eid: &str, duration: Duration) {
        let end = self.now_seconds + duration.as_secs_f64();
        self.leases.insert(eid.to_owned(), end.floor());
    }

    /// Lets the lease of an environment of the caller end so much later. One that has ended, or is not there, begins now. The
    /// whole time that is left then.
    pub fn extend_lease(&mut self, eid: &str, more: Duration) -> Duration {
        let left = self.lease_end(eid).unwrap_or_default() - self.now_seconds;
        let left = Duration::try_from_secs_f64(left).unwrap_or_default();
        let left = left.saturating_add(more);
        self.lease(eid, left);
        left
    }

    /// Takes note of the GPUs that the machine has: new ones are added, lost ones stay.
    pub fn merge_inventory(&mut self, inventory: &Inventory) {
        inventory.merge_into(&mut self.devices);
        self.devices_known = true;
        self.attach_visible();
    }

    /// Attaches environments whose devices were lost, once devices are known.
    pub(super) fn attach_visible(&mut self) {
        attachments::attach_visible(
            &mut self.devices,
            &self.environments,
            &mut self.bare,
            &self.visible,
            self.now_seconds,
        );
    }

    /// Attaches an environment, each device with the memory that it is configured with; returns the indices of all
    /// its devices. Those that it keeps get that amount too.
    ///
    /// # Errors
    /// It does not exist, or there are not enough devices; nothing was changed but [`EditableState::requested`].
    pub fn attach(&mut self, eid: &str, request: &AttachRequest) -> Result<Vec<u32>, ChangeError> {
        let memory = self.configuration(eid)?.gpu_memory;
        self.requested = Some(RequestedDevices::new(request, memory));
        self.bare.remove(eid);
        let chosen = allocate::choose(&self.devices, eid, memory, request);
        let chosen = chosen.map_err(|error| self.with_users(error))?;
        let renewed: &BTreeSet<u32> = match &request.selection {
            allocate::Selection::Count(_) => &chosen,
            allocate::Selection::Indices(indices) => indices,
        };
        for device in &mut self.devices {
            let own = device.attachments.iter().position(|it| it.eid == eid);
            match (own, chosen.contains(&device.index)) {
                (Some(own), false) => {
                    device.attachments.remove(own);
                }
                (Some(own), true) if renewed.contains(&device.index) => {
                    device.attachments[own].gpu_memory = memory;
                }
                (Some(_), true) | (None, false) => {}
                (None, true) => device.attachments.push(AttachmentState {
                    eid: eid.to_owned(),
                    gpu_memory: memory,
                    attached_timestamp_seconds: Some(self.now_seconds),
                }),
            }
        }
        Ok(chosen.into_iter().collect())
    }

    /// The error with the users of the environments that it names.
    fn with_users(&self, mut error: AllocateError) -> AllocateError {
        if let AllocateError::NotEnough(shortage) = &mut error {
            for holder in &mut shortage.holders {
                holder.uid = self.environment(&holder.eid).map(|it| it.uid);
            }
        }
        error
    }

    /// Detaches an environment from one device, or from all; returns those that it was attached to.
    ///
    /// # Errors
    /// There is no device with this index.
    pub fn detach(&mut self, eid: &str, index: Option<u32>) -> Result<Vec<u32>, ChangeError> {
        if let Some(index) = index
            && self.devices.iter().all(|device| device.index != index)
        {
            return Err(AllocateError::NoSuchDevice {
                index,
                total: u32::try_from(self.devices.len()).unwrap_or(u32::MAX),
            }
            .into());
        }
        self.bare.remove(eid);
        let mut detached = Vec::new();
        for device in &mut self.devices {
            if index.is_none_or(|index| index == device.index) {
                let before = device.attachments.len();
                device.attachments.retain(|it| it.eid != eid);
                if device.attachments.len() < before {
                    detached.push(device.index);
                }
            }
        }
        Ok(detached)
    }

    /// Ends all environments.
    pub fn reset_environments(&mut self) {
        self.environments.clear();
        self.lost.clear();
        self.known.clear();
        self.end_environments();
    }

    fn end_environments(&mut self) {
        end_environments(&mut self.environments, &mut self.devices, &self.lost, &self.known);
    }

    /// Forgets all devices and attachments, and takes these for the machine's.
    pub fn reset_devices(&mut self, inventory: &Inventory) {
        self.devices.clear();
        self.bare.clear();
        self.merge_inventory(inventory);
    }

    /// Puts a process of the caller into the queue for devices, unless the queue has the process; returns the number of
    /// processes before it. An ended process leaves the queue. A user has a limited number of places; a process
    /// without a place comes behind all others.
    pub fn enqueue(&mut self, pid: u32, request: Option<RequestedDevices>) -> usize {
        let uid = geteuid().as_raw();
        let is_own = |waiting: &&Waiting| waiting.uid == uid;
        match self.queue_position(pid) {
            Some(position) => self.queue[position].request = request,
            None if self.queue.iter().filter(is_own).count() < MOST_OF_ONE_USER => {
                self.queue.push(Waiting { pid, uid, request, since_timestamp_seconds: None });
            }
            None => {}
        }
        self.queue_position(pid).unwrap_or(self.queue.len())
    }

    /// The devices that the last [`EditableState::attach`] of this change asked for.
    #[must_use]
    pub const fn requested(&self) -> Option<&RequestedDevices> {
        self.requested.as_ref()
    }

    /// How many are before a process in the queue.
    #[must_use]
    pub fn queue_position(&self, pid: u32) -> Option<usize> {
        self.queue.iter().position(|waiting| waiting.pid == pid)
    }

    /// The waiting processes, in order of arrival.
    #[must_use]
    pub fn queue(&self) -> &[Waiting] {
        &self.queue
    }

    /// When devices are expected to come free.
    #[must_use]
    pub fn expectation<'a>(&'a self, models: &'a BTreeMap<u32, String>) -> Expectation<'a> {
        Expectation { devices: &self.devices, leases: &self.leases, models, now_seconds: self.now_seconds }
    }

    /// Takes a process out of the queue.
    pub fn leave_queue(&mut self, pid: u32) {
        self.queue.retain(|waiting| waiting.pid != pid);
    }

    /// Makes it such that both files can be written in the shape of genv 1.4.3.
    pub(super) fn normalize(&mut self) {
        inventory::fill_gaps(&mut self.devices);
        for environment in &mut self.environments {
            let created = &mut environment.created_timestamp_seconds;
            created.get_or_insert(self.now_seconds);
        }
    }
}

fn add<T: Clone + PartialEq>(list: &mut Vec<T>, item: &T) {
    if !list.contains(item) {
        list.push(item.clone());
    }
}

fn no_such(eid: &str) -> ChangeError {
    ChangeError::NoSuchEnvironment { eid: eid.to_owned() }
}

#[cfg(test)]
pub(in crate::state) mod tests;
