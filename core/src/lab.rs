//! The hosts of a publication as people look at them: the state of each GPU and its holders, totals of models and users,
//! and what is broken. Pages and terminals show these values; the metrics have families of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    Attachment, Attribution, Device, DeviceIndex, DeviceSeconds, Environment, EnvironmentDevice, HostSnapshot, NOBODY,
    Process, ProcessDevice, Snapshot,
};

/// How long an XID error is shown among the [`troubles`], in seconds.
const XID_SHOWN_SECONDS: f64 = 3600.0;

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

/// When a holder last used a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activity {
    /// In the last sample its utilization reached the busy threshold.
    Busy,
    /// Its utilization last reached the busy threshold so many seconds ago.
    IdleFor(f64),
    /// Its utilization is measured, and did not reach the busy threshold since the collection or the hold began.
    NotSeen,
    /// Its utilization is not measured.
    Unknown,
}

impl Activity {
    /// The activity of several together: one use is use, and what is not known comes before any rest; the shortest rest
    /// counts. Absent without any.
    pub fn of_all(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let rank = |it: &Self| match it {
            Self::Busy => (0, 0.0),
            Self::Unknown => (1, 0.0),
            Self::IdleFor(seconds) => (2, *seconds),
            Self::NotSeen => (3, 0.0),
        };
        all.into_iter().min_by(|left, right| {
            let (left, right) = (rank(left), rank(right));
            left.0.cmp(&right.0).then(left.1.total_cmp(&right.1))
        })
    }
}

/// An environment that holds a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The hold.
    pub attachment: &'a Attachment,
    /// The environment; absent if its record is damaged.
    pub environment: Option<&'a Environment>,
    /// The use of the GPU by the environment.
    pub usage: Option<&'a EnvironmentDevice>,
    /// When the environment last used the GPU.
    pub activity: Activity,
}

impl Holder<'_> {
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
    /// The environments that hold it.
    pub holders: Vec<Holder<'a>>,
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

    /// When one of its holders last used it; absent if it is not held. It is not known if that of a holder is not, and no
    /// other holder uses it now.
    pub fn activity(&self) -> Option<Activity> {
        Activity::of_all(self.holders.iter().map(|holder| holder.activity))
    }

    /// The shortest time for which a holder has not used it, in seconds; absent if [`Self::activity`] is another one.
    pub fn idle_seconds(&self) -> Option<f64> {
        match self.activity() {
            Some(Activity::IdleFor(seconds)) => Some(seconds),
            _ => None,
        }
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
        holders: device.attachments.iter().map(|attachment| holder(snapshot, device, attachment)).collect(),
        processes: processes.remove(&device.index.gpu).unwrap_or_default(),
        processes_known: snapshot.processes_known(device.index.gpu),
    };
    whole.map(gpu).collect()
}

/// The whole GPUs of a host. While the host delivers no snapshot, none of them is known to be free still.
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

fn holder<'a>(snapshot: &'a Snapshot, device: &Device, attachment: &'a Attachment) -> Holder<'a> {
    let environment = snapshot.environment(&attachment.eid);
    let usage = environment.and_then(|it| it.devices.iter().find(|usage| usage.index == device.index));
    let sampled = snapshot.collectors.get("gpu").and_then(|it| it.timestamp_seconds);
    let activity = match usage {
        // A use that the driver does not report now is not known, whatever it reported last.
        _ if !device.up || !is_current(snapshot, "gpu") => Activity::Unknown,
        None | Some(EnvironmentDevice { utilization_ratio: None, .. }) => Activity::Unknown,
        Some(EnvironmentDevice { last_active_timestamp_seconds: None, .. }) => Activity::NotSeen,
        Some(EnvironmentDevice { last_active_timestamp_seconds: Some(last), .. }) => match sampled {
            Some(sampled) if *last >= sampled => Activity::Busy,
            _ => Activity::IdleFor((snapshot.timestamp_seconds - last).max(0.0)),
        },
    };
    Holder { attachment, environment, usage, activity }
}

/// The numbers of GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// All of them.
    pub all: usize,
    /// Free ones.
    pub free: usize,
    /// Those whose state is not known.
    pub unknown: usize,
    /// Those that do not answer, or run no program.
    pub unusable: usize,
}

/// The GPUs of all hosts by [`short_model`]; `?` for an unknown model.
pub fn models(hosts: &[HostSnapshot]) -> BTreeMap<String, ModelTotals> {
    let mut models = BTreeMap::<String, ModelTotals>::new();
    for (host, snapshot) in hosts.iter().filter_map(|host| Some((host, host.snapshot.as_deref()?))) {
        for device in snapshot.devices.iter().filter(|it| it.index.mig.is_none()) {
            let totals = models.entry(short_model(device.name.as_deref().unwrap_or("?"))).or_default();
            totals.all += 1;
            match GpuState::of(snapshot, device) {
                GpuState::Free if host.up => totals.free += 1,
                GpuState::Free | GpuState::Unknown => totals.unknown += 1,
                GpuState::Unsplit | GpuState::Down => totals.unusable += 1,
                GpuState::Used | GpuState::Held => {}
            }
        }
    }
    models
}

/// A model without vendor, form factor and kind of memory: `A100 80GB` for `NVIDIA A100-SXM4-80GB`.
pub fn short_model(name: &str) -> String {
    const LEFT_OUT: [&str; 6] = ["NVIDIA", "TESLA", "GEFORCE", "GENERATION", "PCIE", "GRAPHICS"];
    let words = name.split([' ', '-']).filter(|word| {
        let word = word.to_ascii_uppercase();
        !LEFT_OUT.contains(&word.as_str()) && !["SXM", "HBM"].iter().any(|start| word.starts_with(start))
    });
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if words.is_empty() { name.to_owned() } else { words.join(" ") }
}

/// What one user holds now on all hosts, and did since each collection began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserTotals {
    /// GPUs that the user's environments hold.
    pub held: usize,
    /// Those of them for which [`Activity::IdleFor`] or [`Activity::NotSeen`] is known of all environments of the user.
    pub idle: usize,
    /// Those of them for which the use by an environment of the user is not known, and none of them uses it now.
    pub use_unknown: usize,
    /// The user's processes that use a GPU.
    pub processes: usize,
    /// Those of them that are in no environment.
    pub outside: usize,
    /// The user's processes that wait for GPUs.
    pub waiting: usize,
    /// GPU time by kind of use.
    pub seconds: DeviceSeconds,
    /// Utilization of the user's processes × seconds; absent if no driver reported the utilization of a process.
    pub utilized_seconds: Option<f64>,
    /// Energy caused by the user; absent if no driver reported energy or power.
    pub energy_joules: Option<f64>,
}

impl UserTotals {
    /// The number of idle GPUs: `2 + ?` if others may be idle too, also where so many hosts do not tell all.
    pub fn idle_words(&self, untold: usize) -> String {
        match (self.idle, self.use_unknown + untold) {
            (idle, 0) => idle.to_string(),
            (0, _) => "?".to_owned(),
            (idle, _) => format!("{idle} + ?"),
        }
    }

    /// The part of the held GPU time in which the user's processes reached the busy threshold, 0–1; absent without
    /// measured time.
    pub fn busy_ratio(&self) -> Option<f64> {
        let DeviceSeconds { busy, idle, .. } = self.seconds;
        (busy + idle > 0.0).then(|| busy / (busy + idle))
    }
}

/// The users of all hosts, by name.
pub fn users(hosts: &[HostSnapshot]) -> BTreeMap<&str, UserTotals> {
    let mut users = BTreeMap::<&str, UserTotals>::new();
    for snapshot in snapshots(hosts) {
        for environment in &snapshot.environments {
            users.entry(&environment.username).or_default();
        }
        for device in snapshot.devices.iter().filter(|it| it.index.mig.is_none()) {
            let mut holders = BTreeMap::<&str, Vec<Activity>>::new();
            for attachment in &device.attachments {
                let holder = holder(snapshot, device, attachment);
                let Some(environment) = holder.environment else {
                    continue;
                };
                holders.entry(&environment.username).or_default().push(holder.activity);
            }
            for (username, activities) in holders {
                let user = users.entry(username).or_default();
                user.held += 1;
                match Activity::of_all(activities) {
                    Some(Activity::IdleFor(_) | Activity::NotSeen) => user.idle += 1,
                    Some(Activity::Unknown) => user.use_unknown += 1,
                    Some(Activity::Busy) | None => {}
                }
            }
        }
        let owners = snapshot.owners();
        for process in &snapshot.processes {
            if let Some(username) = owners.of_process(process) {
                let user = users.entry(username).or_default();
                user.processes += 1;
                user.outside += usize::from(matches!(process.attribution, Attribution::Outside { .. }));
            }
        }
        for waiting in &snapshot.queue {
            users.entry(&waiting.username).or_default().waiting += 1;
        }
        for usage in snapshot.counters.user_device_use.iter().filter(|it| it.username != NOBODY) {
            let user = users.entry(&usage.username).or_default();
            if let Some(DeviceSeconds { busy, idle, unmeasured, outside }) = usage.device_seconds {
                user.seconds.busy += busy;
                user.seconds.idle += idle;
                user.seconds.unmeasured += unmeasured;
                user.seconds.outside += outside;
            }
            add(&mut user.utilized_seconds, usage.utilized_device_seconds);
            add(&mut user.energy_joules, usage.energy_joules);
        }
    }
    users
}

fn add(sum: &mut Option<f64>, value: Option<f64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default() + value);
    }
}

/// A kind of [`Trouble`]; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// A host delivers no snapshot.
    HostDown,
    /// A GPU does not answer.
    GpuDown,
    /// A GPU had an XID error with this code.
    Xid(u64),
    /// A collector fails, or withholds values.
    Collector,
    /// A GPU is in MIG mode without MIG devices.
    Unsplit,
    /// A GPU shows utilization that nothing explains.
    Contradictory,
}

/// A fault that people should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble<'a> {
    /// What kind of fault it is.
    pub kind: TroubleKind,
    /// The host.
    pub hostname: &'a str,
    /// The device; absent if the fault is one of the host.
    pub device: Option<DeviceIndex>,
    /// What is wrong. Errors of drivers and hosts are in it as they are: escape it.
    pub words: String,
}

/// What is broken on these hosts: the worst first, XID errors by their codes, then in the order of hosts and devices.
pub fn troubles(hosts: &[HostSnapshot]) -> Vec<Trouble<'_>> {
    let mut troubles = Vec::new();
    for host in hosts {
        let hostname = host.hostname.as_str();
        let mut of = |kind, device, words| troubles.push(Trouble { kind, hostname, device, words });
        if !host.up {
            let why = host.ssh.as_ref().and_then(|it| it.error.as_deref());
            let words = match why {
                Some(why) => format!("delivers no snapshot: {why}"),
                None => "delivers no snapshot".to_owned(),
            };
            of(TroubleKind::HostDown, None, words);
        }
        let Some(snapshot) = &host.snapshot else {
            continue;
        };
        for (name, status) in &snapshot.collectors {
            if let Some(error) = &status.error {
                of(TroubleKind::Collector, None, format!("collector {name}: {error}"));
            }
        }
        for device in &snapshot.devices {
            let mut has = |kind, words: &str| of(kind, Some(device.index), words.to_owned());
            if !device.up && device.index.mig.is_none() {
                has(TroubleKind::GpuDown, "does not answer");
            }
            if device.mig_unsplit {
                has(TroubleKind::Unsplit, "is in MIG mode without MIG devices: no program runs on it");
            }
            if device.contradictory {
                has(TroubleKind::Contradictory, "shows utilization without a process and without memory in use");
            }
        }
        for xid in &snapshot.counters.device_xid_errors {
            let last = xid.last_timestamp_seconds;
            if last.is_some_and(|last| snapshot.timestamp_seconds - last < XID_SHOWN_SECONDS) {
                let words = format!("had the error XID {} within the last hour", xid.xid);
                of(TroubleKind::Xid(xid.xid), Some(xid.index), words);
            }
        }
    }
    troubles.sort_by_key(|it| it.kind);
    troubles
}

fn snapshots(hosts: &[HostSnapshot]) -> impl Iterator<Item = &Snapshot> {
    hosts.iter().filter_map(|host| host.snapshot.as_deref())
}

/// Whether a host tells what these collectors read.
pub fn tells(host: &HostSnapshot, collectors: &[&str]) -> bool {
    let snapshot = host.snapshot.as_deref();
    snapshot.is_some_and(|snapshot| collectors.iter().all(|collector| is_current(snapshot, collector)))
}

fn is_current(snapshot: &Snapshot, collector: &str) -> bool {
    snapshot.collectors.get(collector).is_some_and(|status| status.current)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// A host at time 1000, sampled at 990, with these devices, environments and processes. Each device is up and tells its
    /// processes, unless its JSON says otherwise.
    fn host(devices: Value, environments: Value, processes: Value) -> HostSnapshot {
        let current = json!({"success": true, "current": true, "timestamp_seconds": 990.0});
        let devices = devices.as_array().unwrap().iter().enumerate().map(|(index, device)| {
            let mut all = json!({"index": index.to_string(), "uuid": "GPU-1", "up": true, "processes_measured": true});
            all.as_object_mut().unwrap().extend(device.as_object().unwrap().clone());
            all
        });
        let snapshot = json!({
            "version": 1, "hostname": "gpu01", "timestamp_seconds": 1000.0, "interval_seconds": 10.0, "installed": true,
            "collectors": {"gpu": current, "processes": current, "state": current},
            "devices": devices.collect::<Vec<_>>(), "environments": environments, "processes": processes, "counters": {},
        });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        HostSnapshot {
            hostname: "gpu01".to_owned(),
            up: true,
            received_timestamp_seconds: None,
            snapshot: Some(Arc::new(snapshot)),
            ssh: None,
        }
    }

    fn held_by(eids: &[&str]) -> Value {
        let attachments = eids.iter().map(|eid| json!({"eid": eid, "share_ratio": 1.0}));
        json!({"attachments": attachments.collect::<Vec<_>>()})
    }

    fn environment(eid: &str, username: &str, devices: Value) -> Value {
        json!({"eid": eid, "username": username, "devices": devices})
    }

    fn on(index: &str, state: &str) -> Value {
        json!({"pid": 7, "username": "eve", "attribution": {"state": state, "reason": "why"},
            "devices": [{"index": index, "type": "compute"}]})
    }

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
            let snapshot = Arc::make_mut(host.snapshot.as_mut().unwrap());
            snapshot.collectors.get_mut(collector).unwrap().current = false;
            assert_eq!(states(host)[..3], [GpuState::Unknown, GpuState::Held, used], "{collector}");
        }
    }

    #[test]
    fn a_host_tells_what_all_of_its_collectors_read() {
        let mut host = host(json!([]), json!([]), json!([]));
        let told = |host: &HostSnapshot| [tells(host, &["gpu"]), tells(host, &["gpu", "state"])];
        assert_eq!(told(&host), [true, true]);
        Arc::make_mut(host.snapshot.as_mut().unwrap()).collectors.get_mut("state").unwrap().current = false;
        assert_eq!(told(&host), [true, false]);
        host.snapshot = None;
        assert_eq!(told(&host), [false, false]);
    }

    #[test]
    fn a_gpu_is_idle_for_the_time_that_its_last_user_rests() {
        let usage = |last: Value, ratio: Value| json!([{"index": "0", "attached": true, "utilization_ratio": ratio, "last_active_timestamp_seconds": last}]);
        let (rests, works) = (usage(json!(400.0), json!(0.0)), usage(json!(990.0), json!(0.5)));
        let (not_seen, untold) = (usage(Value::Null, json!(0.0)), usage(Value::Null, Value::Null));
        for (first, second, expected, idle) in [
            (&rests, None, Activity::IdleFor(600.0), Some(600.0)),
            (&works, None, Activity::Busy, None),
            (&not_seen, None, Activity::NotSeen, None),
            (&untold, None, Activity::Unknown, None),
            (&usage(json!(400.0), Value::Null), None, Activity::Unknown, None),
            (&rests, Some(&works), Activity::IdleFor(600.0), None),
            (&rests, Some(&untold), Activity::IdleFor(600.0), None),
            (&rests, Some(&usage(json!(900.0), json!(0.0))), Activity::IdleFor(600.0), Some(100.0)),
            (&rests, Some(&not_seen), Activity::IdleFor(600.0), Some(600.0)),
        ] {
            let mut environments = vec![environment("1", "alice", first.clone())];
            environments.extend(second.map(|it| environment("2", "bob", it.clone())));
            let eids = ["1", "2"];
            let host = host(json!([held_by(&eids[..environments.len()])]), json!(environments), json!([]));
            let gpus = gpus(host.snapshot.as_ref().unwrap());
            assert_eq!(gpus[0].holders[0].activity, expected);
            assert_eq!(gpus[0].idle_seconds(), idle, "{expected:?}");
        }
        let mut host = host(json!([held_by(&["1"])]), json!([environment("1", "alice", works)]), json!([]));
        let snapshot = Arc::make_mut(host.snapshot.as_mut().unwrap());
        snapshot.collectors.get_mut("gpu").unwrap().current = false;
        assert_eq!(gpus(snapshot)[0].holders[0].activity, Activity::Unknown);
    }

    #[test]
    fn totals_are_of_all_hosts() {
        let a100 = json!({"name": "NVIDIA A100-SXM4-80GB"});
        let rests = json!([{"index": "2", "attached": true, "utilization_ratio": 0.0}]);
        let mut held = held_by(&["1"]);
        held["name"] = "NVIDIA A100-SXM4-80GB".into();
        let devices = json!([a100, {}, held, {"up": false, "name": "NVIDIA H200"}]);
        let mut one = host(devices, json!([environment("1", "alice", rests)]), json!([on("1", "outside")]));
        let counters = json!({"user_device_use": [
            {"username": "alice", "index": "2", "device_seconds": {"busy": 30.0, "idle": 90.0}, "energy_joules": 5.0},
            {"username": NOBODY, "index": "2", "energy_joules": 7.0},
        ]});
        let snapshot = Arc::make_mut(one.snapshot.as_mut().unwrap());
        snapshot.counters = serde_json::from_value(counters).unwrap();
        snapshot.queue = serde_json::from_value(json!([{"pid": 9, "username": "eve"}])).unwrap();
        let hosts = [one.clone(), one];

        let models_of = |hosts: &[HostSnapshot]| -> Vec<_> {
            let models = models(hosts).into_iter();
            models.map(|(name, it)| (name, [it.all, it.free, it.unknown, it.unusable])).collect()
        };
        let expected = |a100: [usize; 4]| {
            [("?", [2, 0, 0, 0]), ("A100 80GB", a100), ("H200", [2, 0, 0, 2])].map(|(name, it)| (name.to_owned(), it))
        };
        assert_eq!(models_of(&hosts), expected([4, 2, 0, 0]));
        let silent = hosts.clone().map(|host| HostSnapshot { up: false, ..host });
        assert_eq!(models_of(&silent), expected([4, 0, 2, 0]));
        assert_eq!(gpus_of(&silent[0])[0].state, GpuState::Unknown);

        let mut unmeasured = hosts.clone();
        Arc::make_mut(unmeasured[0].snapshot.as_mut().unwrap()).collectors.get_mut("gpu").unwrap().current = false;
        assert_eq!(users(&hosts)["alice"].idle_words(0), "2");
        assert_eq!(users(&unmeasured)["alice"].idle_words(0), "1 + ?");
        assert_eq!(users(&unmeasured[..1])["alice"].idle_words(0), "?");

        let users = users(&hosts);
        assert_eq!(users.keys().copied().collect::<Vec<_>>(), ["alice", "eve"]);
        let (alice, eve) = (&users["alice"], &users["eve"]);
        assert_eq!((alice.held, alice.idle, alice.energy_joules, alice.busy_ratio()), (2, 2, Some(10.0), Some(0.25)));
        assert_eq!((eve.held, eve.processes, eve.outside, eve.waiting, eve.busy_ratio()), (0, 2, 2, 2, None));
    }

    #[test]
    fn a_model_is_named_by_what_tells_it_from_others() {
        for (name, short) in [
            ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
            ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
            ("NVIDIA H100 80GB HBM3", "H100 80GB"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
            ("Tesla V100-SXM2-32GB", "V100 32GB"),
            ("NVIDIA Graphics", "NVIDIA Graphics"),
        ] {
            assert_eq!(short_model(name), short);
        }
    }

    #[test]
    fn what_is_broken_is_named_with_its_host_and_device_and_the_worst_first() {
        let mut host =
            host(json!([{"up": false}, {"mig_unsplit": true}, {"contradictory": true}]), json!([]), json!([]));
        host.up = false;
        let snapshot = Arc::make_mut(host.snapshot.as_mut().unwrap());
        snapshot.collectors.get_mut("state").unwrap().error = Some("envs.json is damaged".to_owned());
        let xids = json!([
            {"index": "1", "xid": 79, "errors": 1, "last_timestamp_seconds": 900.0},
            {"index": "1", "xid": 13, "errors": 1, "last_timestamp_seconds": -9000.0},
            {"index": "1", "xid": 48, "errors": 0},
        ]);
        snapshot.counters.device_xid_errors = serde_json::from_value(xids).unwrap();
        let hosts = [host];
        let troubles = troubles(&hosts);
        let troubles: Vec<_> = troubles.iter().map(|it| (it.device.map(|it| it.gpu), &*it.words)).collect();
        assert_eq!(
            troubles,
            [
                (None, "delivers no snapshot"),
                (Some(0), "does not answer"),
                (Some(1), "had the error XID 79 within the last hour"),
                (None, "collector state: envs.json is damaged"),
                (Some(1), "is in MIG mode without MIG devices: no program runs on it"),
                (Some(2), "shows utilization without a process and without memory in use"),
            ]
        );
    }
}
