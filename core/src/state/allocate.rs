//! Which devices an environment gets. Pure: no file, no GPU, no clock.
//!
//! Without a memory amount a device must have no attachment. With an amount, the memory that other attachments leave
//! must suffice; an attachment without an amount takes all memory. A device that another user's process uses outside of
//! environments is not assigned; an environment that has the device keeps it. Among available devices, those without
//! running processes come first, then the lowest index. Over-subscription adds devices that are not available, those
//! with the fewest environments first.

mod refusal;

use std::collections::{BTreeMap, BTreeSet};

pub use refusal::{AllocateError, Holder};

use super::{AttachmentState, DeviceState};
use crate::model::MemoryAmount;
use crate::outside::OutsideUse;

/// Which devices an environment shall be attached to.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachRequest {
    /// How many, or which one more.
    pub selection: Selection,
    /// Whether devices that are not available may be taken if there are not enough others.
    pub over_subscribe: bool,
    /// What is known of the devices beyond the state.
    pub usage: DeviceUsage,
}

/// How many devices, or which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// So many in all: what the environment has already counts, and what it has too many is given up.
    Count(u32),
    /// This one, beside what the environment has already.
    Index(u32),
}

/// What GPUs tell of their use. Empty sets where they did not answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// Devices on which anybody's process runs.
    pub busy: BTreeSet<u32>,
    /// Devices on which processes of this environment run: they are given up last.
    pub own: BTreeSet<u32>,
    /// Devices that do not answer: nobody gets them.
    pub lost: BTreeSet<u32>,
    /// Devices that are not assigned, and the processes of other users that use them without holding them.
    pub outside: BTreeMap<u32, Vec<OutsideUse>>,
}

/// The devices that the environment shall have, in order of index.
///
/// # Errors
/// There are not enough; see [`AllocateError`].
pub fn choose(
    devices: &[DeviceState],
    eid: &str,
    memory: Option<MemoryAmount>,
    request: &AttachRequest,
) -> Result<BTreeSet<u32>, AllocateError> {
    let desk = Desk {
        devices,
        eid,
        memory,
        request,
    };
    match request.selection {
        Selection::Count(count) => desk.count(count),
        Selection::Index(index) => desk.index(index),
    }
}

struct Desk<'a> {
    devices: &'a [DeviceState],
    eid: &'a str,
    memory: Option<MemoryAmount>,
    request: &'a AttachRequest,
}

impl Desk<'_> {
    fn count(&self, count: u32) -> Result<BTreeSet<u32>, AllocateError> {
        let needed = usize::try_from(count).unwrap_or(usize::MAX);
        let usage = &self.request.usage;
        let mut kept: Vec<&DeviceState> = self
            .devices
            .iter()
            .filter(|device| self.keeps(device))
            .collect();
        kept.sort_by_key(|device| (!usage.own.contains(&device.index), device.index));
        kept.truncate(needed);

        let others = || {
            let chosen: BTreeSet<u32> = kept.iter().map(|device| device.index).collect();
            self.devices.iter().filter(move |device| {
                !chosen.contains(&device.index) && !usage.lost.contains(&device.index)
            })
        };
        let (used, unused): (Vec<&DeviceState>, Vec<&DeviceState>) =
            others().partition(|device| usage.outside.contains_key(&device.index));
        let (mut free, mut taken): (Vec<&DeviceState>, Vec<&DeviceState>) =
            unused.into_iter().partition(|device| self.fits(device));
        free.sort_by_key(|device| (usage.busy.contains(&device.index), device.index));
        taken.sort_by_key(|device| {
            let busy = usage.busy.contains(&device.index);
            (self.of_others(device).count(), busy, device.index)
        });

        let available = kept.len() + free.len();
        if available < needed && !(self.request.over_subscribe && available + taken.len() >= needed)
        {
            let (in_the_way, held): (Vec<&DeviceState>, Vec<&DeviceState>) = used
                .into_iter()
                .partition(|device| self.request.over_subscribe || self.fits(device));
            let outside = in_the_way
                .iter()
                .filter_map(|device| usage.outside.get(&device.index));
            return Err(AllocateError::NotEnough {
                needed: count,
                available: number(available),
                large: number(self.devices.iter().filter(|it| self.has(it)).count()),
                total: number(self.devices.len()),
                memory: self.memory,
                holders: taken
                    .iter()
                    .chain(&held)
                    .flat_map(|it| self.holders(it))
                    .collect(),
                outside: outside.flatten().cloned().collect(),
            });
        }
        let chosen = kept.into_iter().chain(free).chain(taken).take(needed);
        Ok(chosen.map(|device| device.index).collect())
    }

    fn index(&self, index: u32) -> Result<BTreeSet<u32>, AllocateError> {
        let device = self.devices.iter().find(|device| device.index == index);
        let Some(device) = device else {
            return Err(AllocateError::NoSuchDevice {
                index,
                total: number(self.devices.len()),
            });
        };
        if self.request.usage.lost.contains(&index) {
            return Err(AllocateError::Lost { index });
        }
        if !self.keeps(device) && !self.fits(device) && !self.request.over_subscribe {
            return Err(AllocateError::Held {
                index,
                memory: self.memory,
                // Whoever holds it does not matter if it is too small.
                holders: if self.has(device) {
                    self.holders(device)
                } else {
                    Vec::new()
                },
            });
        }
        if let Some(outside) = self.request.usage.outside.get(&index)
            && !self.keeps(device)
        {
            return Err(AllocateError::Used {
                index,
                outside: outside.clone(),
            });
        }
        let own = self.devices.iter().filter(|it| self.own(it).is_some());
        Ok(own.map(|it| it.index).chain([index]).collect())
    }

    fn own<'a>(&self, device: &'a DeviceState) -> Option<&'a AttachmentState> {
        device.attachments.iter().find(|it| it.eid == self.eid)
    }

    fn of_others<'a>(
        &self,
        device: &'a DeviceState,
    ) -> impl Iterator<Item = &'a AttachmentState> + use<'a, '_> {
        device.attachments.iter().filter(|it| it.eid != self.eid)
    }

    /// Whether it is attached and can stay so with the amount that is asked for now.
    fn keeps(&self, device: &DeviceState) -> bool {
        let bytes = |amount: Option<MemoryAmount>| amount.map(MemoryAmount::bytes);
        self.own(device).is_some_and(|own| {
            !self.request.usage.lost.contains(&device.index)
                && (bytes(own.gpu_memory) == bytes(self.memory)
                    || self.request.over_subscribe
                    || self.fits(device))
        })
    }

    /// Whether it has the memory, whoever has it now.
    fn has(&self, device: &DeviceState) -> bool {
        let total = device.total_memory.map(MemoryAmount::bytes);
        let needed = self.memory.map(MemoryAmount::bytes);
        total
            .zip(needed)
            .is_none_or(|(total, needed)| needed <= total)
    }

    /// Whether what others leave of it suffices.
    fn fits(&self, device: &DeviceState) -> bool {
        let Some(memory) = self.memory else {
            return self.of_others(device).next().is_none();
        };
        let Some(total) = device.total_memory else {
            return self.of_others(device).next().is_none();
        };
        let mut left = total.bytes();
        for attachment in self.of_others(device) {
            let Some(rest) = attachment
                .gpu_memory
                .and_then(|amount| left.checked_sub(amount.bytes()))
            else {
                return false;
            };
            left = rest;
        }
        memory.bytes() <= left
    }

    fn holders(&self, device: &DeviceState) -> Vec<Holder> {
        self.of_others(device)
            .map(|attachment| Holder {
                index: device.index,
                eid: attachment.eid.clone(),
                memory: attachment.gpu_memory,
            })
            .collect()
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
