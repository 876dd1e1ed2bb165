//! Why devices are not assigned.

use std::collections::BTreeSet;

use crate::model::MemoryAmount;
use crate::outside::OutsideUse;

/// Why an environment does not get its devices. The attachments are unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocateError {
    /// The machine has too few such devices.
    #[error("cannot attach {}{}: {}", devices(*.needed), with(*.memory), not_enough(*.needed, *.available, *.large, *.total, .holders, .outside))]
    NotEnough {
        /// The number of requested devices.
        needed: u32,
        /// The number of available devices, with those that the environment has.
        available: u32,
        /// The number of devices with the requested memory, free or not.
        large: u32,
        /// The number of devices of the machine.
        total: u32,
        /// The requested memory on each device.
        memory: Option<MemoryAmount>,
        /// The attachments that keep devices from being available.
        holders: Vec<Holder>,
        /// The processes that alone keep devices from being available, without holding them.
        outside: Vec<OutsideUse>,
    },
    /// There is no device with this index.
    #[error("there is no device {index}: {}", no_such_device(*.total))]
    NoSuchDevice {
        /// The requested device.
        index: u32,
        /// The number of devices of the machine.
        total: u32,
    },
    /// Other environments hold the device, or too much of it.
    #[error("cannot attach device {index}{}: {}", with(*.memory), held(*.index, .holders))]
    Held {
        /// The requested device.
        index: u32,
        /// The requested memory.
        memory: Option<MemoryAmount>,
        /// The attachments of the device.
        holders: Vec<Holder>,
    },
    /// Processes of other users use the device without holding it.
    #[error("cannot attach device {index}: {}. {USED_REMEDY}", used(.outside))]
    Used {
        /// The requested device.
        index: u32,
        /// The processes.
        outside: Vec<OutsideUse>,
    },
    /// The device does not answer.
    #[error("cannot attach device {index}: it does not answer. See whether 'nvidia-smi' works")]
    Lost {
        /// The requested device.
        index: u32,
    },
}

impl AllocateError {
    /// The processes that use the refused devices without holding them.
    #[must_use]
    pub fn outside(&self) -> &[OutsideUse] {
        match self {
            Self::NotEnough { outside, .. } | Self::Used { outside, .. } => outside,
            Self::NoSuchDevice { .. } | Self::Held { .. } | Self::Lost { .. } => &[],
        }
    }
}

/// One attachment that keeps a device from being available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The device.
    pub index: u32,
    /// The environment.
    pub eid: String,
    /// The reserved memory; absent: all memory.
    pub memory: Option<MemoryAmount>,
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

/// The remedy for use by processes that do not hold the device.
const USED_REMEDY: &str = "'--wait' waits until that ends, '--force' takes the device all the same";

/// The processes that use a device.
fn used(outside: &[OutsideUse]) -> String {
    let (first, more) = match outside {
        [] => return "it is used and not held".to_owned(),
        [first, more @ ..] => (first, more.len()),
    };
    let more = match more {
        0 => String::new(),
        1 => " and 1 more process".to_owned(),
        more => format!(" and {more} more processes"),
    };
    let uses = if more.is_empty() {
        "uses it and does not hold it"
    } else {
        "use it and do not hold it"
    };
    format!("{first}{more} {uses}")
}

fn not_enough(
    needed: u32,
    available: u32,
    large: u32,
    total: u32,
    holders: &[Holder],
    outside: &[OutsideUse],
) -> String {
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
    if let Some(first) = outside.first() {
        let index = first.gpu;
        let on_first: Vec<OutsideUse> = outside
            .iter()
            .filter(|it| it.gpu == index)
            .cloned()
            .collect();
        let on_others: BTreeSet<u32> = outside
            .iter()
            .map(|it| it.gpu)
            .filter(|it| *it != index)
            .collect();
        let others = match on_others.len() {
            0 => String::new(),
            1 => ", and 1 more device is used so".to_owned(),
            others => format!(", and {others} more devices are used so"),
        };
        let held = match environments.len() {
            0 => String::new(),
            1 => "; one environment holds others".to_owned(),
            environments => format!("; {environments} environments hold others"),
        };
        return format!(
            "{available} of {total} can be had. Device {index}: {}{others}{held}. {USED_REMEDY}",
            used(&on_first)
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

/// Every user may choose an eid: escaping keeps control characters off the terminal.
fn escaped(eid: &str) -> String {
    eid.escape_debug().to_string()
}
