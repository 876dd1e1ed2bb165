//! The place of a process in the queue, and what it waits for.

use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{EditableState, RequestedDevices};

/// The place of a process in the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct QueueStatus {
    /// The number of processes before it.
    pub(super) ahead: usize,
    /// The time at which it probably gets its devices, by leases, Unix time.
    pub(super) expected: Option<f64>,
    /// Its request, if the attempt has come so far.
    pub(super) requested: Option<RequestedDevices>,
    /// The other environments that hold devices of which it may get some, by the first device of each.
    pub(super) holders: Vec<Holder>,
}

/// An environment that holds requested devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Holder {
    eid: String,
    /// Its user, if the state lists the environment.
    pub(super) uid: Option<u32>,
    /// The devices.
    pub(super) devices: Vec<u32>,
    /// The time at which it got the first of these devices, Unix time; absent if that of one is not known.
    pub(super) since: Option<f64>,
}

impl QueueStatus {
    /// The place behind `ahead` others of the queue, of a process that requests devices for the environment `eid`.
    pub(super) fn new(
        state: &EditableState,
        usage: &DeviceUsage,
        eid: &str,
        ahead: usize,
        requested: Option<RequestedDevices>,
    ) -> Self {
        let expected = state.expectation(usage).of_queue(state.queue()).get(ahead).copied().flatten();
        let holders = requested.as_ref().map(|requested| Holder::all(state, usage, eid, requested));
        Self { ahead, expected, requested, holders: holders.unwrap_or_default() }
    }
}

impl Holder {
    #[cfg(test)]
    pub(super) fn of(eid: &str, uid: Option<u32>, devices: &[u32], since: Option<f64>) -> Self {
        Self { eid: eid.to_owned(), uid, devices: devices.to_vec(), since }
    }

    fn all(state: &EditableState, usage: &DeviceUsage, eid: &str, requested: &RequestedDevices) -> Vec<Self> {
        let expectation = state.expectation(usage);
        let mut holders: Vec<Self> = Vec::new();
        for device in state.devices().iter().filter(|it| expectation.accepts(requested, it)) {
            for attachment in device.attachments.iter().filter(|it| it.eid != eid) {
                let since = attachment.attached_timestamp_seconds;
                if let Some(holder) = holders.iter_mut().find(|it| it.eid == attachment.eid) {
                    holder.devices.push(device.index);
                    holder.since = holder.since.zip(since).map(|(a, b)| a.min(b));
                    continue;
                }
                holders.push(Self {
                    eid: attachment.eid.clone(),
                    uid: state.environment(&attachment.eid).map(|it| it.uid),
                    devices: vec![device.index],
                    since,
                });
            }
        }
        holders
    }
}
