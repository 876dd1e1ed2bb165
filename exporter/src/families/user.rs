//! Families about users: what they hold and use, in environments and outside.

use genv_core::model::UserDeviceUse;

use super::{Family, HostFamily, Kind};
use crate::host::PublishedHost;

/// The use of each device by each user.
fn device_use<'a>(host: &PublishedHost<'a>) -> &'a [UserDeviceUse] {
    host.counters(|counters| &counters.user_device_use)
}

pub(super) const FAMILIES: &[HostFamily] = &[
    Family {
        name: "genv_users",
        kind: Kind::Gauge,
        labels: &[],
        help: "Users who have an environment or a process that uses a device; absent if no GPU tells all of its processes.",
        samples: |host, out| {
            out.add(&[], host.view().and_then(|view| view.users_number).map(|users| users as f64));
        },
    },
    Family {
        name: "genv_user_environments",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "Active environments of the user.",
        samples: |host, out| {
            let view = host.known_state();
            for (name, user) in view.iter().flat_map(|view| &view.users) {
                out.add(&[name], user.environments as f64);
            }
        },
    },
    Family {
        name: "genv_user_devices",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "GPUs that are attached to at least one of the user's environments.",
        samples: |host, out| {
            let view = host.known_state();
            for (name, user) in view.iter().flat_map(|view| &view.users) {
                out.add(&[name], user.devices.len() as f64);
            }
        },
    },
    Family {
        name: "genv_user_processes",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "Processes of the user that use a device, inside and outside environments; absent if a GPU that the user holds does not tell all of its processes, or no GPU does.",
        samples: |host, out| {
            let view = host.view().filter(|view| view.owned_processes().is_some());
            for (name, user) in view.iter().flat_map(|view| &view.users) {
                let held = user.devices.iter().copied();
                let known = view.is_some_and(|view| view.knows_all_processes_on(held));
                out.add(&[name], known.then_some(user.processes as f64));
            }
        },
    },
    Family {
        name: "genv_user_memory_used_bytes",
        kind: Kind::Gauge,
        labels: &["username", "index"],
        help: "Memory of the device that the user's processes use, inside and outside environments, in bytes.",
        samples: |host, out| {
            for (name, user) in host.view().iter().flat_map(|view| &view.users) {
                for (index, bytes) in user.memory_used_bytes.iter() {
                    out.add(&[name, &index], *bytes);
                }
            }
        },
    },
    Family {
        name: "genv_user_device_seconds_total",
        kind: Kind::Counter,
        labels: &["username", "index", "state"],
        help: "Seconds for which the user held the GPU, each counted by the share held, while the user's processes kept it busy, left it idle or could not be measured, and seconds of use outside environments.",
        samples: |host, out| {
            for usage in device_use(host) {
                let Some(seconds) = usage.device_seconds else {
                    continue;
                };
                for (state, seconds) in [
                    ("busy", seconds.busy),
                    ("idle", seconds.idle),
                    ("unmeasured", seconds.unmeasured),
                    ("outside", seconds.outside),
                ] {
                    out.add(&[&usage.username, &usage.index, &state], seconds);
                }
            }
        },
    },
    Family {
        name: "genv_user_utilized_device_seconds_total",
        kind: Kind::Counter,
        labels: &["username", "index"],
        help: "Seconds of the GPU that the user's processes utilized, at full utilization; all users of a GPU together get at most one a second.",
        samples: |host, out| {
            for usage in device_use(host) {
                out.add(&[&usage.username, &usage.index], usage.utilized_device_seconds);
            }
        },
    },
    Family {
        name: "genv_user_energy_joules_total",
        kind: Kind::Counter,
        labels: &["username", "index"],
        help: "Energy of the GPU that the user caused, in joules; username (none) carries what nobody caused.",
        samples: |host, out| {
            for usage in device_use(host) {
                out.add(&[&usage.username, &usage.index], usage.energy_joules);
            }
        },
    },
    Family {
        name: "genv_user_xid_errors_total",
        kind: Kind::Counter,
        labels: &["username", "index", "xid"],
        help: "Errors that the driver reported with the XID code on a GPU that the user held; each counts for every holder.",
        samples: |host, out| {
            for xid in host.counters(|counters| &counters.user_xid_errors) {
                out.add(&[&xid.username, &xid.index, &xid.xid], xid.errors as f64);
            }
        },
    },
];
