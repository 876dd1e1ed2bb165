//! The devices of an environment, in words.

use std::collections::BTreeMap;

use genv_core::model::MemoryAmount;
use genv_core::outside::memory;
use genv_core::state::EditableState;

use crate::lease;
use crate::output::harmless;

/// A device of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedDevice {
    pub(super) index: u32,
    /// Absent if the driver has not answered.
    pub(super) model: Option<String>,
    pub(super) total: Option<MemoryAmount>,
    /// The claimed amount of memory; absent: the whole device.
    pub(super) claimed: Option<MemoryAmount>,
}

impl AttachedDevice {
    /// The devices of an environment, with the models that the driver has reported.
    pub(crate) fn all(state: &EditableState, eid: &str, models: &BTreeMap<u32, String>) -> Vec<Self> {
        let held = |device: &genv_core::state::DeviceState| {
            let attachment = device.attachments.iter().find(|it| it.eid == eid)?;
            Some(Self {
                index: device.index,
                model: models.get(&device.index).cloned(),
                total: device.total_memory,
                claimed: attachment.gpu_memory,
            })
        };
        state.devices().iter().filter_map(held).collect()
    }

    /// `NVIDIA A100, 8gi of 40.0 GiB each`
    fn kind(&self, each: &str) -> String {
        let total = self.total.map(|it| memory(it.bytes()));
        let amount = match (self.claimed, total) {
            (Some(claimed), Some(total)) => Some(format!("{claimed} of {total}{each}")),
            (Some(claimed), None) => Some(format!("{claimed} of its memory")),
            (None, total) => total.map(|total| format!("{total}{each}")),
        };
        let model = self.model.as_deref().map(harmless);
        let parts: Vec<String> = model.into_iter().chain(amount).collect();
        parts.join(", ")
    }
}

/// `devices 0, 1 (NVIDIA A100, 40.0 GiB each) and device 2 (NVIDIA T4, 15.0 GiB)`
pub(super) fn described(devices: &[AttachedDevice]) -> String {
    let mut kinds: Vec<Vec<&AttachedDevice>> = Vec::new();
    for device in devices {
        let is_same = |kind: &&mut Vec<&AttachedDevice>| kind[0].kind("") == device.kind("");
        match kinds.iter_mut().find(is_same) {
            Some(kind) => kind.push(device),
            None => kinds.push(vec![device]),
        }
    }
    let described = kinds.iter().map(|kind| {
        let numbers: Vec<u32> = kind.iter().map(|it| it.index).collect();
        let each = if kind.len() == 1 { "" } else { " each" };
        match &kind[0].kind(each)[..] {
            "" => indices(&numbers),
            kind => format!("{} ({kind})", indices(&numbers)),
        }
    });
    match devices.is_empty() {
        true => indices::<u32>(&[]),
        false => described.collect::<Vec<_>>().join(" and "),
    }
}

/// `with device 1 (NVIDIA T4, 15.0 GiB) until 18:00 (in 2 h)`
pub(super) fn equipment(devices: &[AttachedDevice], lease_end: Option<f64>) -> String {
    let devices = match devices {
        [] => "without devices".to_owned(),
        devices => format!("with {}", described(devices)),
    };
    let lease = lease_end.map(|end| format!(" {}", lease::describe_end(end)));
    devices + &lease.unwrap_or_default()
}

pub(super) fn numbered(devices: &[AttachedDevice]) -> String {
    let numbers: Vec<u32> = devices.iter().map(|it| it.index).collect();
    indices(&numbers)
}

/// `no device`, `device 1`, `devices 1, 2`.
pub(crate) fn indices<T: ToString>(devices: &[T]) -> String {
    let numbers: Vec<String> = devices.iter().map(T::to_string).collect();
    match &numbers[..] {
        [] => "no device".to_owned(),
        [one] => format!("device {one}"),
        several => format!("devices {}", several.join(", ")),
    }
}

/// The devices that are not in `others`.
pub(super) fn without(devices: &[AttachedDevice], others: &[AttachedDevice]) -> Vec<AttachedDevice> {
    let is_other = |it: &AttachedDevice| others.iter().any(|other| other.index == it.index);
    let rest = devices.iter().filter(|it| !is_other(it));
    rest.cloned().collect()
}

/// Whether devices and claimed memory are the same. The model may have become known meanwhile.
pub(super) fn same(before: &[AttachedDevice], now: &[AttachedDevice]) -> bool {
    let claims = |devices: &[AttachedDevice]| -> Vec<(u32, Option<MemoryAmount>)> {
        devices.iter().map(|it| (it.index, it.claimed)).collect()
    };
    claims(before) == claims(now)
}
