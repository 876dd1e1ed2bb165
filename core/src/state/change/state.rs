//! The state while it is being changed, under the lock.

use std::time::Duration;

use super::ends::end_environments;
use super::refusal::Refusal;
use crate::state::allocate::DeviceUsage;
use crate::state::data::{
    Activation, Configuration, DeviceState, EnvironmentState, Leases, MemberId, MemberState, attached,
};
use crate::state::expected::Expectation;
use crate::state::inventory;
use crate::state::queue::{MOST_OF_ONE_USER, RequestedDevices, Waiting};

/// Environments, devices and the queue, to be changed as one.
#[derive(Clone, Debug, PartialEq)]
pub struct EditableState {
    pub(in crate::state) environments: Vec<EnvironmentState>,
    pub(in crate::state) devices: Vec<DeviceState>,
    /// Processes that wait for devices, first come first.
    pub(in crate::state) queue: Vec<Waiting>,
    pub(in crate::state) leases: Leases,
    /// The user who changes the state.
    pub(in crate::state) uid: u32,
    /// Whether the devices of the machine were read, even if it has none.
    pub(in crate::state) devices_known: bool,
    /// The last request of this change.
    pub(in crate::state) requested: Option<RequestedDevices>,
    pub(in crate::state) now_seconds: f64,
}

impl EditableState {
    /// The environments, in the order of the file.
    pub fn environments(&self) -> &[EnvironmentState] {
        &self.environments
    }

    /// One environment.
    pub fn environment(&self, eid: &str) -> Option<&EnvironmentState> {
        self.environments.iter().find(|it| it.eid == eid)
    }

    /// The devices, by index without gaps. Empty until an inventory was merged once.
    pub fn devices(&self) -> &[DeviceState] {
        &self.devices
    }

    /// Indices of the devices that an environment is attached to.
    pub fn attached(&self, eid: &str) -> Vec<u32> {
        attached(&self.devices, eid)
    }

    /// Adds a member to an environment, which is created if it does not exist.
    ///
    /// A new environment gets this user and username; a member that joins does not change them.
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
                    ..EnvironmentState::default()
                };
                self.environments.push(environment);
                // The lease of an ended environment with the same id.
                self.leases.remove(eid);
                let last = self.environments.len() - 1;
                (&mut self.environments[last], Activation::Created)
            }
        };
        match member {
            MemberId::Process(pid) => match environment.members.iter_mut().find(|it| it.pid == *pid) {
                Some(member) => member.is_job = false,
                None => environment.members.push(MemberState::from(*pid)),
            },
            MemberId::Kernel(id) if environment.kernel_ids.contains(id) => {}
            MemberId::Kernel(id) => environment.kernel_ids.push(id.clone()),
        }
        activation
    }

    /// Removes a member from an environment. The environment ends with its last member that is not a job. Returns
    /// whether the process or kernel was a member.
    pub fn leave(&mut self, eid: &str, member: &MemberId) -> bool {
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        let Some(environment) = environment.filter(|it| it.has(member)) else {
            self.end_environments();
            return false;
        };
        match member {
            MemberId::Process(pid) => {
                let was_job = environment.member(*pid).is_some_and(|it| it.is_job);
                environment.members.retain(|it| it.pid != *pid);
                if !was_job && environment.members.iter().all(|it| it.is_job) {
                    environment.members.clear();
                }
            }
            MemberId::Kernel(id) => environment.kernel_ids.retain(|it| it != id),
        }
        self.end_environments();
        true
    }

    /// As [`EditableState::leave`], for a shell, which may have ended already. The environment ends if its remaining
    /// members are all jobs.
    pub(super) fn leave_as_shell(&mut self, eid: &str, pid: u32) {
        self.leave(eid, &MemberId::Process(pid));
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        if let Some(environment) = environment
            && environment.members.iter().all(|it| it.is_job)
        {
            environment.members.clear();
        }
        self.end_environments();
    }

    /// Removes a member from all its environments.
    pub(super) fn deactivate(&mut self, member: &MemberId) {
        let environments = self.environments.iter();
        let eids: Vec<String> = environments
            .filter(|environment| environment.has(member))
            .map(|environment| environment.eid.clone())
            .collect();
        for eid in &eids {
            self.leave(eid, member);
        }
    }

    /// The configuration of an environment.
    ///
    /// # Errors
    /// The environment does not exist.
    pub fn configuration(&self, eid: &str) -> Result<Configuration, Refusal> {
        let environment = self.environment(eid).ok_or_else(|| no_such(eid))?;
        Ok(Configuration { name: environment.name.clone(), gpus: environment.gpus, gpu_memory: environment.gpu_memory })
    }

    /// Configures an environment. Its attachments stay as they are until it is attached again.
    ///
    /// # Errors
    /// The environment does not exist.
    pub fn configure(&mut self, eid: &str, configuration: Configuration) -> Result<(), Refusal> {
        let environment = self.environments.iter_mut().find(|it| it.eid == eid);
        let environment = environment.ok_or_else(|| no_such(eid))?;
        environment.name = configuration.name;
        environment.gpus = configuration.gpus;
        environment.gpu_memory = configuration.gpu_memory;
        Ok(())
    }

    /// The end of an environment's lease, Unix time.
    pub fn lease_end(&self, eid: &str) -> Option<f64> {
        self.leases.get(eid).copied()
    }

    /// Sets the lease of an environment to this duration from now.
    pub(in crate::state) fn lease(&mut self, eid: &str, duration: Duration) {
        let end = self.now_seconds + duration.as_secs_f64();
        self.leases.insert(eid.to_owned(), end.floor());
    }

    /// Extends the lease of an environment. A lease that has ended, or does not exist, begins now.
    /// Returns the whole remaining time.
    pub(super) fn extend_lease(&mut self, eid: &str, more: Duration) -> Duration {
        let left = self.lease_end(eid).unwrap_or_default() - self.now_seconds;
        let left = Duration::try_from_secs_f64(left).unwrap_or_default();
        let left = left.saturating_add(more);
        self.lease(eid, left);
        left
    }

    /// Ends all environments.
    pub(super) fn reset_environments(&mut self) {
        self.environments.clear();
        self.end_environments();
    }

    /// Puts a process of the user into the queue for devices, unless the queue has the process; returns the number of
    /// processes before it. A user has a limited number of places; a process without a place comes behind all others.
    pub(in crate::state) fn enqueue(&mut self, pid: u32, request: Option<RequestedDevices>) -> usize {
        let uid = self.uid;
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

    /// The number of processes before a process in the queue.
    pub(super) fn queue_position(&self, pid: u32) -> Option<usize> {
        self.queue.iter().position(|waiting| waiting.pid == pid)
    }

    /// The waiting processes, in order of arrival.
    pub fn queue(&self) -> &[Waiting] {
        &self.queue
    }

    /// The expected times at which devices become free.
    pub fn expectation<'a>(&'a self, usage: &'a DeviceUsage) -> Expectation<'a> {
        Expectation { devices: &self.devices, leases: &self.leases, usage, now_seconds: self.now_seconds }
    }

    /// Removes a process from the queue.
    pub(super) fn leave_queue(&mut self, pid: u32) {
        self.queue.retain(|waiting| waiting.pid != pid);
    }

    fn end_environments(&mut self) {
        end_environments(&mut self.environments, &mut self.devices);
    }

    /// Fills gaps: of devices, whose position commands show as their index, and of times.
    pub(in crate::state) fn normalize(&mut self) {
        inventory::fill_gaps(&mut self.devices);
        for environment in &mut self.environments {
            let created = &mut environment.created_timestamp_seconds;
            created.get_or_insert(self.now_seconds);
        }
    }
}

pub(super) fn no_such(eid: &str) -> Refusal {
    Refusal::NoSuchEnvironment { eid: eid.to_owned() }
}
