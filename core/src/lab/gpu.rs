//! The state of each GPU, and who holds it.

use std::collections::{BTreeMap, BTreeSet};

use super::is_current;
use crate::model::{
    Attachment, Attribution, Device, Environment, EnvironmentDevice, HostSnapshot, Process, ProcessDevice, Snapshot,
};

/// From this time without use on, a held GPU is idle, in seconds; as on the dashboards.
const IDLE_SECONDS: f64 = 600.0;

/// Whether a GPU can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuState {
    /// It is up, not held, and used by no process.
    Free,
    /// It is not held, and a process uses it.
    Used,
    /// It is held.
    Held,
    /// It is up, and its holders or its processes are not known.
    Unknown,
    /// It is in MIG mode without MIG devices: no program runs on it.
    Unsplit,
    /// It does not answer.
    Down,
}

impl GpuState {
    /// The word for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Used => "used, not held",
            Self::Held => "held",
            Self::Unknown => "not known",
            Self::Unsplit => "MIG, not split",
            Self::Down => "down",
        }
    }

    /// The state of a whole GPU of a snapshot.
    pub fn of(snapshot: &Snapshot, device: &Device) -> Self {
        if !device.up {
            return Self::Down;
        }
        if device.mig_unsplit {
            return Self::Unsplit;
        }
        if !device.attachments.is_empty() {
            return Self::Held;
        }
        let gpu = device.index.gpu;
        if !(is_current(snapshot, "gpu") && snapshot.collectors.contains_key("processes")) {
            return Self::Unknown;
        }
        if snapshot.processes.iter().any(|process| process.devices.iter().any(|it| it.index.gpu == gpu)) {
            return Self::Used;
        }
        // One sample with use that no process explains is enough.
        match is_current(snapshot, "state") && snapshot.use_measured(gpu) {
            true => Self::Free,
            false => Self::Unknown,
        }
    }

    /// Whether the GPU is available; absent if that is not known.
    pub const fn available(self) -> Option<bool> {
        match self {
            Self::Free => Some(true),
            Self::Unknown => None,
            Self::Used | Self::Held | Self::Unsplit | Self::Down => Some(false),
        }
    }
}

/// When the processes of a hold last used its GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activity {
    /// In the last sample its utilization reached the busy threshold.
    Busy,
    /// Its utilization last reached the busy threshold so many seconds ago.
    UnusedFor(f64),
    /// Its utilization was measured for at least so many seconds of the hold, and did not reach the busy threshold.
    UnusedForAtLeast(f64),
    /// Its utilization is not measured.
    Unknown,
}

impl Activity {
    /// The activity of several together: the latest possible use counts, and before an unknown one only a use in the last
    /// sample. Absent without any.
    pub fn of_all(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let rank = |it: &Self| match *it {
            Self::Busy => (0, 0.0),
            Self::Unknown => (1, 0.0),
            Self::UnusedFor(seconds) | Self::UnusedForAtLeast(seconds) => (2, seconds),
        };
        all.into_iter().min_by(|left, right| {
            let (left, right) = (rank(left), rank(right));
            left.0.cmp(&right.0).then(left.1.total_cmp(&right.1))
        })
    }

    /// Whether the GPU was not used for so long that it is idle.
    pub fn is_idle(self) -> bool {
        matches!(self, Self::UnusedFor(seconds) | Self::UnusedForAtLeast(seconds) if seconds >= IDLE_SECONDS)
    }
}

/// The hold of a GPU by an environment.
#[derive(Clone, Copy, Debug)]
pub struct Hold<'a> {
    /// Its entry in the state.
    pub attachment: &'a Attachment,
    /// The environment; absent if its record is left out.
    pub environment: Option<&'a Environment>,
    /// The use of the GPU by the environment.
    pub usage: Option<&'a EnvironmentDevice>,
    /// When the environment last used the GPU.
    pub activity: Activity,
    /// Whether it leaves the GPU idle; absent if too little of the hold was measured.
    pub is_idle: Option<bool>,
}

impl Hold<'_> {
    /// The user; absent if it is not known.
    pub fn username(&self) -> Option<&str> {
        self.environment.map(|it| it.username.as_str())
    }

    /// The name that the user gave the environment, else its id.
    pub fn name(&self) -> &str {
        let name = self.environment.and_then(|it| it.name.as_deref());
        name.unwrap_or(&self.attachment.eid)
    }
}

/// A whole GPU.
#[derive(Clone, Debug)]
pub struct Gpu<'a> {
    /// The GPU.
    pub device: &'a Device,
    /// Its MIG devices that are up.
    pub parts: Vec<&'a Device>,
    /// Whether it can be had.
    pub state: GpuState,
    /// The holds of it.
    pub holds: Vec<Hold<'a>>,
    /// The processes on it and on its MIG devices, with each use.
    pub processes: Vec<(&'a Process, &'a ProcessDevice)>,
    /// Whether `processes` has all of them.
    pub processes_known: bool,
}

impl Gpu<'_> {
    /// The number of its processes that are in no environment.
    pub fn outside(&self) -> usize {
        self.count(|it| matches!(it, Attribution::Outside { .. }))
    }

    /// The number of its processes whose environment is not known.
    pub fn unknown(&self) -> usize {
        self.count(|it| matches!(it, Attribution::Unknown { .. }))
    }

    fn count(&self, is_meant: impl Fn(&Attribution) -> bool) -> usize {
        let meant = self.processes.iter().filter(|(process, _)| is_meant(&process.attribution));
        meant.map(|(process, _)| process.pid).collect::<BTreeSet<_>>().len()
    }

    /// When one of its holders last used it; absent if it is not held.
    pub fn activity(&self) -> Option<Activity> {
        Activity::of_all(self.holds.iter().map(|hold| hold.activity))
    }
}

/// The whole GPUs of a snapshot, in the order of the indices.
pub fn gpus(snapshot: &Snapshot) -> Vec<Gpu<'_>> {
    let mut processes = BTreeMap::<u32, Vec<_>>::new();
    for process in &snapshot.processes {
        for usage in &process.devices {
            processes.entry(usage.index.gpu).or_default().push((&**process, usage));
        }
    }
    let whole = snapshot.devices.iter().filter(|device| device.index.mig.is_none());
    let gpu = |device| Gpu {
        device,
        parts: snapshot.devices.iter().filter(|it| it.index.mig.is_some() && is_part(it, device) && it.up).collect(),
        state: GpuState::of(snapshot, device),
        holds: device.attachments.iter().map(|attachment| hold(snapshot, device, attachment)).collect(),
        processes: processes.remove(&{ device.index.gpu }).unwrap_or_default(),
        processes_known: snapshot.processes_known(device.index.gpu),
    };
    whole.map(gpu).collect()
}

/// The whole GPUs of a host. While the host delivers no snapshot, the state of its free GPUs is unknown.
pub fn gpus_of(host: &HostSnapshot) -> Vec<Gpu<'_>> {
    let mut gpus = host.snapshot.as_deref().map(gpus).unwrap_or_default();
    for gpu in gpus.iter_mut().filter(|gpu| !host.up && gpu.state == GpuState::Free) {
        gpu.state = GpuState::Unknown;
    }
    gpus
}

fn is_part(part: &Device, of: &Device) -> bool {
    part.index.whole() == of.index
}

/// The hold of a device by this attachment.
pub(super) fn hold<'a>(snapshot: &'a Snapshot, device: &Device, attachment: &'a Attachment) -> Hold<'a> {
    let environment = snapshot.environment(&attachment.eid);
    let usage = environment.and_then(|it| it.devices.iter().find(|usage| usage.index == device.index));
    let sampled = snapshot.collectors.get("gpu").and_then(|it| it.timestamp_seconds);
    // A use that the driver does not report now is not known, whatever it reported last.
    let is_measured = device.up && is_current(snapshot, "gpu");
    let measured = usage.filter(|it| is_measured && it.utilization_ratio.get().is_some());
    let begins = [attachment.attached_timestamp_seconds, environment.and_then(|it| it.created_timestamp_seconds)];
    let since = begins.into_iter().flatten().max_by(f64::total_cmp);
    let held = since.map(|since| snapshot.timestamp_seconds - since);
    let activity = match measured.map(|it| it.last_active_timestamp_seconds.get()) {
        None => Activity::Unknown,
        Some(None) => Activity::UnusedForAtLeast(measured_seconds(snapshot, device, environment, held)),
        Some(Some(last)) if sampled.is_some_and(|sampled| last >= sampled) => Activity::Busy,
        Some(Some(last)) => Activity::UnusedFor((snapshot.timestamp_seconds - last).max(0.0)),
    };
    let is_idle = match activity {
        _ if activity.is_idle() => Some(true),
        Activity::Busy | Activity::UnusedFor(_) => Some(false),
        Activity::UnusedForAtLeast(_) | Activity::Unknown => held.filter(|held| *held < IDLE_SECONDS).map(|_| false),
    };
    Hold { attachment, environment, usage, activity, is_idle }
}

/// The time for which a hold without a use was measured, in seconds, or less. Its user's account of the device counts time by
/// the share of the device, and also has the time of earlier holds.
fn measured_seconds(snapshot: &Snapshot, device: &Device, environment: Option<&Environment>, held: Option<f64>) -> f64 {
    let mut accounts = snapshot.counters.user_device_use.iter();
    let username = environment.map(|it| it.username.as_str());
    let account = accounts.find(|it| it.index == device.index && Some(it.username.as_str()) == username);
    let account = account.and_then(|it| it.device_seconds).unwrap_or_default();
    account.idle.min(held.unwrap_or_default() - account.unmeasured).max(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::lab::tests::{environment, held_by, host, on, outdate, snapshot};

    #[test]
    fn a_gpu_is_free_only_if_its_holders_and_its_processes_are_known() {
        let states = |host: HostSnapshot| -> Vec<GpuState> {
            gpus(host.snapshot.as_ref().unwrap()).iter().map(|gpu| gpu.state).collect()
        };
        let all = || {
            let devices = json!([{}, held_by(&["1"]), {}, {"processes_measured": false}, {"use_unexplained": true},
                {"mig_unsplit": true}, {"up": false}]);
            host(devices, json!([]), json!([on("2", "outside")]))
        };
        let expected = [
            GpuState::Free,
            GpuState::Held,
            GpuState::Used,
            GpuState::Unknown,
            GpuState::Unknown,
            GpuState::Unsplit,
            GpuState::Down,
        ];
        assert_eq!(states(all()), expected);
        for (collector, used) in [("gpu", GpuState::Unknown), ("state", GpuState::Used)] {
            let mut host = all();
            outdate(&mut host, collector);
            assert_eq!(states(host)[..3], [GpuState::Unknown, GpuState::Held, used], "{collector}");
        }
    }

    #[test]
    fn a_gpu_is_idle_for_the_time_since_its_last_use() {
        let usage = |last: Value, ratio: Value| json!([{"index": "0", "attached": true, "utilization_ratio": ratio, "last_active_timestamp_seconds": last}]);
        let (idle_use, busy) = (usage(json!(400.0), json!(0.0)), usage(json!(990.0), json!(0.5)));
        let (not_seen, unmeasured) = (usage(Value::Null, json!(0.0)), usage(Value::Null, Value::Null));
        let paused = usage(json!(401.0), json!(0.0));
        for (first, second, expected, is_idle) in [
            (&idle_use, None, Activity::UnusedFor(600.0), true),
            (&paused, None, Activity::UnusedFor(599.0), false),
            (&busy, None, Activity::Busy, false),
            (&not_seen, None, Activity::UnusedForAtLeast(0.0), false),
            (&unmeasured, None, Activity::Unknown, false),
            (&usage(json!(400.0), Value::Null), None, Activity::Unknown, false),
            (&idle_use, Some(&busy), Activity::Busy, false),
            (&idle_use, Some(&unmeasured), Activity::Unknown, false),
            (&idle_use, Some(&paused), Activity::UnusedFor(599.0), false),
            (&idle_use, Some(&not_seen), Activity::UnusedForAtLeast(0.0), false),
        ] {
            let mut environments = vec![environment("1", "alice", first.clone())];
            environments.extend(second.map(|it| environment("2", "bob", it.clone())));
            let eids = ["1", "2"];
            let host = host(json!([held_by(&eids[..environments.len()])]), json!(environments), json!([]));
            let activity = gpus(host.snapshot.as_ref().unwrap())[0].activity().unwrap();
            assert_eq!((activity, activity.is_idle()), (expected, is_idle), "{first} {second:?}");
        }
        let mut host = host(json!([held_by(&["1"])]), json!([environment("1", "alice", busy)]), json!([]));
        outdate(&mut host, "gpu");
        assert_eq!(gpus(snapshot(&mut host))[0].holds[0].activity, Activity::Unknown);
    }

    #[test]
    fn without_a_seen_use_a_hold_is_idle_for_the_measured_part_of_its_time() {
        let usage = json!([{"index": "0", "attached": true, "utilization_ratio": 0.0}]);
        for (attached, account, expected, is_idle) in [
            (json!(100.0), Some([700.0, 0.0]), 700.0, Some(true)),
            // An earlier hold was idle too.
            (json!(400.0), Some([700.0, 0.0]), 600.0, Some(true)),
            (json!(400.0), Some([700.0, 50.0]), 550.0, None),
            (json!(401.0), Some([700.0, 50.0]), 549.0, Some(false)),
            (json!(1001.0), Some([700.0, 0.0]), 0.0, Some(false)),
            (json!(100.0), None, 0.0, None),
            (Value::Null, Some([700.0, 0.0]), 0.0, None),
        ] {
            let mut device = held_by(&["1"]);
            device["attachments"][0]["attached_timestamp_seconds"] = attached.clone();
            let mut host = host(json!([device]), json!([environment("1", "alice", usage.clone())]), json!([]));
            let accounts = account.map(|[idle, unmeasured]| {
                json!([{"username": "eve", "index": "0", "device_seconds": {"idle": 9.0}},
                    {"username": "alice", "index": "1", "device_seconds": {"idle": 9.0}},
                    {"username": "alice", "index": "0", "device_seconds": {"idle": idle, "unmeasured": unmeasured}}])
            });
            let accounts = accounts.unwrap_or_else(|| json!([]));
            snapshot(&mut host).counters.user_device_use = serde_json::from_value(accounts).unwrap();
            let hold = gpus(snapshot(&mut host))[0].holds[0];
            assert_eq!((hold.activity, hold.is_idle), (Activity::UnusedForAtLeast(expected), is_idle), "{attached}");
        }
    }

    #[test]
    fn the_dashboards_call_a_gpu_idle_after_the_same_time() {
        let condition = format!(">= bool {IDLE_SECONDS}");
        for dashboard in [
            include_str!("../../../grafana/dashboards/overview.json"),
            include_str!("../../../grafana/dashboards/host.json"),
        ] {
            assert!(dashboard.contains(&condition));
        }
    }
}
