//! A lab in a few lines: hosts with devices, environments and processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Action;
use crate::kinds::SharedFact;
use crate::plan::*;
use crate::present::WrittenFact;
use genv_core::model::{
    Attachment, Attribution, CollectorStatus, Device, DeviceIndex, Environment, EnvironmentDevice, HostSnapshot,
    Process, ProcessDevice, ProcessType, Snapshot,
};
use serde_json::json;

pub(crate) const GIB: u64 = 1 << 30;
/// Friday, 20 November 2026, 12:00 UTC.
pub(crate) const NOON: f64 = 1_795_176_000.0;

/// Hosts by name, each with what its next snapshot shows.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    pub(crate) hosts: Vec<Snapshot>,
    pub(crate) silent: BTreeSet<String>,
    pub(crate) groups: BTreeMap<String, BTreeSet<String>>,
    pub(crate) unconfirmed: Option<Unconfirmed>,
}

impl Lab {
    /// Hosts gpu01, gpu02 and so on, with as many devices each.
    pub(crate) fn new(hosts: usize, devices: u32) -> Self {
        let hosts = (1..=hosts).map(|number| Snapshot {
            sees_all_processes: true,
            hostname: format!("gpu{number:02}"),
            interval_seconds: 10.0,
            installed: true,
            devices: (0..devices).map(device).collect(),
            ..Snapshot::default()
        });
        Self { hosts: hosts.collect(), silent: BTreeSet::new(), groups: BTreeMap::new(), unconfirmed: None }
    }

    pub(crate) fn host(&mut self, hostname: &str) -> &mut Snapshot {
        self.hosts.iter_mut().find(|host| host.hostname == hostname).unwrap()
    }

    pub(crate) fn member(mut self, username: &str, group: &str) -> Self {
        self.groups.entry(username.to_owned()).or_default().insert(group.to_owned());
        self
    }

    /// An environment `eid` of a user on a host, activated an hour before noon.
    pub(crate) fn environment(mut self, hostname: &str, eid: &str, username: &str) -> Self {
        self.groups.entry(username.to_owned()).or_default();
        let environments = &mut self.host(hostname).environments;
        let environment = json!({
            "eid": eid, "uid": uid(username), "username": username, "created_timestamp_seconds": NOON - 3600.0,
        });
        environments.push(serde_json::from_value(environment).unwrap());
        environments.sort_by(|a, b| a.eid.cmp(&b.eid));
        self
    }

    /// The same on gpu01, with devices that were attached so many seconds before noon.
    pub(crate) fn holder(self, eid: &str, username: &str, devices: &[(u32, f64)]) -> Self {
        let lab = self.environment("gpu01", eid, username);
        devices.iter().fold(lab, |lab, &(gpu, before)| lab.attach("gpu01", eid, gpu, before))
    }

    /// Attaches an environment to a device, some seconds before noon.
    pub(crate) fn attach(self, hostname: &str, eid: &str, gpu: u32, before: f64) -> Self {
        self.attach_memory(hostname, eid, gpu, before, None)
    }

    /// The same, of which nothing shows that the environment's user did it.
    pub(crate) fn force_on(mut self, hostname: &str, eid: &str, gpu: u32, before: f64) -> Self {
        let unconfirmed = self.unconfirmed.get_or_insert_default();
        unconfirmed.add(hostname, eid, gpu);
        self.attach(hostname, eid, gpu, before)
    }

    pub(crate) fn attach_memory(
        mut self,
        hostname: &str,
        eid: &str,
        gpu: u32,
        before: f64,
        memory_bytes: Option<u64>,
    ) -> Self {
        let host = self.host(hostname);
        Arc::make_mut(&mut host.devices[gpu as usize].attachments).push(Attachment {
            eid: eid.to_owned(),
            memory_bytes,
            share_ratio: 1.0,
            attached_timestamp_seconds: Some(NOON - before),
            moved: false,
        });
        self.eid(hostname, eid).devices.push(EnvironmentDevice {
            index: DeviceIndex::gpu(gpu),
            attached: true,
            memory_used_bytes: Some(0).into(),
            memory_capacity_bytes: memory_bytes.into(),
            utilization_ratio: Some(0.0).into(),
            last_active_timestamp_seconds: None.into(),
        });
        self
    }

    /// A process of a user in an environment, that uses devices; the larger its pid, the newer.
    pub(crate) fn process(
        mut self,
        hostname: &str,
        pid: u32,
        username: &str,
        eid: Option<&str>,
        uses: &[(u32, u64)],
    ) -> Self {
        self.groups.entry(username.to_owned()).or_default();
        let attribution = match eid {
            Some(eid) => Attribution::Environment { eid: eid.to_owned() },
            None => Attribution::Outside { reason: "no_claim".to_owned() },
        };
        let devices = uses.iter().map(|&(gpu, memory_bytes)| ProcessDevice {
            index: DeviceIndex::gpu(gpu),
            process_type: ProcessType::Compute,
            memory_used_bytes: Some(memory_bytes).into(),
            utilization_ratio: Some(0.5).into(),
        });
        self.host(hostname).processes.push(Arc::new(Process {
            pid,
            start_time_ticks: Some(u64::from(pid) * 100),
            uid: Some(uid(username)),
            username: Some(username.to_owned()),
            comm: Some("python".to_owned()),
            container_id: None,
            attribution,
            devices: devices.collect(),
        }));
        self
    }

    pub(crate) fn runs(self, pid: u32, username: &str, eid: Option<&str>, uses: &[(u32, u64)]) -> Self {
        self.process("gpu01", pid, username, eid, uses)
    }

    pub(crate) fn pid(&mut self, hostname: &str, pid: u32) -> &mut Process {
        let mut processes = self.host(hostname).processes.iter_mut();
        Arc::make_mut(processes.find(|process| process.pid == pid).unwrap())
    }

    pub(crate) fn eid(&mut self, hostname: &str, eid: &str) -> &mut Environment {
        let mut environments = self.host(hostname).environments.iter_mut();
        Arc::make_mut(environments.find(|it| it.eid == eid).unwrap())
    }

    /// How busy a process of gpu01 is on each of its devices.
    pub(crate) fn utilize(&mut self, pid: u32, ratios: &[Option<f64>]) {
        let devices = &mut self.pid("gpu01", pid).devices;
        for (device, ratio) in devices.iter_mut().zip(ratios) {
            device.utilization_ratio = (*ratio).into();
        }
    }

    pub(crate) fn hide(&mut self, pid: u32, reason: &str) {
        self.pid("gpu01", pid).attribution = Attribution::Unknown { reason: reason.to_owned() };
    }

    /// A collector of gpu01 fails.
    pub(crate) fn fail(&mut self, collector: &str) {
        self.hosts[0].collectors.insert(collector.to_owned(), CollectorStatus::default());
    }

    /// A record of the state of gpu01 is damaged.
    pub(crate) fn damage(&mut self, error: &str) {
        let error = Some(error.to_owned());
        let status = CollectorStatus { success: true, current: true, error, ..CollectorStatus::default() };
        self.hosts[0].collectors.insert("state".to_owned(), status);
    }

    pub(crate) fn at(&self, now_seconds: f64) -> Vec<HostSnapshot> {
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
                    ..CollectorStatus::default()
                });
            }
            HostSnapshot {
                hostname: snapshot.hostname.clone(),
                up: !is_silent,
                received_timestamp_seconds: Some(now_seconds),
                snapshot: (!is_silent).then(|| Arc::new(snapshot)),
                ssh: None,
            }
        };
        self.hosts.iter().map(host).collect()
    }

    pub(crate) fn without(mut self, targets: &[Target]) -> Self {
        for target in targets {
            if let Target::Attachment(target) = target {
                self = self.detached(target);
            }
            for process in target.processes() {
                self.end(process);
            }
        }
        self
    }

    /// The lab without one attachment, with all processes.
    pub(crate) fn detached(mut self, target: &AttachmentTarget) -> Self {
        let index = DeviceIndex::gpu(target.gpu);
        let host = self.host(&target.hostname);
        let mut devices = host.devices.iter_mut();
        if let Some(device) = devices.find(|device| device.index == index) {
            Arc::make_mut(&mut device.attachments).retain(|it| it.eid != target.eid);
        }
        let mut environments = host.environments.iter_mut();
        if let Some(environment) = environments.find(|it| it.eid == target.eid) {
            let devices = &mut Arc::make_mut(environment).devices;
            devices.retain(|device| device.index != index);
        }
        self
    }

    fn end(&mut self, target: &ProcessTarget) {
        let processes = &mut self.host(&target.hostname).processes;
        processes.retain(|process| process.pid != target.pid);
    }
}

pub(crate) fn target(username: &str, pid: u32) -> ProcessTarget {
    ProcessTarget {
        hostname: "gpu01".to_owned(),
        pid,
        start_time_ticks: u64::from(pid) * 100,
        uid: uid(username),
        username: username.to_owned(),
        comm: None,
        eid: None,
        container_id: None,
    }
}

pub(crate) fn attachment(username: &str, eid: &str, gpu: u32, processes: Vec<Arc<ProcessTarget>>) -> AttachmentTarget {
    AttachmentTarget {
        hostname: "gpu01".to_owned(),
        eid: eid.to_owned(),
        username: username.to_owned(),
        gpu,
        uuid: None,
        attached_seconds: None,
        processes,
        unconfirmed: false,
    }
}

pub(crate) fn due_violation(key: Key, username: &str) -> Violation {
    Violation {
        hostname: key.subject.hostname().map(str::to_owned),
        key,
        username: username.to_owned(),
        uid: None,
        action: Action::Terminate,
        since_seconds: 0.0,
        stage: Stage::Due,
        fact: SharedFact::new(WrittenFact::default()),
        targets: Vec::new(),
        unconfirmed: false,
    }
}

pub(crate) fn uid(username: &str) -> u32 {
    match username {
        "root" => 0,
        name => name.bytes().fold(1000, |uid, byte| uid * 7 % 60_000 + u32::from(byte)),
    }
}

fn device(gpu: u32) -> Device {
    let index = DeviceIndex::gpu(gpu);
    let device =
        json!({"index": index, "uuid": format!("GPU-{gpu}"), "up": true, "minor": gpu, "processes_measured": true});
    serde_json::from_value(device).unwrap()
}
