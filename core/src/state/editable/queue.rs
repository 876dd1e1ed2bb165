//! The queue for devices in the state that is being changed.

use rustix::process::geteuid;

use super::EditableState;
use crate::state::allocate::DeviceUsage;
use crate::state::expected::Expectation;
use crate::state::queue::{MOST_OF_ONE_USER, RequestedDevices, Waiting};

impl EditableState {
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
    pub const fn requested(&self) -> Option<&RequestedDevices> {
        self.requested.as_ref()
    }

    /// The number of processes before a process in the queue.
    pub fn queue_position(&self, pid: u32) -> Option<usize> {
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
    pub fn leave_queue(&mut self, pid: u32) {
        self.queue.retain(|waiting| waiting.pid != pid);
    }
}
