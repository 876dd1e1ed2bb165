//! Families about environments, their attachments and their use of devices.

use std::collections::BTreeSet;

use genv_core::model::{Environment, EnvironmentDevice};
use genv_web::metrics::{LabelValue, Samples};

use super::{Family, HostFamily, Kind};
use crate::host::{PublishedHost, attached};

/// The environments of a host that have series of their own.
fn environments<'h, 'a>(host: &'h PublishedHost<'a>) -> impl Iterator<Item = &'a Environment> + use<'h, 'a> {
    let environments = host.view().and_then(|view| view.environments.as_ref());
    environments.into_iter().flat_map(|environments| environments.values().copied())
}

/// One value of every device that an environment holds or uses, for each environment.
fn used(host: &PublishedHost<'_>, out: &mut Samples, value: impl Fn(&EnvironmentDevice) -> Option<f64>) {
    for environment in environments(host) {
        for device in &environment.devices {
            out.add(&[&environment.eid, &device.index], value(device));
        }
    }
}

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_environments",
        kind: Kind::Gauge,
        labels: &[],
        help: "Active environments.",
        samples: |host, out| {
            let view = host.known_state();
            out.add(&[], view.map(|view| view.snapshot.environments.len() as f64));
        },
    },
    Family {
        name: "genv_attached_devices",
        kind: Kind::Gauge,
        labels: &[],
        help: "GPUs that are attached to at least one environment.",
        samples: |host, out| {
            if let Some(view) = host.known_state() {
                let environments = view.snapshot.environments.iter();
                let held = environments.flat_map(|environment| attached(environment));
                out.add(&[], held.collect::<BTreeSet<_>>().len() as f64);
            }
        },
    },
    Family {
        name: "genv_environment_info",
        kind: Kind::Largest,
        labels: &["eid", "env_name", "username"],
        help: "Always 1; the labels tell the environment's name and its user.",
        samples: |host, out| {
            for environment in environments(host) {
                let name = environment.name.as_deref().unwrap_or_default();
                out.add(&[&environment.eid, &name, &environment.username], 1.0);
            }
        },
    },
    Family {
        name: "genv_environment_created_timestamp_seconds",
        kind: Kind::Largest,
        labels: &["eid"],
        help: "When the environment was activated, in seconds of Unix time.",
        samples: |host, out| {
            for environment in environments(host) {
                out.add(&[&environment.eid], environment.created_timestamp_seconds);
            }
        },
    },
    Family {
        name: "genv_environment_lease_end_timestamp_seconds",
        kind: Kind::Largest,
        labels: &["eid"],
        help: "When the lease of the environment ends, in seconds of Unix time, by 'genv activate --for' or 'genv extend'; absent without a lease.",
        samples: |host, out| {
            for environment in environments(host) {
                out.add(&[&environment.eid], environment.lease_end_timestamp_seconds);
            }
        },
    },
    Family {
        name: "genv_environment_devices",
        kind: Kind::Gauge,
        labels: &["eid"],
        help: "GPUs that are attached to the environment.",
        samples: |host, out| {
            for environment in environments(host) {
                out.add(&[&environment.eid], attached(environment).count() as f64);
            }
        },
    },
    Family {
        name: "genv_environment_processes",
        kind: Kind::Gauge,
        labels: &["eid"],
        help: "Processes of the environment that use a device; absent if a GPU that it holds does not tell all of its processes, or no GPU does.",
        samples: |host, out| {
            let Some(view) = host.view() else { return };
            let Some(processes) = view.owned_processes() else {
                return;
            };
            for environment in environments(host) {
                let number = processes.by_environment.get(environment.eid.as_str());
                let number = number.copied().unwrap_or_default() as f64;
                let known = view.knows_all_processes_on(attached(environment));
                out.add(&[&environment.eid], known.then_some(number));
            }
        },
    },
    Family {
        name: "genv_environment_device_share_ratio",
        kind: Kind::Gauge,
        labels: &["eid", "env_name", "username", "index"],
        help: "Part of the GPU that the environment holds by its attachment, 0 to 1; the shares of a GPU add up to at most 1.",
        samples: |host, out| {
            let Some(environments) = host.view().and_then(|view| view.environments.as_ref()) else {
                return;
            };
            for device in host.devices() {
                for attachment in device.attachments.iter() {
                    let Some(environment) = environments.get(attachment.eid.as_str()) else {
                        continue;
                    };
                    let name = environment.name.as_deref().unwrap_or_default();
                    let labels: [&dyn LabelValue; 4] = [&environment.eid, &name, &environment.username, &device.index];
                    out.add(&labels, attachment.share_ratio);
                }
            }
        },
    },
    Family {
        name: "genv_environment_memory_used_bytes",
        kind: Kind::Gauge,
        labels: &["eid", "index"],
        help: "Memory of the device that the environment's processes use, in bytes.",
        samples: |host, out| used(host, out, |device| device.memory_used_bytes.get().map(|bytes| bytes as f64)),
    },
    Family {
        name: "genv_environment_memory_capacity_bytes",
        kind: Kind::Gauge,
        labels: &["eid", "index"],
        help: "Memory of the device that the environment may use by its attachment, in bytes.",
        samples: |host, out| used(host, out, |device| device.memory_capacity_bytes.get().map(|bytes| bytes as f64)),
    },
    Family {
        name: "genv_environment_utilization_ratio",
        kind: Kind::Gauge,
        labels: &["eid", "index"],
        help: "Part of the time that kernels of the environment's processes ran on the device, 0 to 1.",
        samples: |host, out| used(host, out, |device| device.utilization_ratio.get()),
    },
    Family {
        name: "genv_environment_last_active_timestamp_seconds",
        kind: Kind::Largest,
        labels: &["eid", "index"],
        help: "When the environment's utilization of the device was last seen above the busy threshold, in seconds of Unix time.",
        samples: |host, out| used(host, out, |device| device.last_active_timestamp_seconds.get()),
    },
];
