//! The choice of devices for an environment: a pure function without files, GPUs and clock.
//!
//! Without a memory amount a device must have no attachment. With an amount, the memory that other attachments leave
//! must suffice; an attachment without an amount takes all memory. A device that another user's process uses outside of
//! environments is not assigned; an environment that has the device keeps it. A device that does not answer, or that is
//! in MIG mode and has no MIG devices, is not assigned. Among available devices, those without running processes come
//! first, then those whose processes are not known, then the lowest index. Over-subscription adds devices that are not
//! available, those with the fewest environments first.
//!
//! Several devices are of one model, if one model has enough of them: of the model that comes first in this order.
//! Where models are not known, the order alone decides. No device with unknown processes is assigned for its model
//! while another has none.

mod kind;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};

pub use kind::DeviceKind;
pub use refusal::{AllocateError, Holder, MIG_UNSPLIT_REMEDY, ModelCount, Shortage, in_mig_mode_unsplit};

use super::data::{AttachmentState, DeviceState};
use crate::model::MemoryAmount;
use crate::outside::OutsideUse;

/// A request to attach an environment to devices.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachRequest {
    /// The number of devices, or particular devices.
    pub selection: Selection,
    /// The accepted devices, for a number.
    pub kind: DeviceKind,
    /// Whether devices that are not available may be taken if there are not enough others.
    pub over_subscribe: bool,
    /// The use and the models of the devices, as the driver reports them.
    pub usage: DeviceUsage,
}

impl AttachRequest {
    /// A request for devices of every kind, without over-subscription and without facts from the driver.
    pub fn new(selection: Selection) -> Self {
        Self { selection, kind: DeviceKind::default(), over_subscribe: false, usage: DeviceUsage::default() }
    }
}

/// A number of devices, or particular devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// This number in total. Devices of the requested kind that the environment holds count; it gives up all others.
    Count(u32),
    /// These devices, in addition to those that the environment holds.
    Indices(BTreeSet<u32>),
}

/// The use and the models of devices, as the driver reports them. Empty if the driver did not answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// Devices with a process of any user.
    pub busy: BTreeSet<u32>,
    /// Devices of which not all processes are known.
    pub unknown: BTreeSet<u32>,
    /// Devices with a process of this environment: they are given up last.
    pub own: BTreeSet<u32>,
    /// Devices that do not answer: they are not assigned.
    pub lost: BTreeSet<u32>,
    /// Devices in MIG mode without MIG devices, on which no CUDA program runs: they are not assigned.
    pub mig_unsplit: BTreeSet<u32>,
    /// Devices that are not assigned, and the processes of other users that use them without holding them.
    pub outside: BTreeMap<u32, Vec<OutsideUse>>,
    /// The known models.
    pub models: BTreeMap<u32, String>,
}

impl DeviceUsage {
    /// Whether a device answers and runs programs.
    pub(super) fn is_usable(&self, index: u32) -> bool {
        !self.lost.contains(&index) && !self.mig_unsplit.contains(&index)
    }

    fn occupation(&self, index: u32) -> Occupation {
        match (self.busy.contains(&index), self.unknown.contains(&index)) {
            (true, _) => Occupation::Used,
            (false, true) => Occupation::Unknown,
            (false, false) => Occupation::Unused,
        }
    }
}

/// The processes on a device, in the order in which available devices are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occupation {
    /// No process uses the device.
    Unused,
    /// Not all processes on the device are known.
    Unknown,
    /// A process uses the device.
    Used,
}

/// The devices for the environment, in order of index.
///
/// # Errors
/// The devices cannot be assigned; see [`AllocateError`].
pub fn choose(
    devices: &[DeviceState],
    eid: &str,
    memory: Option<MemoryAmount>,
    request: &AttachRequest,
) -> Result<BTreeSet<u32>, AllocateError> {
    let allocation = Allocation { devices, eid, memory, request };
    match &request.selection {
        Selection::Count(count) => allocation.count(*count),
        Selection::Indices(indices) => allocation.indices(indices),
    }
}

/// Whether the attachments of other environments than `eid` leave this memory of a device; without an amount, all of
/// it. A device of unknown memory is not divided.
pub fn fits(device: &DeviceState, eid: &str, memory: Option<MemoryAmount>) -> bool {
    let mut others = device.attachments.iter().filter(|it| it.eid != eid);
    let Some((memory, total)) = memory.zip(device.total_memory) else {
        return others.next().is_none();
    };
    let mut left = total.bytes();
    for attachment in others {
        let Some(rest) = attachment.gpu_memory.and_then(|amount| left.checked_sub(amount.bytes())) else {
            return false;
        };
        left = rest;
    }
    memory.bytes() <= left
}

struct Allocation<'a> {
    devices: &'a [DeviceState],
    eid: &'a str,
    memory: Option<MemoryAmount>,
    request: &'a AttachRequest,
}

impl Allocation<'_> {
    fn count(&self, count: u32) -> Result<BTreeSet<u32>, AllocateError> {
        let needed = usize::try_from(count).unwrap_or(usize::MAX);
        let usage = &self.request.usage;
        let of_kind: Vec<&DeviceState> = self.devices.iter().filter(|it| self.accepts(it)).collect();
        let kept = of_kind.iter().copied().filter(|it| self.keeps(it));
        let mut kept: Vec<&DeviceState> = kept.collect();
        kept.sort_by_key(|device| (!usage.own.contains(&device.index), device.index));
        kept.truncate(needed);

        let chosen: BTreeSet<u32> = kept.iter().map(|device| device.index).collect();
        let others =
            of_kind.iter().copied().filter(|device| !chosen.contains(&device.index) && usage.is_usable(device.index));
        let (used, unused): (Vec<&DeviceState>, Vec<&DeviceState>) =
            others.partition(|device| usage.outside.contains_key(&device.index));
        let (mut free, mut taken): (Vec<&DeviceState>, Vec<&DeviceState>) =
            unused.into_iter().partition(|device| self.fits(device));
        free.sort_by_key(|device| (usage.occupation(device.index), device.index));
        self.put_one_model_first(&mut free, &kept, needed - kept.len());
        taken.sort_by_key(|device| (self.of_others(device).count(), usage.occupation(device.index), device.index));

        let available = kept.len() + free.len();
        if available < needed && !(self.request.over_subscribe && available + taken.len() >= needed) {
            let (blocked, held): (Vec<&DeviceState>, Vec<&DeviceState>) =
                used.into_iter().partition(|device| self.request.over_subscribe || self.fits(device));
            let outside = blocked.iter().filter_map(|device| usage.outside.get(&device.index));
            let mig_unsplit = of_kind.iter().map(|it| it.index).filter(|it| usage.mig_unsplit.contains(it));
            return Err(AllocateError::NotEnough(Box::new(Shortage {
                needed: count,
                kind: self.request.kind.clone(),
                available: number(available),
                large: number(of_kind.iter().filter(|it| self.has(it)).count()),
                total: number(of_kind.len()),
                models: self.models(),
                memory: self.memory,
                holders: taken.iter().chain(&held).flat_map(|it| self.holders(it)).collect(),
                outside: outside.flatten().cloned().collect(),
                untold: self.untold(&taken),
                mig_unsplit: mig_unsplit.collect(),
            })));
        }
        let chosen = kept.into_iter().chain(free).chain(taken).take(needed);
        Ok(chosen.map(|device| device.index).collect())
    }

    /// Puts the devices of one model before all others, if that model has as many as are missing and the kept devices
    /// are of it. A model with enough devices without processes comes before others. All devices without processes stay
    /// first if that choice would take a device with unknown processes and leave one without.
    fn put_one_model_first(&self, free: &mut [&DeviceState], kept: &[&DeviceState], missing: usize) {
        let occupation = |it: &DeviceState| self.request.usage.occupation(it.index);
        let enough = |most: Occupation| {
            let among: Vec<&DeviceState> = free.iter().copied().filter(|it| occupation(it) <= most).collect();
            among.iter().map(|it| self.model(it)).find(|first| {
                let of_it = among.iter().filter(|it| self.model(it) == *first);
                of_it.count() >= missing && kept.iter().all(|it| self.model(it) == *first)
            })
        };
        let first = [Occupation::Unused, Occupation::Unknown, Occupation::Used].into_iter().find_map(enough);
        let Some(first) = first else {
            return;
        };
        free.sort_by_key(|it| self.model(it) != first);
        let has = |some: &[&DeviceState], wanted| some.iter().any(|it| occupation(it) == wanted);
        let (taken, left) = free.split_at(missing.min(free.len()));
        if has(taken, Occupation::Unknown) && has(left, Occupation::Unused) {
            free.sort_by_key(|it| (occupation(it), self.model(it) != first));
        }
    }

    /// The models of the machine, in order of index.
    fn models(&self) -> Vec<ModelCount> {
        let mut models: Vec<ModelCount> = Vec::new();
        for device in self.devices {
            let (name, total_memory) = (self.model(device), device.total_memory);
            let is_it = |it: &&mut ModelCount| it.name.as_deref() == name && it.total_memory == total_memory;
            match models.iter_mut().find(is_it) {
                Some(model) => model.devices += 1,
                None => models.push(ModelCount { name: name.map(str::to_owned), total_memory, devices: 1 }),
            }
        }
        models
    }

    fn model(&self, device: &DeviceState) -> Option<&str> {
        let model = self.request.usage.models.get(&device.index);
        model.map(String::as_str)
    }

    fn accepts(&self, device: &DeviceState) -> bool {
        let kind = &self.request.kind;
        kind.accepts(self.model(device), device.total_memory)
    }

    fn indices(&self, indices: &BTreeSet<u32>) -> Result<BTreeSet<u32>, AllocateError> {
        for index in indices {
            self.index(*index)?;
        }
        let own = self.devices.iter().filter(|it| self.own(it).is_some());
        let own = own.map(|it| it.index);
        Ok(own.chain(indices.iter().copied()).collect())
    }

    /// Checks that this device can be assigned too.
    fn index(&self, index: u32) -> Result<(), AllocateError> {
        let device = self.devices.iter().find(|device| device.index == index);
        let Some(device) = device else {
            return Err(AllocateError::NoSuchDevice { index, total: number(self.devices.len()) });
        };
        if self.request.usage.lost.contains(&index) {
            return Err(AllocateError::Lost { index });
        }
        if self.request.usage.mig_unsplit.contains(&index) {
            return Err(AllocateError::MigUnsplit { index });
        }
        if !self.keeps(device) && !self.fits(device) && !self.request.over_subscribe {
            return Err(AllocateError::Held {
                index,
                memory: self.memory,
                // The holders do not matter if the device is too small.
                holders: if self.has(device) { self.holders(device) } else { Vec::new() },
                is_untold: self.memory.is_some() && device.total_memory.is_none(),
            });
        }
        if let Some(outside) = self.request.usage.outside.get(&index)
            && !self.keeps(device)
        {
            return Err(AllocateError::Used { index, outside: outside.clone() });
        }
        Ok(())
    }

    fn own<'a>(&self, device: &'a DeviceState) -> Option<&'a AttachmentState> {
        device.attachments.iter().find(|it| it.eid == self.eid)
    }

    fn of_others<'a>(&self, device: &'a DeviceState) -> impl Iterator<Item = &'a AttachmentState> + use<'a, '_> {
        device.attachments.iter().filter(|it| it.eid != self.eid)
    }

    /// Whether the device is attached and can stay attached with the requested memory.
    fn keeps(&self, device: &DeviceState) -> bool {
        let bytes = |amount: Option<MemoryAmount>| amount.map(MemoryAmount::bytes);
        self.own(device).is_some_and(|own| {
            self.request.usage.is_usable(device.index)
                && (bytes(own.gpu_memory) == bytes(self.memory) || self.request.over_subscribe || self.fits(device))
        })
    }

    /// Whether the device has the requested memory, free or not.
    fn has(&self, device: &DeviceState) -> bool {
        let total = device.total_memory.map(MemoryAmount::bytes);
        let needed = self.memory.map(MemoryAmount::bytes);
        total.zip(needed).is_none_or(|(total, needed)| needed <= total)
    }

    /// Whether the memory that other attachments leave suffices.
    fn fits(&self, device: &DeviceState) -> bool {
        fits(device, self.eid, self.memory)
    }

    /// The devices that are not available because their memory is not known: those whose size the request depends on, or
    /// else those of `taken` whose memory would have to be divided.
    fn untold(&self, taken: &[&DeviceState]) -> Vec<u32> {
        let kind = &self.request.kind;
        let of_any_size = DeviceKind { memory_at_least: None, ..kind.clone() };
        let is_meant = |device: &DeviceState| match kind.memory_at_least {
            Some(_) => of_any_size.accepts(self.model(device), None),
            None => self.memory.is_some() && taken.iter().any(|it| it.index == device.index),
        };
        let untold = self.devices.iter().filter(|it| it.total_memory.is_none() && is_meant(it));
        untold.map(|it| it.index).collect()
    }

    fn holders(&self, device: &DeviceState) -> Vec<Holder> {
        self.of_others(device)
            .map(|attachment| Holder {
                index: device.index,
                eid: attachment.eid.clone(),
                uid: None,
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
