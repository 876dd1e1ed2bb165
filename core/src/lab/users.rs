//! What each user holds and does on all hosts.

use std::collections::BTreeMap;

use super::gpu::hold;
use super::{Count, unknown_hosts};
use crate::model::{Attribution, DeviceSeconds, HostSnapshot, NOBODY};

/// The collectors whose values [`users`] counts.
pub const USER_COLLECTORS: [&str; 3] = ["gpu", "processes", "state"];

/// What one user holds now on all hosts, and did since each collection began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserTotals {
    /// GPUs that the user's environments hold.
    pub held: Count,
    /// Those of them that all of the user's environments on them leave idle, by [`Hold::is_idle`](super::Hold::is_idle).
    pub idle: Count,
    /// The user's processes that use a GPU.
    pub processes: Count,
    /// Those of them that are in no environment.
    pub outside: Count,
    /// The user's processes that wait for GPUs.
    pub waiting: Count,
    /// GPU time by kind of use; absent if none is known.
    pub seconds: Option<DeviceSeconds>,
    /// Energy caused by the user; absent if no driver reported energy or power.
    pub energy_joules: Option<f64>,
}

impl UserTotals {
    /// The held GPU time in seconds; absent if none is known.
    pub fn held_seconds(&self) -> Option<f64> {
        self.seconds.map(|it| it.busy + it.idle + it.unmeasured)
    }

    /// The idle part of the held GPU time in seconds; absent without measured time.
    pub fn idle_seconds(&self) -> Option<f64> {
        let DeviceSeconds { busy, idle, unmeasured, .. } = self.seconds?;
        (busy + idle > 0.0 || unmeasured == 0.0).then_some(idle)
    }

    /// The part of the held GPU time in which the user's processes reached the busy threshold, 0–1; absent without
    /// measured time.
    pub fn busy_ratio(&self) -> Option<f64> {
        let DeviceSeconds { busy, idle, .. } = self.seconds?;
        (busy + idle > 0.0).then(|| busy / (busy + idle))
    }
}

/// The users of all hosts, by name.
pub fn users(hosts: &[HostSnapshot]) -> BTreeMap<&str, UserTotals> {
    let mut users = BTreeMap::<&str, UserTotals>::new();
    for snapshot in hosts.iter().filter_map(|host| host.snapshot.as_deref()) {
        for environment in &snapshot.environments {
            users.entry(&environment.username).or_default();
        }
        for device in snapshot.devices.iter().filter(|it| it.index.mig.is_none()) {
            let mut holds = BTreeMap::<&str, Vec<Option<bool>>>::new();
            for attachment in device.attachments.iter() {
                let hold = hold(snapshot, device, attachment);
                if let Some(environment) = hold.environment {
                    holds.entry(&environment.username).or_default().push(hold.is_idle);
                }
            }
            for (username, are_idle) in holds {
                let user = users.entry(username).or_default();
                user.held.known += 1;
                user.idle.known += usize::from(are_idle.iter().all(|it| *it == Some(true)));
                user.idle.more |= are_idle.contains(&None) && !are_idle.contains(&Some(false));
            }
        }
        let owners = snapshot.owners();
        for process in &snapshot.processes {
            if let Some(username) = owners.of_process(process) {
                let user = users.entry(username).or_default();
                user.processes.known += 1;
                user.outside.known += usize::from(matches!(process.attribution, Attribution::Outside { .. }));
            }
        }
        for waiting in &snapshot.queue {
            users.entry(&waiting.username).or_default().waiting.known += 1;
        }
        for usage in snapshot.counters.user_device_use.iter().filter(|it| it.username != NOBODY) {
            let user = users.entry(&usage.username).or_default();
            if let Some(DeviceSeconds { busy, idle, unmeasured, outside }) = usage.device_seconds {
                let sum = user.seconds.get_or_insert_default();
                sum.busy += busy;
                sum.idle += idle;
                sum.unmeasured += unmeasured;
                sum.outside += outside;
            }
            if let Some(joules) = usage.energy_joules {
                *user.energy_joules.get_or_insert_default() += joules;
            }
        }
    }
    if unknown_hosts(hosts, &USER_COLLECTORS) > 0 {
        for UserTotals { held, idle, processes, outside, waiting, .. } in users.values_mut() {
            for count in [held, idle, processes, outside, waiting] {
                count.more = true;
            }
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::lab::tests::{environment, held_by, host, on, outdate, snapshot};

    /// Alice leaves GPU 0 idle, and eve uses GPU 1 outside and waits.
    fn lab() -> [HostSnapshot; 2] {
        let unused =
            json!([{"index": "0", "attached": true, "utilization_ratio": 0.0, "last_active_timestamp_seconds": 1.0}]);
        let environments = json!([environment("1", "alice", unused)]);
        let mut one = host(json!([held_by(&["1"]), {}]), environments, json!([on("1", "outside")]));
        let counters = json!({"user_device_use": [
            {"username": "alice", "index": "0", "device_seconds": {"busy": 30.0, "idle": 90.0}, "energy_joules": 5.0},
            {"username": NOBODY, "index": "0", "energy_joules": 7.0},
        ]});
        snapshot(&mut one).counters = serde_json::from_value(counters).unwrap();
        snapshot(&mut one).queue = serde_json::from_value(json!([{"pid": 9, "username": "eve"}])).unwrap();
        [one.clone(), one]
    }

    fn counts(hosts: &[HostSnapshot], username: &str) -> String {
        let it = &users(hosts)[username];
        [it.held, it.idle, it.processes, it.outside, it.waiting].map(|it| it.to_string()).join(", ")
    }

    #[test]
    fn totals_are_of_all_hosts() {
        let hosts = lab();
        assert_eq!(users(&hosts).keys().copied().collect::<Vec<_>>(), ["alice", "eve"]);
        assert_eq!(counts(&hosts, "alice"), "2, 2, 0, 0, 0");
        assert_eq!(counts(&hosts, "eve"), "0, 0, 2, 2, 2");
        let users = users(&hosts);
        let (alice, eve) = (&users["alice"], &users["eve"]);
        assert_eq!((alice.held_seconds(), alice.idle_seconds()), (Some(240.0), Some(180.0)));
        assert_eq!((alice.busy_ratio(), alice.energy_joules), (Some(0.25), Some(10.0)));
        assert_eq!((eve.seconds, eve.held_seconds(), eve.idle_seconds(), eve.busy_ratio()), (None, None, None, None));
    }

    #[test]
    fn there_may_be_more_while_values_of_a_host_are_unknown() {
        for outdated in USER_COLLECTORS {
            let mut hosts = lab();
            outdate(&mut hosts[1], outdated);
            let idle = if outdated == "gpu" { 1 } else { 2 };
            let expected = format!("at least 2, at least {idle}, ?, ?, ?");
            assert_eq!(counts(&hosts, "alice"), expected, "{outdated}");
        }
        let mut hosts = lab();
        hosts[1].up = false;
        assert_eq!(counts(&hosts, "eve"), "?, ?, at least 2, at least 2, at least 2");
    }

    #[test]
    fn a_gpu_of_unknown_use_may_be_idle() {
        let mut hosts = lab();
        let environment = Arc::make_mut(&mut snapshot(&mut hosts[1]).environments[0]);
        environment.devices[0].utilization_ratio = None.into();
        assert_eq!(counts(&hosts, "alice"), "2, at least 1, 0, 0, 0");
    }
}
