//! Why devices are not assigned.

use std::collections::BTreeSet;
use std::fmt;

use super::DeviceKind;
use crate::model::MemoryAmount;
use crate::outside::{self, OutsideUse};
use crate::proc::username;
use crate::text::harmless;

/// The number of environments that an error names.
const MOST_NAMED: usize = 3;

/// Why an environment does not get its devices. The attachments are unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocateError {
    /// The machine has too few such devices, or too few of them are free.
    #[error(transparent)]
    NotEnough(Box<Shortage>),
    /// There is no device with this index.
    #[error("there is no device {index}: {}", no_such_device(*.total))]
    NoSuchDevice {
        /// The requested device.
        index: u32,
        /// The number of devices of the machine.
        total: u32,
    },
    /// Other environments hold the device, or too much of it.
    #[error("cannot attach device {index}{}: {}", with(*.memory), held(*.index, .holders, *.is_untold))]
    Held {
        /// The requested device.
        index: u32,
        /// The requested memory.
        memory: Option<MemoryAmount>,
        /// The attachments of the device.
        holders: Vec<Holder>,
        /// Whether the memory of the device would have to be divided, and the driver does not tell it.
        is_untold: bool,
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
    /// The device is in MIG mode and has no MIG devices.
    #[error(
        "cannot attach device {index}: it is in MIG mode without MIG devices, and runs no CUDA program. \
         {MIG_UNSPLIT_REMEDY}"
    )]
    MigUnsplit {
        /// The requested device.
        index: u32,
    },
}

impl AllocateError {
    /// The processes that use the refused devices without holding them.
    pub fn outside(&self) -> &[OutsideUse] {
        match self {
            Self::NotEnough(shortage) => &shortage.outside,
            Self::Used { outside, .. } => outside,
            Self::NoSuchDevice { .. } | Self::Held { .. } | Self::Lost { .. } | Self::MigUnsplit { .. } => &[],
        }
    }
}

/// Too few devices of a kind. The display of some looks up users' names.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
#[error("cannot attach {}{kind}{}: {}", devices(*.needed), with(*.memory), self.reason())]
pub struct Shortage {
    /// The number of requested devices.
    pub needed: u32,
    /// The requested kind.
    pub kind: DeviceKind,
    /// The number of available devices of the kind, with those that the environment has.
    pub available: u32,
    /// The number of devices of the kind with the requested memory, free or not.
    pub large: u32,
    /// The number of devices of the kind.
    pub total: u32,
    /// The devices of the machine, of all kinds.
    pub models: Vec<ModelCount>,
    /// The requested memory on each device.
    pub memory: Option<MemoryAmount>,
    /// The attachments that keep devices from being available.
    pub holders: Vec<Holder>,
    /// The processes that alone keep devices from being available, without holding them.
    pub outside: Vec<OutsideUse>,
    /// The devices that are not available because the driver does not tell their memory.
    pub untold: Vec<u32>,
    /// The devices of the kind in MIG mode without MIG devices.
    pub mig_unsplit: Vec<u32>,
}

/// The devices of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCount {
    /// The name of the model; absent if it is not known.
    pub name: Option<String>,
    /// The memory of each device; absent if it is not known.
    pub total_memory: Option<MemoryAmount>,
    /// The number of devices.
    pub devices: u32,
}

/// `2 NVIDIA A100-SXM4-40GB (40.0 GiB each)`
impl fmt::Display for ModelCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.devices == 1 { "" } else { " each" };
        match &self.name {
            Some(name) => write!(f, "{} {}", self.devices, harmless(name))?,
            None => write!(f, "{} of a model that is not known", self.devices)?,
        }
        match self.total_memory {
            Some(total) => write!(f, " ({}{each})", outside::memory(total.bytes())),
            None => Ok(()),
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
    /// The user of the environment, if the state lists the environment.
    pub uid: Option<u32>,
    /// The reserved memory; absent: all memory.
    pub memory: Option<MemoryAmount>,
}

fn with(memory: Option<MemoryAmount>) -> String {
    memory.map_or_else(String::new, |memory| format!(" with {memory} of memory"))
}

/// What makes a device in MIG mode without MIG devices usable.
pub const MIG_UNSPLIT_REMEDY: &str =
    "'nvidia-smi mig -cgi PROFILE -C' as root makes MIG devices, 'nvidia-smi -i INDEX -mig 0' ends MIG mode";

/// Why devices in MIG mode without MIG devices are not free.
pub fn in_mig_mode_unsplit(devices: &[u32]) -> String {
    let (are, run) = if devices.len() == 1 { ("is", "runs") } else { ("are", "run") };
    format!("{} {are} in MIG mode without MIG devices, and {run} no CUDA program", numbered(devices))
}

/// `device 1`, `devices 1, 2`
fn numbered(devices: &[u32]) -> String {
    let numbers: Vec<String> = devices.iter().map(u32::to_string).collect();
    match &numbers[..] {
        [one] => format!("device {one}"),
        several => format!("devices {}", several.join(", ")),
    }
}

/// The first half of a sentence.
fn untold(devices: &[u32]) -> String {
    format!("the driver does not tell the memory of {},", numbered(devices))
}

fn no_such_device(total: u32) -> String {
    match total {
        0 => "this machine has none. 'genv doctor' tells why".to_owned(),
        1 => "this machine has only device 0".to_owned(),
        _ => format!("this machine has devices 0 to {}. 'genv devices' lists them", total - 1),
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
    let uses = if more.is_empty() { "uses it and does not hold it" } else { "use it and do not hold it" };
    format!("{first}{more} {uses}")
}

impl Shortage {
    fn reason(&self) -> String {
        let (needed, available, large, total) = (self.needed, self.available, self.large, self.total);
        let (such, is_any) = match self.kind.is_any() {
            true => ("", true),
            false => (" such devices", false),
        };
        if self.models.is_empty() {
            return "this machine has none. 'genv doctor' tells why".to_owned();
        }
        if total < needed && is_any {
            return format!(
                "this machine has {total}. Ask for {total} at most, by a flag or by 'genv config gpus {total}'"
            );
        }
        if total < needed && !self.untold.is_empty() {
            let known = match total {
                0 => "no device is".to_owned(),
                1 => "only 1 device is".to_owned(),
                _ => format!("only {total} devices are"),
            };
            return format!(
                "{} and {known} known to have so much. Leave the least memory out, or choose devices by '--index'",
                untold(&self.untold)
            );
        }
        if total < needed {
            let models: Vec<String> = self.models.iter().map(ModelCount::to_string).collect();
            let (has, ask) = match total {
                0 => ("none".to_owned(), "ask for one of these".to_owned()),
                _ => (total.to_string(), format!("ask for {total} at most, or for others")),
            };
            let models = models.join(", ");
            return format!("this machine has {has}. Its devices are {models}: {ask}");
        }
        if large < needed {
            return format!(
                "{large} of {total}{such} have so much. Ask for less, by a flag or by 'genv config gpu-memory'"
            );
        }
        let environments: BTreeSet<&str> = self.holders.iter().map(|it| it.eid.as_str()).collect();
        if let Some(first) = self.outside.first() {
            let index = first.gpu;
            let on_first = self.outside.iter().filter(|it| it.gpu == index);
            let on_first: Vec<OutsideUse> = on_first.cloned().collect();
            let on_others = self.outside.iter().map(|it| it.gpu);
            let on_others: BTreeSet<u32> = on_others.filter(|it| *it != index).collect();
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
                "{available} of {total}{such} can be had. Device {index}: {}{others}{held}{}. {USED_REMEDY}",
                used(&on_first),
                self.further_reasons()
            );
        }
        let hold = match environments.len() {
            0 => {
                let why = self.further_reasons();
                return format!("{available} of {total}{such} can be had{why}. 'genv free' tells which");
            }
            _ if !is_any => {
                return format!(
                    "{available} of {total}{such} can be had, and {}{}. 'genv devices' tells more, '--wait' waits",
                    self.named_holders(),
                    self.further_reasons()
                );
            }
            1 => "one environment holds".to_owned(),
            environments => format!("{environments} environments hold"),
        };
        let others = match total.saturating_sub(available) {
            _ if total == 1 => "it",
            1 => "the other",
            _ => "the others",
        };
        let why = self.further_reasons();
        format!("{available} of {total} can be had, and {hold} {others}{why}. 'genv devices' tells who, '--wait' waits")
    }

    /// Why devices are not available although nobody, or only a part of each, is in the way.
    fn further_reasons(&self) -> String {
        let unsplit = (!self.mig_unsplit.is_empty()).then(|| format!("; {}", in_mig_mode_unsplit(&self.mig_unsplit)));
        let divides = self.kind.memory_at_least.is_none() && !self.untold.is_empty();
        let untold = divides.then(|| {
            let it = if self.untold.len() == 1 { "it" } else { "each" };
            format!("; {} so that only one environment can hold {it}", untold(&self.untold))
        });
        [unsplit, untold].into_iter().flatten().collect()
    }

    /// `environment 12496 of bob holds devices 1, 3 and 4gi of device 2, environment 7 of eva holds device 5`
    fn named_holders(&self) -> String {
        let mut environments: Vec<(&Holder, Vec<u32>, Vec<String>)> = Vec::new();
        for holder in &self.holders {
            let known = environments.iter().position(|(it, ..)| it.eid == holder.eid);
            let position = known.unwrap_or_else(|| {
                environments.push((holder, Vec::new(), Vec::new()));
                environments.len() - 1
            });
            let (_, whole, parts) = &mut environments[position];
            match holder.memory {
                None => whole.push(holder.index),
                Some(memory) => parts.push(format!("{memory} of device {}", holder.index)),
            }
        }
        let named = environments.iter().take(MOST_NAMED);
        let named = named.map(|(holder, whole, parts)| {
            let user = holder.uid.map(|uid| format!(" of {}", harmless(&username(uid))));
            let whole = (!whole.is_empty()).then(|| numbered(whole));
            let held: Vec<String> = whole.into_iter().chain(parts.iter().cloned()).collect();
            format!("environment {}{} holds {}", escaped(&holder.eid), user.unwrap_or_default(), held.join(" and "))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        match environments.len().saturating_sub(MOST_NAMED) {
            0 => named,
            1 => format!("{named}, and 1 more environment holds others"),
            more => format!("{named}, and {more} more environments hold others"),
        }
    }
}

fn held(index: u32, holders: &[Holder], is_untold: bool) -> String {
    let holders = match holders {
        [] => {
            return "it has not so much memory. Ask for less, by a flag or by 'genv config gpu-memory'".to_owned();
        }
        [holder] => format!("environment {} holds {}", escaped(&holder.eid), part(holder)),
        [first, rest @ ..] => format!(
            "environment {} holds {}, and {} more hold parts of it",
            escaped(&first.eid),
            part(first),
            rest.len()
        ),
    };
    let untold = if is_untold {
        format!("; {} so that only one environment can hold it", untold(&[index]))
    } else {
        String::new()
    };
    format!("{holders}{untold}. 'genv who {index}' tells more")
}

fn part(holder: &Holder) -> String {
    holder.memory.map_or_else(|| "it".to_owned(), |memory| format!("{memory} of it"))
}

/// Every user may choose an eid: escaping keeps control characters off the terminal.
fn escaped(eid: &str) -> String {
    eid.escape_debug().to_string()
}
