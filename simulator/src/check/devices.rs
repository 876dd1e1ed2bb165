//! From devices as they are written to devices that hold together.

use std::collections::{BTreeMap, HashSet};

use genv_core::gpu::MOST_MIG_DEVICES;
use genv_core::yaml::Located;
use sha2::{Digest, Sha256};

use super::{Checked, Checker};
use crate::definition::{Device, DeviceFault, MigDevice, Xid};
use crate::format::{DeviceEntry, DeviceFaultEntry, XidEntry};
use crate::pattern::{Level, Pattern, Window};

/// More devices of a kind than this are a typing error.
const MOST_DEVICES: u32 = 1024;

impl Checker<'_> {
    pub(super) fn devices(&self, host: &str, entries: &[DeviceEntry]) -> Checked<Vec<Device>> {
        let mut devices = Vec::new();
        let (mut uuids, mut minors, mut buses) = (HashSet::new(), HashSet::new(), HashSet::new());
        for entry in entries {
            let count = entry.count.as_ref().map_or(1, |count| count.value);
            if let Some(place) = &entry.count
                && count > MOST_DEVICES
            {
                return self.refuse(place.referenced, format!("a host has at most {MOST_DEVICES} devices"));
            }
            if count != 1 {
                let own = "this is one device's own: write such devices one by one, without count";
                let given = [
                    entry.uuid.as_ref().map(|uuid| uuid.referenced),
                    entry.minor.as_ref().map(|minor| minor.referenced),
                    entry.pci_bus_id.as_ref().map(|bus| bus.referenced),
                ];
                if let Some(place) = given.into_iter().flatten().next() {
                    return self.refuse(place, own);
                }
            }
            for _ in 0..count {
                let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
                let device = self.device(host, index, entry)?;
                if let Some(uuid) = &entry.uuid {
                    self.unique(&mut uuids, device.uuid.clone(), uuid.referenced, || format!("uuid {}", device.uuid))?;
                }
                if let Some(minor) = &entry.minor {
                    self.unique(&mut minors, device.minor, minor.referenced, || format!("minor {}", device.minor))?;
                }
                if let Some(bus) = &entry.pci_bus_id {
                    self.unique(&mut buses, device.pci_bus_id.clone(), bus.referenced, || {
                        format!("pci_bus_id {}", device.pci_bus_id)
                    })?;
                }
                devices.push(device);
            }
        }
        Ok(devices)
    }

    fn device(&self, host: &str, index: u32, entry: &DeviceEntry) -> Checked<Device> {
        let (memory_bytes, memory_reserved_bytes) = self.memory(entry)?;
        let power_watts = self.power(entry)?;
        let limits = entry.temperature_limits;
        let clocks = entry.clocks;
        let ecc = entry.ecc.unwrap_or_default();
        Ok(Device {
            index,
            name: entry.name.clone().unwrap_or_else(|| "NVIDIA H100 80GB HBM3".to_owned()),
            uuid: entry
                .uuid
                .as_ref()
                .map_or_else(|| derived_uuid("GPU", host, &index.to_string()), |uuid| uuid.value.clone()),
            minor: entry.minor.as_ref().map_or(index, |minor| minor.value),
            pci_bus_id: entry
                .pci_bus_id
                .as_ref()
                .map_or_else(|| format!("{:08X}:{:02X}:00.0", index / 255, index % 255 + 1), |bus| bus.value.clone()),
            memory_bytes,
            memory_reserved_bytes,
            memory_used_bytes: entry.memory_used.as_ref().map(|used| used.value.0),
            utilization: entry.utilization.clone(),
            memory_controller: entry.memory_controller.clone(),
            encoder: entry.encoder.clone().unwrap_or(Pattern::Constant(0.0)),
            decoder: entry.decoder.clone().unwrap_or(Pattern::Constant(0.0)),
            temperature_celsius: entry.temperature.unwrap_or(Level { idle: 32.0, max: 78.0 }),
            temperature_limits_celsius: BTreeMap::from([
                ("shutdown", limits.shutdown.unwrap_or(95)),
                ("slowdown", limits.slowdown.unwrap_or(92)),
                ("memory_max", limits.memory_max.unwrap_or(95)),
                ("gpu_max", limits.gpu_max.unwrap_or(87)),
            ]),
            power_watts,
            power_limit_watts: entry.power_limit.unwrap_or(power_watts.max),
            clocks_megahertz: BTreeMap::from([
                ("graphics", clocks.graphics.unwrap_or(1410)),
                ("sm", clocks.sm.or(clocks.graphics).unwrap_or(1410)),
                ("memory", clocks.memory.unwrap_or(1593)),
                ("video", clocks.video.unwrap_or(1275)),
            ]),
            fan_speed_ratios: entry.fans.clone(),
            throttled: entry.throttled.clone(),
            ecc_errors: ecc.enabled.unwrap_or(true).then_some((ecc.corrected, ecc.uncorrected)),
            pcie_replays: entry.pcie_replays,
            mig: self.mig_devices(host, index, entry)?,
            xid: entry.xid.iter().map(|xid| self.xid(xid)).collect::<Checked<_>>()?,
            faults: entry.faults.iter().map(|fault| self.device_fault(fault)).collect::<Checked<_>>()?,
            users: Vec::new(),
        })
    }

    /// How much there is, and how much of it the driver keeps.
    fn memory(&self, entry: &DeviceEntry) -> Checked<(u64, u64)> {
        const GI: u64 = 1 << 30;
        const MI: u64 = 1 << 20;
        let memory_bytes = entry.memory.map_or(80 * GI, |memory| memory.0);
        let memory_reserved_bytes = match &entry.memory_reserved {
            Some(reserved) if reserved.value.0 > memory_bytes => {
                return self.refuse(reserved.referenced, "more is reserved than the device has");
            }
            Some(reserved) => reserved.value.0,
            None => (512 * MI).min(memory_bytes / 16),
        };
        if let Some(used) = &entry.memory_used
            && used.value.0 > memory_bytes - memory_reserved_bytes
        {
            return self.refuse(used.referenced, "more is used than the device has left");
        }
        Ok((memory_bytes, memory_reserved_bytes))
    }

    fn power(&self, entry: &DeviceEntry) -> Checked<Level> {
        match &entry.power {
            // Below a watt, 64 bits would not show energy rising from one millisecond to the next.
            Some(power) if power.value.idle < 1.0 => {
                self.refuse(power.referenced, "a device draws at least 1 W when idle")
            }
            Some(power) => Ok(power.value),
            None => Ok(Level { idle: 60.0, max: 300.0 }),
        }
    }

    fn mig_devices(&self, host: &str, index: u32, entry: &DeviceEntry) -> Checked<Vec<MigDevice>> {
        let mut mig: Vec<MigDevice> = Vec::new();
        let mut uuids = HashSet::new();
        for (position, located) in (0..).zip(&entry.mig) {
            if position == MOST_MIG_DEVICES {
                return self.refuse(located.referenced, format!("a GPU has at most {MOST_MIG_DEVICES} MIG devices"));
            }
            let part = &located.value;
            if let Some(uuid) = &part.uuid {
                self.unique(&mut uuids, &uuid.value, uuid.referenced, || format!("uuid {}", uuid.value))?;
            }
            let highest = mig.iter().map(|it| it.gpu_instance).max().unwrap_or(0);
            let gpu_instance = part.gpu_instance.as_ref().map_or(highest.saturating_add(1), |id| id.value);
            if gpu_instance >= MOST_MIG_DEVICES {
                let place = part.gpu_instance.as_ref().map_or(located.referenced, |id| id.referenced);
                let message =
                    format!("a GPU instance has an id below {MOST_MIG_DEVICES}, and this one would be {gpu_instance}");
                return self.refuse(place, message);
            }
            let others = mig.iter().filter(|it| it.gpu_instance == gpu_instance);
            if let Some(place) = &part.gpu_instance
                && others.clone().any(|it| it.memory_bytes != part.memory.0)
            {
                let message =
                    format!("the MIG devices of GPU instance {gpu_instance} share one memory: write the same");
                return self.refuse(place.referenced, message);
            }
            let compute_instance = u32::try_from(others.count()).unwrap_or(u32::MAX);
            mig.push(MigDevice {
                profile: part.profile.clone(),
                uuid: part.uuid.as_ref().map_or_else(
                    || derived_uuid("MIG", host, &format!("{index}:{position}")),
                    |uuid| uuid.value.clone(),
                ),
                memory_bytes: part.memory.0,
                gpu_instance,
                compute_instance,
            });
        }
        Ok(mig)
    }

    fn xid(&self, entry: &Located<XidEntry>) -> Checked<Xid> {
        let XidEntry { xid, at, every } = entry.value;
        match (at, every) {
            (None, None) => self.refuse(entry.referenced, "say when it happens: at, every, or both"),
            (_, Some(every)) if every.0 < 1.0 => {
                self.refuse(entry.referenced, "an XID error every second is the most there can be")
            }
            (at, every) => Ok(Xid {
                xid,
                first_seconds: at.or(every).map_or(0.0, |first| first.0),
                every_seconds: every.map(|every| every.0),
            }),
        }
    }

    fn device_fault(&self, entry: &Located<DeviceFaultEntry>) -> Checked<(Window, DeviceFault)> {
        let window = self.window(entry.value.during.as_ref())?;
        let fault = entry.value.clone();
        Ok((
            window,
            match (fault.lost, fault.hang, fault.not_supported, fault.wrong) {
                (true, None, None, None) => DeviceFault::Lost,
                (false, Some(calls), None, None) => DeviceFault::Hang(calls),
                (false, None, Some(measurements), None) => DeviceFault::NotSupported(measurements),
                (false, None, None, Some(calls)) => DeviceFault::Wrong(
                    calls,
                    self.wrong_answer(entry.referenced, (fault.error, fault.number, fault.count, fault.text))?,
                ),
                _ => {
                    return self.refuse(
                        entry.referenced,
                        "a fault of a device is one of lost: true, hang, not_supported and wrong",
                    );
                }
            },
        ))
    }
}

/// A UUID that only depends on where the device is.
fn derived_uuid(prefix: &str, host: &str, index: &str) -> String {
    let hash = Sha256::digest(format!("{prefix}/{host}/{index}"));
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
