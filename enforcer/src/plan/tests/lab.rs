//! A lab in a few lines: hosts with devices, environments and processes; rules; and cycles on a virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::{
    Attachment, Attribution, CollectorStatus, Counters, Device, DeviceIndex, DeviceMeasurements,
    Environment, EnvironmentDevice, HostSnapshot, Process, ProcessDevice, ProcessType,
    SNAPSHOT_VERSION, Snapshot,
};
use jiff::tz::TimeZone;

use crate::config::*;
use crate::plan::*;

pub(super) const GIB: u64 = 1 << 30;
/// Friday, 20 November 2026, 12:00 UTC.
pub(super) const NOON: f64 = 1_795_176_000.0;

/// Hosts by name, each with what its next snapshot shows.
#[derive(Clone, Debug)]
pub(super) struct Lab {
    pub(super) hosts: Vec<Snapshot>,
    pub(super) silent: BTreeSet<String>,
    pub(super) groups: BTreeMap<String, BTreeSet<String>>,
}

impl Lab {
    /// Hosts gpu01, gpu02 and so on, with as many devices each.
    pub(super) fn new(hosts: usize, devices: u32) -> Self {
        let hosts = (1..=hosts).map(|number| Snapshot {
            version: SNAPSHOT_VERSION,
            hostname: format!("gpu{number:02}"),
            timestamp_seconds: 0.0,
            interval_seconds: 10.0,
            installed: true,
            simulated: false,
            driver_version: None,
            collectors: BTreeMap::new(),
            devices: (0..devices).map(device).collect(),
            environments: Vec::new(),
            processes: Vec::new(),
            counters: Counters::default(),
        });
        Self {
            hosts: hosts.collect(),
            silent: BTreeSet::new(),
            groups: BTreeMap::new(),
        }
    }

    pub(super) fn host(&mut self, hostname: &str) -> &mut Snapshot {
        self.hosts
            .iter_mut()
            .find(|host| host.hostname == hostname)
            .unwrap()
    }

    pub(super) fn member(mut self, username: &str, group: &str) -> Self {
        self.groups
            .entry(username.to_owned())
            .or_default()
            .insert(group.to_owned());
        self
    }

    /// An environment `eid` of a user on a host, activated an hour before noon.
    pub(super) fn environment(mut self, hostname: &str, eid: &str, username: &str) -> Self {
        self.groups.entry(username.to_owned()).or_default();
        let environments = &mut self.host(hostname).environments;
        environments.push(Environment {
            eid: eid.to_owned(),
            uid: Some(uid(username)),
            username: username.to_owned(),
            name: None,
            created_timestamp_seconds: Some(NOON - 3600.0),
            gpus: None,
            gpu_memory_bytes: None,
            members: Vec::new(),
            kernel_ids: Vec::new(),
            devices: Vec::new(),
        });
        environments.sort_by(|a, b| a.eid.cmp(&b.eid));
        self
    }

    /// Attaches an environment to a device, some seconds before noon.
    pub(super) fn attach(self, hostname: &str, eid: &str, gpu: u32, before: f64) -> Self {
        self.attach_memory(hostname, eid, gpu, before, None)
    }

    pub(super) fn attach_memory(
        mut self,
        hostname: &str,
        eid: &str,
        gpu: u32,
        before: f64,
        memory_bytes: Option<u64>,
    ) -> Self {
        let host = self.host(hostname);
        host.devices[gpu as usize].attachments.push(Attachment {
            eid: eid.to_owned(),
            memory_bytes,
            share_ratio: 1.0,
            attached_timestamp_seconds: Some(NOON - before),
        });
        let environment = host
            .environments
            .iter_mut()
            .find(|it| it.eid == eid)
            .unwrap();
        environment.devices.push(EnvironmentDevice {
            index: DeviceIndex::gpu(gpu),
            attached: true,
            memory_used_bytes: Some(0),
            memory_capacity_bytes: memory_bytes,
            utilization_ratio: Some(0.0),
            last_active_timestamp_seconds: None,
        });
        self
    }

    /// A process of a user in an environment, that uses devices; the larger its pid, the newer.
    pub(super) fn process(
        mut self,
        hostname: &str,
        pid: u32,
        username: &str,
        eid: Option<&str>,
        uses: &[(u32, u64)],
    ) -> Self {
        self.groups.entry(username.to_owned()).or_default();
        let attribution = match eid {
            Some(eid) => Attribution::Environment {
                eid: eid.to_owned(),
            },
            None => Attribution::Outside {
                reason: "no_claim".to_owned(),
            },
        };
        let devices = uses.iter().map(|&(gpu, memory_bytes)| ProcessDevice {
            index: DeviceIndex::gpu(gpu),
            process_type: ProcessType::Compute,
            memory_used_bytes: Some(memory_bytes),
            utilization_ratio: Some(0.5),
        });
        self.host(hostname).processes.push(Process {
            pid,
            start_time_ticks: Some(u64::from(pid) * 100),
            uid: Some(uid(username)),
            username: Some(username.to_owned()),
            comm: Some("python".to_owned()),
            container_id: None,
            attribution,
            devices: devices.collect(),
        });
        self
    }

    pub(super) fn pid(&mut self, hostname: &str, pid: u32) -> &mut Process {
        let processes = &mut self.host(hostname).processes;
        processes
            .iter_mut()
            .find(|process| process.pid == pid)
            .unwrap()
    }

    /// What the hosts deliver at a time.
    pub(super) fn at(&self, now_seconds: f64) -> Vec<HostSnapshot> {
        let host = |snapshot: &Snapshot| {
            let is_silent = self.silent.contains(&snapshot.hostname);
            let mut snapshot = snapshot.clone();
            snapshot.timestamp_seconds = now_seconds;
            for collector in ["gpu", "processes", "state"] {
                let status = snapshot.collectors.entry(collector.to_owned());
                status.or_insert_with(|| CollectorStatus {
                    success: true,
                    current: true,
                    duration_seconds: Some(0.001),
                    timestamp_seconds: Some(now_seconds),
                    error: None,
                });
            }
            HostSnapshot {
                hostname: snapshot.hostname.clone(),
                up: !is_silent,
                received_timestamp_seconds: Some(now_seconds),
                snapshot: (!is_silent).then(|| Arc::new(snapshot)),
            }
        };
        self.hosts.iter().map(host).collect()
    }

    /// The lab after something was ended or taken.
    pub(super) fn without(mut self, targets: &[Target]) -> Self {
        for target in targets {
            match target {
                Target::Process(process) => self.end(process),
                Target::Attachment(target) => {
                    let host = self.host(&target.hostname);
                    for device in &mut host.devices {
                        if device.index == DeviceIndex::gpu(target.gpu) {
                            device.attachments.retain(|it| it.eid != target.eid);
                        }
                    }
                    let mut environments = host.environments.iter_mut();
                    if let Some(environment) = environments.find(|it| it.eid == target.eid) {
                        let index = DeviceIndex::gpu(target.gpu);
                        environment.devices.retain(|device| device.index != index);
                    }
                    for process in &target.processes {
                        self.end(process);
                    }
                }
            }
        }
        self
    }

    fn end(&mut self, target: &ProcessTarget) {
        let processes = &mut self.host(&target.hostname).processes;
        processes.retain(|process| process.pid != target.pid);
    }
}

/// root is 0; everybody else has an uid of his own.
pub(super) fn uid(username: &str) -> u32 {
    match username {
        "root" => 0,
        name => name
            .bytes()
            .fold(1000, |uid, byte| uid * 7 % 60_000 + u32::from(byte)),
    }
}

fn device(gpu: u32) -> Device {
    Device {
        index: DeviceIndex::gpu(gpu),
        uuid: format!("GPU-{gpu}"),
        up: true,
        name: None,
        minor: Some(gpu),
        profile: None,
        mig_parent: false,
        measurements: DeviceMeasurements::default(),
        processes_measured: true,
        attachments: Vec::new(),
    }
}

/// A rule that acts at once, on everybody and without warning.
pub(super) fn rule(kind: RuleKind, action: Action) -> Rule {
    let name = format!("{kind:?}");
    Rule {
        name: name.split([' ', '{']).next().unwrap().to_owned(),
        kind,
        action,
        for_duration: Duration::ZERO,
        warn: Vec::new(),
        grace: Duration::from_secs(60),
        processes: DetachedProcesses::Terminate,
        selector: Selector::default(),
        schedule: None,
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

pub(super) fn limit(default: u64) -> Limits<u64> {
    Limits {
        base: Limit {
            default: Some(default),
            groups: BTreeMap::new(),
            users: BTreeMap::new(),
        },
        overrides: Vec::new(),
    }
}

pub(super) fn config(rules: Vec<Rule>) -> Config {
    Config {
        hash: String::new(),
        mode: Mode::Enforce,
        interval: seconds(10),
        timezone: TimeZone::UTC,
        never: Never {
            users: names(&["root", "admin"]),
            executables: BTreeSet::new(),
        },
        breaker: BreakerLimits {
            signals_per_minute: 20,
            share_of_users: 0.5,
            at_least_users: 3,
        },
        maintenance: Vec::new(),
        waivers: Vec::new(),
        rules,
    }
}

/// Cycles of a daemon on a clock that tests turn.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    pub(super) config: Config,
    pub(super) history: History,
    pub(super) now_seconds: f64,
    pub(super) paused_until_seconds: Option<f64>,
    pub(super) waivers: Vec<Waiver>,
}

impl Daemon {
    pub(super) fn new(rules: Vec<Rule>) -> Self {
        Self {
            config: config(rules),
            history: History::default(),
            now_seconds: NOON,
            paused_until_seconds: None,
            waivers: Vec::new(),
        }
    }

    pub(super) fn input<'a>(&'a self, hosts: &'a [HostSnapshot], lab: &'a Lab) -> Input<'a> {
        Input {
            hosts,
            config: &self.config,
            groups: &lab.groups,
            waivers: &self.waivers,
            paused_until_seconds: self.paused_until_seconds,
            now_seconds: self.now_seconds,
        }
    }

    /// What would be done now, with fresh facts.
    pub(super) fn plan(&self, lab: &Lab) -> Plan {
        plan(&self.input(&lab.at(self.now_seconds), lab), &self.history)
    }

    /// One cycle with fresh facts, in which every step is done; the lab stays as it is.
    pub(super) fn cycle(&mut self, lab: &Lab) -> Plan {
        self.cycle_with(lab, |_| Outcome::Done)
    }

    pub(super) fn cycle_with(&mut self, lab: &Lab, outcome: impl Fn(&Step) -> Outcome) -> Plan {
        let hosts = lab.at(self.now_seconds);
        self.cycle_on(&hosts, lab, outcome)
    }

    pub(super) fn cycle_on(
        &mut self,
        hosts: &[HostSnapshot],
        lab: &Lab,
        outcome: impl Fn(&Step) -> Outcome,
    ) -> Plan {
        let mut history = std::mem::take(&mut self.history);
        let input = self.input(hosts, lab);
        let plan = plan(&input, &history);
        history.follow(&input, &plan);
        for step in &plan.steps {
            history.settle(step, &outcome(step), self.now_seconds);
        }
        // As a daemon that is started anew for each cycle.
        self.history = History::parse(&history.to_json().unwrap()).unwrap();
        plan
    }

    /// Cycles of ten seconds until `seconds` have passed; the steps with the time of each, from the first cycle on.
    pub(super) fn run(&mut self, lab: &Lab, seconds: u64) -> Vec<(f64, StepKind)> {
        let end = self.now_seconds + seconds as f64;
        let mut steps = Vec::new();
        while self.now_seconds < end {
            let at = self.now_seconds - NOON;
            let plan = self.cycle(lab);
            steps.extend(plan.steps.into_iter().map(|step| (at, step.kind)));
            self.now_seconds += 10.0;
        }
        steps
    }
}

/// Steps in short: `terminate 4242`, `detach e1:0 (4242)`, `warn 1/2`.
pub(super) fn short(kind: &StepKind) -> String {
    match kind {
        StepKind::Report => "report".to_owned(),
        StepKind::Warn { number, of, .. } => format!("warn {number}/{of}"),
        StepKind::Detach(target) => format!("detach {}", short_attachment(target)),
        StepKind::Terminate(target) => format!("terminate {}", target.pid),
        StepKind::Kill(target) => format!("kill {}", target.pid),
    }
}

fn short_attachment(target: &AttachmentTarget) -> String {
    let pids: Vec<String> = target
        .processes
        .iter()
        .map(|it| it.pid.to_string())
        .collect();
    let AttachmentTarget { eid, gpu, .. } = target;
    match pids.as_slice() {
        [] => format!("{eid}:{gpu}"),
        pids => format!("{eid}:{gpu} ({})", pids.join(" ")),
    }
}

pub(super) fn actions(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().map(|step| short(&step.kind));
    steps.filter(|step| step != "report").collect()
}

/// Targets in short, as [`short`].
pub(super) fn targets(violation: &Violation) -> Vec<String> {
    let of = |target: &Target| match target {
        Target::Process(target) => target.pid.to_string(),
        Target::Attachment(target) => short_attachment(target),
    };
    violation.targets.iter().map(of).collect()
}
