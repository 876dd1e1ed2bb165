//! Families about devices: whole GPUs and MIG devices.

use std::collections::BTreeSet;

use genv_core::lab::GpuState;
use genv_core::model::{Device, DeviceMeasurements, DeviceMemory};
use genv_web::metrics::Samples;

use super::{Family, HostFamily, Kind};
use crate::host::PublishedHost;

/// One measurement of each device.
fn measured(host: &PublishedHost<'_>, out: &mut Samples, value: impl Fn(&DeviceMeasurements) -> Option<f64>) {
    for device in host.devices() {
        out.add(&[&device.index], value(&device.measurements));
    }
}

/// One amount of memory of each device. A MIG parent has none: its MIG devices are listed. The memory of a GPU instance
/// is that of its first compute instance whose memory was read, so that sums count it once.
fn memory(host: &PublishedHost<'_>, out: &mut Samples, bytes: impl Fn(&DeviceMemory) -> Option<u64>) {
    let mut instances = BTreeSet::new();
    for device in host.devices().filter(|device| !device.mig_parent) {
        let Some(memory) = &device.measurements.memory else {
            continue;
        };
        let instance = device.gpu_instance.map(|id| (device.index.gpu, id));
        if instance.is_none_or(|it| instances.insert(it)) {
            out.add(&[&device.index], bytes(memory).map(|bytes| bytes as f64));
        }
    }
}

/// The GPUs that can be attached, on a host whose state is known.
fn attachable<'h>(host: &'h PublishedHost<'_>) -> impl Iterator<Item = &'h Device> {
    let state_is_known = host.known_state().is_some();
    host.devices().filter(move |device| state_is_known && device.index.mig.is_none())
}

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_device_up",
        kind: Kind::Largest,
        labels: &["index", "uuid"],
        help: "Whether the device answers: 1 if it does, 0 if it is lost, cannot be asked or its values are too old.",
        samples: |host, out| {
            for device in host.devices() {
                out.add(&[&device.index, &device.uuid], f64::from(device.up));
            }
        },
    },
    Family {
        name: "genv_device_info",
        kind: Kind::Largest,
        labels: &["index", "uuid", "name", "minor", "driver_version", "parent", "profile", "gpu_instance"],
        help: "Always 1; the labels tell the device's product name, minor number and driver, and of a MIG device its GPU, profile and GPU instance.",
        samples: |host, out| {
            let driver = host.view().and_then(|view| view.snapshot.driver_version.as_deref());
            for device in host.devices() {
                let minor = device.minor.map(|minor| minor.to_string()).unwrap_or_default();
                let parent = device.index.mig.map(|_| { device.index.gpu }.to_string()).unwrap_or_default();
                let gpu_instance = device.gpu_instance.map(|id| id.to_string()).unwrap_or_default();
                out.add(
                    &[
                        &device.index,
                        &device.uuid,
                        &device.name.as_deref().unwrap_or_default(),
                        &minor,
                        &driver.unwrap_or_default(),
                        &parent,
                        &device.profile.as_deref().unwrap_or_default(),
                        &gpu_instance,
                    ],
                    1.0,
                );
            }
        },
    },
    Family {
        name: "genv_device_utilization_ratio",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Part of the driver's last sample period during which a kernel ran, 0 to 1.",
        samples: |host, out| measured(host, out, |device| device.utilization_ratio),
    },
    Family {
        name: "genv_device_memory_controller_busy_ratio",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Part of the driver's last sample period during which device memory was read or written, 0 to 1.",
        samples: |host, out| measured(host, out, |device| device.memory_controller_busy_ratio),
    },
    Family {
        name: "genv_device_encoder_utilization_ratio",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Part of the time that the video encoder was busy, 0 to 1.",
        samples: |host, out| measured(host, out, |device| device.encoder_utilization_ratio),
    },
    Family {
        name: "genv_device_decoder_utilization_ratio",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Part of the time that the video decoder was busy, 0 to 1.",
        samples: |host, out| measured(host, out, |device| device.decoder_utilization_ratio),
    },
    Family {
        name: "genv_device_memory_total_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory installed, in bytes.",
        samples: |host, out| memory(host, out, |memory| Some(memory.total_bytes)),
    },
    Family {
        name: "genv_device_memory_used_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory allocated by processes, in bytes.",
        samples: |host, out| memory(host, out, |memory| Some(memory.used_bytes)),
    },
    Family {
        name: "genv_device_memory_free_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory not allocated, in bytes.",
        samples: |host, out| memory(host, out, |memory| Some(memory.free_bytes)),
    },
    Family {
        name: "genv_device_memory_reserved_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory held by the driver and the firmware, in bytes.",
        samples: |host, out| memory(host, out, |memory| memory.reserved_bytes),
    },
    Family {
        name: "genv_device_memory_unattached_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory that no attachment claims, in bytes; an attachment without an amount claims all of it.",
        samples: |host, out| {
            for device in attachable(host).filter(|device| !device.mig_parent) {
                let total = device.measurements.memory.map(|memory| memory.total_bytes);
                let unattached = total.map(|total| {
                    let claims = device.attachments.iter();
                    let claims = claims.map(|attachment| attachment.memory_bytes.unwrap_or(total));
                    claims.fold(total, u64::saturating_sub)
                });
                out.add(&[&device.index], unattached.map(|bytes| bytes as f64));
            }
        },
    },
    Family {
        name: "genv_device_temperature_celsius",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Temperature of the GPU core, in degrees Celsius.",
        samples: |host, out| measured(host, out, |device| device.temperature_celsius),
    },
    Family {
        name: "genv_device_temperature_limit_celsius",
        kind: Kind::Gauge,
        labels: &["index", "limit"],
        help: "Temperature at which the limit (shutdown, slowdown, memory_max or gpu_max) takes effect, in degrees Celsius.",
        samples: |host, out| {
            for device in host.devices() {
                for (limit, celsius) in device.measurements.temperature_limits_celsius.iter() {
                    out.add(&[&device.index, limit], *celsius);
                }
            }
        },
    },
    Family {
        name: "genv_device_power_watts",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Power drawn, in watts.",
        samples: |host, out| measured(host, out, |device| device.power_watts),
    },
    Family {
        name: "genv_device_power_limit_watts",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Power limit that is enforced, in watts.",
        samples: |host, out| measured(host, out, |device| device.power_limit_watts),
    },
    Family {
        name: "genv_device_energy_joules_total",
        kind: Kind::Counter,
        labels: &["index"],
        help: "Energy used since the collection began, in joules; equals the sum over users of genv_user_energy_joules_total.",
        samples: |host, out| {
            for energy in host.counters(|counters| &counters.device_energy) {
                out.add(&[&energy.index], energy.energy_joules);
            }
        },
    },
    Family {
        name: "genv_device_clock_hertz",
        kind: Kind::Gauge,
        labels: &["index", "clock"],
        help: "Frequency of the clock (graphics, sm, memory or video), in hertz.",
        samples: |host, out| {
            for device in host.devices() {
                for (clock, hertz) in device.measurements.clocks_hertz.iter() {
                    out.add(&[&device.index, clock], *hertz);
                }
            }
        },
    },
    Family {
        name: "genv_device_fan_speed_ratio",
        kind: Kind::Gauge,
        labels: &["index", "fan"],
        help: "Intended speed of the fan as a part of its maximum, 0 to 1 (and above, where the driver allows it).",
        samples: |host, out| {
            for device in host.devices() {
                for (fan, ratio) in &device.measurements.fan_speed_ratios {
                    out.add(&[&device.index, fan], *ratio);
                }
            }
        },
    },
    Family {
        name: "genv_device_throttled",
        kind: Kind::Largest,
        labels: &["index", "reason"],
        help: "Whether clocks are held down for the reason: 1 if they are, 0 if not; an idle device is not throttled.",
        samples: |host, out| {
            for device in host.devices() {
                for (reason, active) in device.measurements.throttled.as_deref().into_iter().flatten() {
                    out.add(&[&device.index, reason], f64::from(*active));
                }
            }
        },
    },
    Family {
        name: "genv_device_ecc_errors_total",
        kind: Kind::Counter,
        labels: &["index", "type"],
        help: "Memory errors found by ECC since the driver was loaded, by type (corrected or uncorrected).",
        samples: |host, out| {
            for device in host.devices() {
                let errors = device.measurements.ecc_errors;
                for (kind, errors) in [("corrected", errors.corrected), ("uncorrected", errors.uncorrected)] {
                    out.add(&[&device.index, &kind], errors.map(|errors| errors as f64));
                }
            }
        },
    },
    Family {
        name: "genv_device_xid_errors_total",
        kind: Kind::Counter,
        labels: &["index", "xid"],
        help: "Errors that the driver reported with the XID code since the collection began.",
        samples: |host, out| {
            for xid in host.counters(|counters| &counters.device_xid_errors) {
                out.add(&[&xid.index, &xid.xid], xid.errors as f64);
            }
        },
    },
    Family {
        name: "genv_device_last_xid_timestamp_seconds",
        kind: Kind::Largest,
        labels: &["index", "xid"],
        help: "When the driver last reported the XID code, in seconds of Unix time.",
        samples: |host, out| {
            for xid in host.counters(|counters| &counters.device_xid_errors) {
                out.add(&[&xid.index, &xid.xid], xid.last_timestamp_seconds);
            }
        },
    },
    Family {
        name: "genv_device_distrusted_readings_total",
        kind: Kind::Counter,
        labels: &["index", "reading"],
        help: "Values that the driver told and that cannot be, which are left out everywhere, since the collection began.",
        samples: |host, out| {
            for it in host.counters(|counters| &counters.device_distrusted_readings) {
                out.add(&[&it.index, &it.reading], it.readings as f64);
            }
        },
    },
    Family {
        name: "genv_device_contradictory",
        kind: Kind::Largest,
        labels: &["index"],
        help: "Whether the utilization has been high for --gpu.contradictory-after without a process and without memory in use: 1 if it has, 0 if not.",
        samples: |host, out| {
            for device in host.devices() {
                let is_known = device.contradictory || device.measurements.utilization_ratio.is_some();
                out.add(&[&device.index], is_known.then_some(f64::from(device.contradictory)));
            }
        },
    },
    Family {
        name: "genv_device_pcie_replays_total",
        kind: Kind::Counter,
        labels: &["index"],
        help: "Packets that were sent again over PCIe, as the driver counts them.",
        samples: |host, out| measured(host, out, |device| device.pcie_replays.map(|replays| replays as f64)),
    },
    Family {
        name: "genv_device_attachments",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Environments to which the GPU is attached.",
        samples: |host, out| {
            for device in attachable(host) {
                out.add(&[&device.index], device.attachments.len() as f64);
            }
        },
    },
    Family {
        name: "genv_device_available",
        kind: Kind::Largest,
        labels: &["index"],
        help: "Whether the GPU is up, attached to no environment, used by no process (a split one on none of its parts), and not in MIG mode without MIG devices: 1 or 0; absent if that cannot be told.",
        samples: |host, out| {
            let Some(view) = host.view() else { return };
            for device in host.devices().filter(|device| device.index.mig.is_none()) {
                out.add(&[&device.index], GpuState::of(view.snapshot, device).available().map(f64::from));
            }
        },
    },
    Family {
        name: "genv_device_processes",
        kind: Kind::Gauge,
        labels: &["index", "state"],
        help: "Processes that use the device, by where they belong (environment, outside or unknown); absent while they are not all known.",
        samples: |host, out| {
            let Some(processes) = host.processes() else {
                return;
            };
            for device in host.devices().filter(|device| device.processes_measured) {
                let states = processes.by_device.get(device.index);
                let states = states.copied().unwrap_or_default();
                for (state, number) in states.each() {
                    out.add(&[&device.index, &state], number);
                }
            }
        },
    },
];
