//! The families of genv 1.4.3, with the names, labels and units of old dashboards.
//!
//! Numbers have the meaning of 1.4.3: percent, bytes in whole MiB, and only processes that compute
//! (`nvidia-smi --query-compute-apps`). Two differences: a process whose claim to an environment was refuted has no
//! `eid`, and a user is named by uid, not by the name in the state file.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::{Device, DeviceIndex, HostSnapshot, Process, ProcessDevice, ProcessType};
use genv_web::metrics::MetricFamily;
use genv_web::metrics::Samples;

use super::{Family, HostFamily, Kind, Limits};
use crate::host::{HostView, PublishedHost, attached};

/// All families of the hosts, also those without a sample, as in 1.4.3. As there, samples of a single host have no
/// label `hostname`.
pub fn of_hosts(hosts: &[HostSnapshot], mut each: impl FnMut(&MetricFamily)) {
    let no_limit = Limits { processes: Some(usize::MAX) };
    let hosts: Vec<_> = hosts.iter().map(|host| PublishedHost::new(host, no_limit)).collect();
    let mut samples = Samples::default();
    for family in FAMILIES {
        each(samples.of(family, |samples| match hosts.as_slice() {
            [host] => (family.samples)(host, samples),
            hosts => hosts.iter().for_each(|host| super::add_of_host(family, host, samples)),
        }));
    }
}

const MIB: u64 = 1 << 20;

/// Bytes rounded down to whole MiB.
const fn whole_mib(bytes: u64) -> f64 {
    (bytes / MIB * MIB) as f64
}

fn gpus<'a>(host: &PublishedHost<'a>) -> impl Iterator<Item = &'a Device> {
    host.devices().filter(|device| device.index.mig.is_none())
}

/// Processes that compute, with the devices on which they compute.
fn computing<'a>(host: &PublishedHost<'a>) -> Vec<(&'a Process, Vec<&'a ProcessDevice>)> {
    let processes = host.processes().into_iter();
    let processes = processes.flat_map(|processes| processes.largest.iter());
    processes
        .filter_map(|(_, process)| {
            let devices = process.devices.iter();
            let devices: Vec<_> = devices.filter(|device| device.process_type != ProcessType::Graphics).collect();
            (!devices.is_empty()).then_some((*process, devices))
        })
        .collect()
}

/// The environments, devices and processes of an environment or a user.
#[derive(Default)]
struct Holdings {
    environments: usize,
    devices: BTreeSet<DeviceIndex>,
    processes: usize,
}

/// Holdings of every environment by eid, with the username; empty while the state is unknown.
fn by_environment<'a>(host: &PublishedHost<'a>) -> BTreeMap<&'a str, (&'a str, Holdings)> {
    let snapshot = host.known_state().map(|view| view.snapshot);
    let mut holdings = BTreeMap::new();
    for environment in snapshot.into_iter().flat_map(|it| &it.environments) {
        let held = Holdings { devices: attached(environment).collect(), ..Holdings::default() };
        holdings.insert(environment.eid.as_str(), (environment.username.as_str(), held));
    }
    for (process, _) in computing(host) {
        if let Some((_, held)) = process.attribution.eid().and_then(|eid| holdings.get_mut(eid)) {
            held.processes += 1;
        }
    }
    holdings
}

/// Holdings of every user with an environment.
fn by_user<'a>(host: &PublishedHost<'a>) -> BTreeMap<&'a str, Holdings> {
    let mut users = BTreeMap::<_, Holdings>::new();
    for (username, held) in by_environment(host).into_values() {
        let user = users.entry(username).or_default();
        user.environments += 1;
        user.devices.extend(held.devices);
        user.processes += held.processes;
    }
    users
}

/// One number of each environment with series of its own.
fn of_environments(host: &PublishedHost<'_>, out: &mut Samples, number: impl Fn(&Holdings) -> Option<f64>) {
    let shown = host.view().and_then(|view| view.environments.as_ref());
    for (eid, (_, held)) in by_environment(host) {
        if shown.is_some_and(|shown| shown.contains_key(eid)) {
            out.add(&[&eid], number(&held));
        }
    }
}

/// One number of each user with series.
fn of_users(host: &PublishedHost<'_>, out: &mut Samples, number: impl Fn(&Holdings) -> Option<f64>) {
    for (username, held) in by_user(host) {
        if host.view().is_some_and(|view| view.users.contains_key(username)) {
            out.add(&[&username], number(&held));
        }
    }
}

/// Processes of a holder, if all of them are known.
fn processes_of(host: &PublishedHost<'_>, held: &Holdings) -> Option<f64> {
    let view = host.view().filter(|it| it.owned_processes().is_some())?;
    let known = view.knows_all_processes_on(held.devices.iter().copied());
    known.then_some(held.processes as f64)
}

/// All families, in 1.4.3's order.
pub const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_attached_devices_total",
        kind: Kind::Gauge,
        labels: &[],
        help: "GPUs that are attached to an environment.",
        samples: |host, out| {
            if host.known_state().is_some() {
                let held = by_environment(host).into_values().flat_map(|(_, held)| held.devices);
                out.add(&[], held.collect::<BTreeSet<_>>().len() as f64);
            }
        },
    },
    Family {
        name: "genv_device_memory_total_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory installed, in bytes, whole MiB.",
        samples: |host, out| {
            for device in gpus(host) {
                let memory = device.measurements.memory;
                out.add(&[&device.index], memory.map(|memory| whole_mib(memory.total_bytes)));
            }
        },
    },
    Family {
        name: "genv_device_memory_used_bytes",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Memory used, in bytes, whole MiB.",
        samples: |host, out| {
            for device in gpus(host) {
                let memory = device.measurements.memory;
                out.add(&[&device.index], memory.map(|memory| whole_mib(memory.used_bytes)));
            }
        },
    },
    Family {
        name: "genv_device_temperature",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Temperature, in degrees Celsius.",
        samples: |host, out| {
            for device in gpus(host) {
                out.add(&[&device.index], device.measurements.temperature_celsius);
            }
        },
    },
    Family {
        name: "genv_device_utilization",
        kind: Kind::Gauge,
        labels: &["index"],
        help: "Utilization, in percent.",
        samples: |host, out| {
            for device in gpus(host) {
                let ratio = device.measurements.utilization_ratio;
                out.add(&[&device.index], ratio.map(|ratio| (ratio * 100.0).round()));
            }
        },
    },
    Family {
        name: "genv_environments_total",
        kind: Kind::Gauge,
        labels: &[],
        help: "Active environments.",
        samples: |host, out| {
            if host.known_state().is_some() {
                out.add(&[], by_environment(host).len() as f64);
            }
        },
    },
    Family {
        name: "genv_environment_attached_devices_total",
        kind: Kind::Gauge,
        labels: &["eid"],
        help: "GPUs that are attached to the environment.",
        samples: |host, out| of_environments(host, out, |held| Some(held.devices.len() as f64)),
    },
    Family {
        name: "genv_environment_processes_total",
        kind: Kind::Gauge,
        labels: &["eid"],
        help: "Computing processes of the environment.",
        samples: |host, out| of_environments(host, out, |held| processes_of(host, held)),
    },
    Family {
        name: "genv_is_installed",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether genv is installed: 1 or 0.",
        samples: |host, out| {
            out.add(&[], host.known_state().map(|view| f64::from(view.snapshot.installed)));
        },
    },
    Family {
        name: "genv_processes_total",
        kind: Kind::Gauge,
        labels: &[],
        help: "Computing processes.",
        samples: |host, out| {
            let known = host.view().and_then(HostView::countable_processes).is_some();
            out.add(&[], known.then(|| computing(host).len() as f64));
        },
    },
    Family {
        name: "genv_process_devices_total",
        kind: Kind::Gauge,
        labels: &["eid", "pid"],
        help: "GPUs on which the process computes.",
        samples: |host, out| {
            for (process, devices) in computing(host) {
                let gpus: BTreeSet<_> = devices.iter().map(|device| device.index.whole()).collect();
                let eid = process.attribution.eid().unwrap_or_default();
                out.add(&[&eid, &process.pid], gpus.len() as f64);
            }
        },
    },
    Family {
        name: "genv_process_used_gpu_memory_bytes",
        kind: Kind::Gauge,
        labels: &["device", "eid", "pid"],
        help: "Memory of the GPU that the process uses, in bytes, whole MiB.",
        samples: |host, out| {
            for (process, devices) in computing(host) {
                let eid = process.attribution.eid().unwrap_or_default();
                for device in devices {
                    let bytes = device.memory_used_bytes.get().map(whole_mib);
                    out.add(&[&device.index.whole(), &eid, &process.pid], bytes);
                }
            }
        },
    },
    Family {
        name: "genv_users_total",
        kind: Kind::Gauge,
        labels: &[],
        help: "Users with an environment.",
        samples: |host, out| {
            if host.known_state().is_some() {
                out.add(&[], by_user(host).len() as f64);
            }
        },
    },
    Family {
        name: "genv_user_attached_devices_total",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "GPUs that are attached to the user's environments.",
        samples: |host, out| of_users(host, out, |held| Some(held.devices.len() as f64)),
    },
    Family {
        name: "genv_user_environments_total",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "Active environments of the user.",
        samples: |host, out| of_users(host, out, |held| Some(held.environments as f64)),
    },
    Family {
        name: "genv_user_processes_total",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "Computing processes in the user's environments.",
        samples: |host, out| of_users(host, out, |held| processes_of(host, held)),
    },
];
