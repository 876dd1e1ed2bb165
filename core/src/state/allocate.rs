//! Which devices an environment gets. Pure: no file, no GPU, no clock.
//!
//! Without a memory amount a device must have no attachment. With one, what other attachments leave of its
//! memory must suffice; an attachment without an amount takes all of it. Among devices that are available, those on
//! which nobody's process runs come first, then the lowest index. Over-subscription adds devices that are not
//! available, those with the fewest environments first.

use std::collections::BTreeSet;

use super::{AttachmentState, DeviceState};
use crate::model::MemoryAmount;

/// Which devices an environment shall be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Devices on which anybody's process runs.
    pub busy: BTreeSet<u32>,
    /// Devices on which processes of this environment run: they are given up last.
    pub own: BTreeSet<u32>,
    /// Devices that do not answer: nobody gets them.
    pub lost: BTreeSet<u32>,
}

/// Why an environment does not get its devices. Nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocateError {
    /// There are not so many.
    #[error("cannot attach {}{}: {}", devices(*.needed), with(*.memory), not_enough(*.needed, *.available, *.large, *.total, .holders))]
    NotEnough {
        /// How many were asked for.
        needed: u32,
        /// How many could be had, with those that the environment has.
        available: u32,
        /// How many have the memory that was asked for, whoever has it now.
        large: u32,
        /// How many there are.
        total: u32,
        /// How much memory was asked for on each.
        memory: Option<MemoryAmount>,
        /// Who holds those that could not be had.
        holders: Vec<Holder>,
    },
    /// There is no device with this index.
    #[error("there is no device {index}: {}", no_such_device(*.total))]
    NoSuchDevice {
        /// Which one was asked for.
        index: u32,
        /// How many there are.
        total: u32,
    },
    /// Somebody else has it, or too much of it.
    #[error("cannot attach device {index}{}: {}", with(*.memory), held(*.index, .holders))]
    Held {
        /// Which one was asked for.
        index: u32,
        /// How much of its memory was asked for.
        memory: Option<MemoryAmount>,
        /// Who has it.
        holders: Vec<Holder>,
    },
    /// It does not answer.
    #[error("cannot attach device {index}: it does not answer. See whether 'nvidia-smi' works")]
    Lost {
        /// Which one was asked for.
        index: u32,
    },
}

/// One attachment that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Of this device.
    pub index: u32,
    /// By this environment.
    pub eid: String,
    /// Of so much memory; absent: all of it.
    pub memory: Option<MemoryAmount>,
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
        let mut free: Vec<&DeviceState> = others().filter(|device| self.fits(device)).collect();
        free.sort_by_key(|device| (usage.busy.contains(&device.index), device.index));
        let mut taken: Vec<&DeviceState> = others().filter(|device| !self.fits(device)).collect();
        taken.sort_by_key(|device| {
            let busy = usage.busy.contains(&device.index);
            (self.of_others(device).count(), busy, device.index)
        });

        let available = kept.len() + free.len();
        if available < needed && !(self.request.over_subscribe && available + taken.len() >= needed)
        {
            return Err(AllocateError::NotEnough {
                needed: count,
                available: number(available),
                large: number(self.devices.iter().filter(|it| self.has(it)).count()),
                total: number(self.devices.len()),
                memory: self.memory,
                holders: taken.iter().flat_map(|it| self.holders(it)).collect(),
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

fn with(memory: Option<MemoryAmount>) -> String {
    memory.map_or_else(String::new, |memory| format!(" with {memory} of memory"))
}

fn no_such_device(total: u32) -> String {
    match total {
        0 => "this machine has none. 'genv doctor' tells why".to_owned(),
        1 => "this machine has only device 0".to_owned(),
        _ => format!(
            "this machine has devices 0 to {}. 'genv devices' lists them",
            total - 1
        ),
    }
}

fn devices(count: u32) -> String {
    match count {
        1 => "1 device".to_owned(),
        _ => format!("{count} devices"),
    }
}

fn not_enough(needed: u32, available: u32, large: u32, total: u32, holders: &[Holder]) -> String {
    let environments: BTreeSet<&str> = holders.iter().map(|holder| holder.eid.as_str()).collect();
    if total == 0 {
        return "this machine has none. 'genv doctor' tells why".to_owned();
    }
    if total < needed {
        return format!(
            "this machine has {total}. Ask for {total} at most, by a flag or by 'genv config gpus {total}'"
        );
    }
    if large < needed {
        return format!(
            "{large} of {total} have so much. Ask for less, by a flag or by 'genv config gpu-memory'"
        );
    }
    let hold = match environments.len() {
        0 => return format!("{available} of {total} can be had. 'genv free' tells which"),
        1 => "one environment holds".to_owned(),
        environments => format!("{environments} environments hold"),
    };
    let others = match total.saturating_sub(available) {
        _ if total == 1 => "it",
        1 => "the other",
        _ => "the others",
    };
    format!(
        "{available} of {total} can be had, and {hold} {others}. 'genv devices' tells who, '--wait' waits"
    )
}

fn held(index: u32, holders: &[Holder]) -> String {
    let holders = match holders {
        [] => {
            return "it has not so much memory. Ask for less, by a flag or by 'genv config gpu-memory'".to_owned();
        }
        [holder] => format!(
            "environment {} holds {}",
            escaped(&holder.eid),
            part(holder)
        ),
        [first, rest @ ..] => format!(
            "environment {} holds {}, and {} more hold parts of it",
            escaped(&first.eid),
            part(first),
            rest.len()
        ),
    };
    format!("{holders}. 'genv who {index}' tells more")
}

fn part(holder: &Holder) -> String {
    holder
        .memory
        .map_or_else(|| "it".to_owned(), |memory| format!("{memory} of it"))
}

/// Anybody may choose an eid: none may play tricks on a terminal.
fn escaped(eid: &str) -> String {
    eid.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
