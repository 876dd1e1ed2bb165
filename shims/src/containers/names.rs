//! Devices by name: `--device nvidia.com/gpu=…` (CDI) and `NVIDIA_VISIBLE_DEVICES`.

use super::client::RestrictedValue;
use super::gpus::too_few;
use crate::outcome::Refusal;

/// The prefix of CDI names of NVIDIA devices: <https://github.com/cncf-tags/container-device-interface>.
pub(super) const CDI: &str = "nvidia.com/gpu=";

/// The variable by which NVIDIA's runtime gives devices to a container.
pub(super) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The attached devices, and functions that resolve names of devices.
#[derive(Clone, Copy)]
pub(super) struct AttachedDevices<'a> {
    pub(super) devices: &'a [u32],
    /// The GPU of an id.
    pub(super) index: &'a dyn Fn(&str) -> Option<u32>,
    /// The numbers of a GPU's MIG devices.
    pub(super) mig: &'a dyn Fn(u32) -> Vec<u32>,
}

impl AttachedDevices<'_> {
    pub(super) fn indices(&self) -> Vec<String> {
        self.devices.iter().map(u32::to_string).collect()
    }

    /// The CDI names of all attached devices, without the prefix. A split GPU has no name of its own.
    pub(super) fn cdi_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for device in self.devices {
            let mig = (self.mig)(*device);
            if mig.is_empty() {
                names.push(device.to_string());
            }
            names.extend(mig.iter().map(|number| format!("{device}:{number}")));
        }
        names
    }

    /// The attached devices of ids, and the ids of other devices. `all` is the value of the word `all`.
    pub(super) fn named<'i>(
        &self,
        ids: impl IntoIterator<Item = &'i str>,
        all: impl Fn() -> Vec<String>,
    ) -> (Vec<String>, Vec<String>) {
        let (mut devices, mut others) = (Vec::new(), Vec::new());
        for id in ids {
            if id == "all" {
                devices.extend(all());
            } else if (self.index)(id).is_some_and(|index| self.devices.contains(&index)) {
                // The real program may read `03` as another device.
                let number = id.parse::<u32>().map(|index| index.to_string());
                devices.push(number.unwrap_or_else(|_| id.to_owned()));
            } else {
                others.push(id.to_owned());
            }
        }
        (devices, others)
    }
}

/// The replacements of a value of `--device`, and the removed names. `None`: it names no NVIDIA device.
pub(super) fn device_values(value: &str, attached: &AttachedDevices<'_>) -> Option<(Vec<String>, Vec<String>)> {
    if !asks_for_names(value) {
        return None;
    }
    let (mut values, mut dropped) = (Vec::new(), Vec::new());
    // Lists are accepted by podman before 5.
    for value in value.split(',') {
        match value.strip_prefix(CDI) {
            Some(id) => {
                let (devices, others) = attached.named([id], || attached.cdi_names());
                values.extend(devices.iter().map(|id| format!("{CDI}{id}")));
                dropped.extend(others.iter().map(|id| format!("{CDI}{id}")));
            }
            None => values.push(value.to_owned()),
        }
    }
    Some((values, dropped))
}

/// Whether a value of `--device` names NVIDIA devices.
pub(super) fn asks_for_names(value: &str) -> bool {
    value.split(',').any(|value| value.starts_with(CDI))
}

/// Whether a value of [`VISIBLE`] gives devices to a container.
pub(super) fn gives_devices(value: &str) -> bool {
    !["", "none", "void"].contains(&value)
}

/// Restricts a value of [`VISIBLE`].
pub(super) fn restrict_visible(
    request: &str,
    attached: &AttachedDevices<'_>,
) -> Result<Option<RestrictedValue>, Refusal> {
    if !gives_devices(request) {
        return Ok(None);
    }
    let (devices, dropped) = attached.named(request.split(','), || attached.indices());
    restricted_list(VISIBLE, request, devices, dropped, attached)
}

/// A list of devices as the new value of a flag, with the removed names.
pub(super) fn restricted_list(
    flag: &str,
    request: &str,
    devices: Vec<String>,
    dropped: Vec<String>,
    attached: &AttachedDevices<'_>,
) -> Result<Option<RestrictedValue>, Refusal> {
    if devices.is_empty() {
        return Err(too_few(flag, request, attached.devices));
    }
    Ok(Some(RestrictedValue { value: devices.join(","), dropped }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::outcome::NOT_ENOUGH_DEVICES;

    /// With devices 1, 3 and 4 attached; device 3 is split in two.
    pub(in super::super) const ATTACHED: AttachedDevices<'_> = AttachedDevices {
        devices: &[1, 3, 4],
        index: &|id| match id {
            "GPU-3" => Some(3),
            "3:0" | "3:1" => Some(3),
            "0:0" => Some(0),
            id => id.parse().ok(),
        },
        mig: &|device| if device == 3 { vec![0, 1] } else { Vec::new() },
    };

    #[test]
    fn cdi_names_are_cut_to_attached_devices() {
        for (typed, values, dropped) in [
            (
                "nvidia.com/gpu=all",
                &["nvidia.com/gpu=1", "nvidia.com/gpu=3:0", "nvidia.com/gpu=3:1", "nvidia.com/gpu=4"][..],
                &[][..],
            ),
            ("nvidia.com/gpu=GPU-3", &["nvidia.com/gpu=GPU-3"], &[]),
            ("nvidia.com/gpu=3:1", &["nvidia.com/gpu=3:1"], &[]),
            ("nvidia.com/gpu=0:0", &[], &["nvidia.com/gpu=0:0"]),
            ("nvidia.com/gpu=", &[], &["nvidia.com/gpu="]),
            ("nvidia.com/gpu=0,/dev/fuse,nvidia.com/gpu=01", &["/dev/fuse", "nvidia.com/gpu=1"], &["nvidia.com/gpu=0"]),
        ] {
            let owned = |values: &[&str]| values.iter().map(ToString::to_string).collect();
            let expected = (owned(values), owned(dropped));
            assert_eq!(device_values(typed, &ATTACHED), Some(expected), "{typed}");
        }
        for typed in ["/dev/fuse", "vendor.com/net=all", "/dev/a:/dev/b:rw", ""] {
            assert_eq!(device_values(typed, &ATTACHED), None, "{typed}");
        }
    }

    #[test]
    fn visible_devices_are_cut_unless_there_are_none() {
        for (typed, value) in [("all", "1,3,4"), ("3:0,0", "3:0"), ("GPU-3", "GPU-3")] {
            let found = restrict_visible(typed, &ATTACHED).unwrap().unwrap();
            assert_eq!(found.value, value, "{typed}");
        }
        for typed in ["", "none", "void"] {
            assert_eq!(restrict_visible(typed, &ATTACHED), Ok(None), "{typed}");
        }
        let refusal = restrict_visible("0,nosuch", &ATTACHED).unwrap_err();
        assert_eq!(refusal.code, NOT_ENOUGH_DEVICES);
    }
}
