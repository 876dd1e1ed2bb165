//! From the file as written to a scenario that holds together.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

use sha2::{Digest, Sha256};

use super::definition::{
    Device, DeviceFault, Environment, Facts, Host, HostFault, MigDevice, Process, Readable,
    Scenario, Use, Xid,
};
use super::format::{
    ClaimEntry, DeviceEntry, DeviceFaultEntry, DuringEntry, EnvironmentEntry, File, HostEntry,
    HostFaultEntry, Index, Moment, ProcEntry, ProcessEntry, XidEntry,
};
use super::pattern::{Level, Pattern, Window, peak_together};
use crate::model::{DeviceIndex, ProcessType};
use crate::proc::{Claim, MissingEvidence};
use crate::yaml::{self, Located, Place};

/// 2026-01-01T00:00:00Z: a fixed default, so that two programs agree without agreeing on anything.
const DEFAULT_EPOCH_MILLISECONDS: i64 = 1_767_225_600_000;

/// The shells that environments without `pids` are given start here: above what Linux gives out
/// (`pid_max` is at most 4194304), so that no real process is taken for one.
const FIRST_SHELL_PID: u32 = 5_000_000;

/// Reads a scenario.
pub(super) fn scenario(
    source_name: &str,
    text: &str,
    machine_name: &str,
) -> Result<Scenario, yaml::Error> {
    let file: File = yaml::parse(source_name, text)?;
    Checker {
        source_name,
        text,
        machine_name,
        epoch: file
            .epoch
            .map_or(DEFAULT_EPOCH_MILLISECONDS, |epoch| epoch.0),
    }
    .scenario(&file)
}

struct Checker<'a> {
    source_name: &'a str,
    text: &'a str,
    machine_name: &'a str,
    epoch: i64,
}

type Checked<T> = Result<T, yaml::Error>;

/// Names of users with their uids.
type Users<'a> = BTreeMap<&'a str, u32>;

impl Checker<'_> {
    fn refuse<T>(&self, place: Place, message: impl Into<String>) -> Checked<T> {
        Err(yaml::Error::at(self.source_name, self.text, place, message))
    }

    /// Refuses a value that was seen before.
    fn unique<T: Eq + Hash>(
        &self,
        seen: &mut HashSet<T>,
        value: T,
        place: Place,
        what: impl Fn() -> String,
    ) -> Checked<()> {
        if seen.insert(value) {
            Ok(())
        } else {
            self.refuse(place, format!("{} is there twice", what()))
        }
    }

    fn scenario(&self, file: &File) -> Checked<Scenario> {
        if file.version.value != 1 {
            let message = format!(
                "version {} is not known: this program reads version 1",
                file.version.value
            );
            return self.refuse(file.version.referenced, message);
        }
        let mut uids = HashSet::new();
        for uid in file.users.values() {
            self.unique(&mut uids, uid.value, uid.referenced, || {
                format!("uid {}", uid.value)
            })?;
        }
        let users: Users<'_> = file
            .users
            .iter()
            .map(|(name, uid)| (name.as_str(), uid.value))
            .collect();
        let mut hosts: Vec<Host> = Vec::new();
        for entry in &file.hosts {
            let host = self.host(entry, &users)?;
            if hosts.iter().any(|other| other.name == host.name) {
                let message = format!("host {} is there twice: give each its own name", host.name);
                return Err(match &entry.name {
                    Some(name) => {
                        yaml::Error::at(self.source_name, self.text, name.referenced, message)
                    }
                    None => yaml::Error::whole(self.source_name, message),
                });
            }
            hosts.push(host);
        }
        Ok(Scenario {
            hosts,
            users: file
                .users
                .iter()
                .map(|(name, uid)| (uid.value, name.clone()))
                .collect(),
        })
    }

    fn host(&self, entry: &HostEntry, users: &Users<'_>) -> Checked<Host> {
        let name = match &entry.name {
            Some(name) if name.value.is_empty() => {
                return self.refuse(name.referenced, "the name is empty");
            }
            Some(name) => name.value.clone(),
            None => self.machine_name.to_owned(),
        };
        let mut devices = self.devices(&name, &entry.devices)?;
        let environments = entry
            .environments
            .as_ref()
            .map(|entries| self.environments(entries, users, &devices))
            .transpose()?;
        let mut processes = self.processes(entry, users, environments.as_deref(), &devices)?;
        fit(&mut devices, &mut processes);
        let faults = entry
            .faults
            .iter()
            .map(|fault| self.host_fault(fault))
            .collect::<Checked<_>>()?;
        Ok(Host {
            name,
            epoch_milliseconds: self.epoch,
            driver_version: entry
                .driver_version
                .clone()
                .unwrap_or_else(|| "550.163.01".to_owned()),
            cuda_version: entry.cuda_version.map_or((12, 4), |version| version.0),
            devices,
            environments,
            by_pid: processes
                .iter()
                .enumerate()
                .map(|(position, process)| (process.pid, position))
                .collect(),
            processes,
            faults,
        })
    }

    fn devices(&self, host: &str, entries: &[DeviceEntry]) -> Checked<Vec<Device>> {
        let mut devices = Vec::new();
        let (mut uuids, mut minors, mut buses) = (HashSet::new(), HashSet::new(), HashSet::new());
        for entry in entries {
            let count = entry.count.as_ref().map_or(1, |count| count.value);
            if let Some(place) = &entry.count
                && count > 256
            {
                return self.refuse(place.referenced, "a host has at most 256 devices");
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
                    self.unique(&mut uuids, device.uuid.clone(), uuid.referenced, || {
                        format!("uuid {}", device.uuid)
                    })?;
                }
                if let Some(minor) = &entry.minor {
                    self.unique(&mut minors, device.minor, minor.referenced, || {
                        format!("minor {}", device.minor)
                    })?;
                }
                if let Some(bus) = &entry.pci_bus_id {
                    self.unique(
                        &mut buses,
                        device.pci_bus_id.clone(),
                        bus.referenced,
                        || format!("pci_bus_id {}", device.pci_bus_id),
                    )?;
                }
                devices.push(device);
            }
        }
        Ok(devices)
    }

    fn device(&self, host: &str, index: u32, entry: &DeviceEntry) -> Checked<Device> {
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
        let power_watts = match &entry.power {
            // Below a watt, 64 bits would not show energy rising from one millisecond to the next.
            Some(power) if power.value.idle < 1.0 => {
                return self.refuse(power.referenced, "a device draws at least 1 W when idle");
            }
            Some(power) => power.value,
            None => Level {
                idle: 60.0,
                max: 300.0,
            },
        };
        let mut mig = Vec::new();
        let mut uuids = HashSet::new();
        for (position, part) in entry.mig.iter().enumerate() {
            if let Some(uuid) = &part.uuid {
                self.unique(&mut uuids, &uuid.value, uuid.referenced, || {
                    format!("uuid {}", uuid.value)
                })?;
            }
            mig.push(MigDevice {
                profile: part.profile.clone(),
                uuid: part.uuid.as_ref().map_or_else(
                    || derived_uuid("MIG", host, &format!("{index}:{position}")),
                    |uuid| uuid.value.clone(),
                ),
                memory_bytes: part.memory.0,
                gpu_instance: u32::try_from(position + 1).unwrap_or(u32::MAX),
            });
        }
        let limits = entry.temperature_limits;
        let clocks = entry.clocks;
        let ecc = entry.ecc.unwrap_or_default();
        Ok(Device {
            index,
            name: entry
                .name
                .clone()
                .unwrap_or_else(|| "NVIDIA H100 80GB HBM3".to_owned()),
            uuid: entry.uuid.as_ref().map_or_else(
                || derived_uuid("GPU", host, &index.to_string()),
                |uuid| uuid.value.clone(),
            ),
            minor: entry.minor.as_ref().map_or(index, |minor| minor.value),
            pci_bus_id: entry.pci_bus_id.as_ref().map_or_else(
                || format!("{:08X}:{:02X}:00.0", index / 255, index % 255 + 1),
                |bus| bus.value.clone(),
            ),
            memory_bytes,
            memory_reserved_bytes,
            memory_used_bytes: entry.memory_used.as_ref().map(|used| used.value.0),
            utilization: entry.utilization.clone(),
            memory_controller: entry.memory_controller.clone(),
            encoder: entry.encoder.clone().unwrap_or(Pattern::Constant(0.0)),
            decoder: entry.decoder.clone().unwrap_or(Pattern::Constant(0.0)),
            temperature_celsius: entry.temperature.unwrap_or(Level {
                idle: 32.0,
                max: 78.0,
            }),
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
            ecc_errors: ecc
                .enabled
                .unwrap_or(true)
                .then_some((ecc.corrected, ecc.uncorrected)),
            pcie_replays: entry.pcie_replays,
            mig,
            xid: entry
                .xid
                .iter()
                .map(|xid| self.xid(xid))
                .collect::<Checked<_>>()?,
            faults: entry
                .faults
                .iter()
                .map(|fault| self.device_fault(fault))
                .collect::<Checked<Vec<_>>>()?
                .concat(),
            users: Vec::new(),
        })
    }

    fn xid(&self, entry: &Located<XidEntry>) -> Checked<Xid> {
        let XidEntry { xid, at, every } = entry.value;
        match (at, every) {
            (None, None) => {
                self.refuse(entry.referenced, "say when it happens: at, every, or both")
            }
            (_, Some(every)) if every.0 < 1.0 => self.refuse(
                entry.referenced,
                "an XID error every second is the most there can be",
            ),
            (at, every) => Ok(Xid {
                xid,
                first_seconds: at.or(every).map_or(0.0, |first| first.0),
                every_seconds: every.map(|every| every.0),
            }),
        }
    }

    fn environments(
        &self,
        entries: &[EnvironmentEntry],
        users: &Users<'_>,
        devices: &[Device],
    ) -> Checked<Vec<Environment>> {
        let mut eids = HashSet::new();
        let mut environments = Vec::new();
        for entry in entries {
            self.unique(&mut eids, &entry.eid.value, entry.eid.referenced, || {
                format!("environment {}", entry.eid.value)
            })?;
            let mut attached = HashSet::new();
            let mut indices = Vec::new();
            for index in &entry.devices {
                let Index(wanted) = index.value;
                if wanted.mig.is_some() {
                    return self.refuse(index.referenced, "environments attach to whole GPUs");
                }
                self.device_exists(index, devices)?;
                self.unique(&mut attached, wanted, index.referenced, || {
                    format!("device {wanted}")
                })?;
                indices.push(wanted.gpu);
            }
            let shell = FIRST_SHELL_PID + u32::try_from(environments.len()).unwrap_or(0);
            environments.push(Environment {
                eid: entry.eid.value.clone(),
                uid: self.uid(&entry.user, users)?,
                username: entry.user.value.clone(),
                name: entry.name.clone(),
                gpus: entry.gpus,
                gpu_memory_bytes: entry.gpu_memory.map(|memory| memory.0),
                created_milliseconds: match (entry.created, &entry.during) {
                    (None, Some(_)) => None,
                    (created, _) => Some(self.moment(created)),
                },
                devices: indices,
                pids: entry.pids.clone().unwrap_or_else(|| vec![shell]),
                kernel_ids: entry.kernel_ids.clone(),
                window: self.window(entry.during.as_ref())?,
            });
        }
        Ok(environments)
    }

    fn processes(
        &self,
        host: &HostEntry,
        users: &Users<'_>,
        environments: Option<&[Environment]>,
        devices: &[Device],
    ) -> Checked<Vec<Process>> {
        let mut pids = HashSet::new();
        let mut processes = Vec::new();
        for entry in &host.processes {
            let pid = entry.pid.value;
            if pid == 0 {
                return self.refuse(entry.pid.referenced, "pid 0 is no process");
            }
            self.unique(&mut pids, pid, entry.pid.referenced, || {
                format!("pid {pid}")
            })?;
            let mut indices = HashSet::new();
            let mut uses = Vec::new();
            for entry_use in &entry.devices {
                let Index(index) = entry_use.index.value;
                self.device_exists(&entry_use.index, devices)?;
                if index.mig.is_none() && !devices[index.gpu as usize].mig.is_empty() {
                    let message = format!(
                        "device {index} is split into MIG devices: name one, such as \"{index}:0\""
                    );
                    return self.refuse(entry_use.index.referenced, message);
                }
                self.unique(&mut indices, index, entry_use.index.referenced, || {
                    format!("device {index}")
                })?;
                uses.push(Use {
                    index,
                    process_type: entry.process_type.unwrap_or(ProcessType::Compute),
                    memory_bytes: entry_use.memory.map_or(0, |memory| memory.0),
                    utilization: entry_use
                        .utilization
                        .clone()
                        .unwrap_or(Pattern::Constant(0.0)),
                    scale: 1.0,
                });
            }
            processes.push(Process {
                pid,
                facts: self.facts(entry, users, environments.unwrap_or_default())?,
                uses,
                window: self.window(entry.during.as_ref())?,
            });
        }
        let shells = environments.unwrap_or_default().iter();
        for environment in shells.filter(|e| e.pids.first() >= Some(&FIRST_SHELL_PID)) {
            for pid in environment.pids.iter().filter(|pid| pids.insert(**pid)) {
                processes.push(shell(*pid, environment));
            }
        }
        Ok(processes)
    }

    /// What is known of a simulated process; of a real one, which has no user, nothing may be said.
    fn facts(
        &self,
        entry: &ProcessEntry,
        users: &Users<'_>,
        environments: &[Environment],
    ) -> Checked<Option<Facts>> {
        let Some(user) = &entry.user else {
            let real = "a process without user is a real one: its facts come from /proc";
            let given = [
                entry.comm.as_ref().map(|given| given.referenced),
                entry.environment.as_ref().map(|given| given.referenced),
                entry.claim.as_ref().map(|given| given.referenced),
                entry.proc.as_ref().map(|given| given.referenced),
                entry.container_id.as_ref().map(|given| given.referenced),
                entry.parent.as_ref().map(|given| given.referenced),
                entry.started.as_ref().map(|given| given.referenced),
            ];
            if let Some(place) = given.into_iter().flatten().next() {
                return self.refuse(place, real);
            }
            return Ok(None);
        };
        let environment = match &entry.environment {
            None => None,
            Some(eid) => match environments.iter().find(|e| e.eid == eid.value) {
                Some(environment) => Some(environment),
                None => {
                    return self.refuse(
                        eid.referenced,
                        format!("there is no environment {} on this host", eid.value),
                    );
                }
            },
        };
        let claim = match entry.claim.as_ref().map(|claim| &claim.value) {
            None => environment.map_or(Claim::Absent, |e| Claim::Named(e.eid.clone())),
            Some(ClaimEntry::None) => Claim::Absent,
            Some(ClaimEntry::Named(eid)) => Claim::Named(eid.clone()),
            Some(ClaimEntry::Unreadable) => Claim::Missing(MissingEvidence::EnvironUnreadable),
            Some(ClaimEntry::Empty) => Claim::Missing(MissingEvidence::EnvironEmpty),
            Some(ClaimEntry::Overwritten) => Claim::Missing(MissingEvidence::EnvironOverwritten),
            Some(ClaimEntry::Zombie) => Claim::Missing(MissingEvidence::Zombie),
        };
        Ok(Some(Facts {
            uid: self.uid(user, users)?,
            comm: entry
                .comm
                .as_ref()
                .map_or_else(|| "python3".to_owned(), |comm| comm.value.clone()),
            container_id: entry.container_id.as_ref().map(|id| id.value.clone()),
            parent: entry.parent.as_ref().map_or_else(
                || {
                    environment
                        .and_then(|e| e.pids.first().copied())
                        .unwrap_or(1)
                },
                |parent| parent.value,
            ),
            claim,
            started_milliseconds: match (&entry.started, &entry.during) {
                (None, Some(_)) => None,
                (started, _) => Some(self.moment(started.as_ref().map(|started| started.value))),
            },
            readable: match entry.proc.as_ref().map(|proc| proc.value) {
                None => Readable::Yes,
                Some(ProcEntry::Unreadable) => Readable::No,
                Some(ProcEntry::Vanished) => Readable::Vanished,
            },
        }))
    }

    fn host_fault(&self, entry: &Located<HostFaultEntry>) -> Checked<(Window, HostFault)> {
        let window = self.window(entry.value.during.as_ref())?;
        let fault = entry.value.clone();
        Ok((
            window,
            match (
                fault.init,
                fault.hang,
                fault.reload,
                fault.insufficient_size,
            ) {
                (Some(error), None, None, None) => HostFault::Init(error),
                (None, Some(calls), None, None) => HostFault::Hang(calls),
                (None, None, Some(generation), None) => HostFault::Reload(generation.into()),
                (None, None, None, Some(more)) => HostFault::InsufficientSize(more),
                _ => {
                    return self.refuse(
                        entry.referenced,
                        "a fault of a host is one of init, hang, reload and insufficient_size",
                    );
                }
            },
        ))
    }

    fn device_fault(
        &self,
        entry: &Located<DeviceFaultEntry>,
    ) -> Checked<Vec<(Window, DeviceFault)>> {
        let window = self.window(entry.value.during.as_ref())?;
        let fault = entry.value.clone();
        let mut faults = Vec::new();
        if fault.lost {
            faults.push((window, DeviceFault::Lost));
        }
        if let Some(calls) = fault.hang {
            faults.push((window, DeviceFault::Hang(calls)));
        }
        if !fault.not_supported.is_empty() {
            faults.push((window, DeviceFault::NotSupported(fault.not_supported)));
        }
        if faults.len() != 1 {
            return self.refuse(
                entry.referenced,
                "a fault of a device is one of lost: true, hang and not_supported",
            );
        }
        Ok(faults)
    }

    fn window(&self, entry: Option<&Located<DuringEntry>>) -> Checked<Window> {
        let Some(entry) = entry else {
            return Ok(Window::ALWAYS);
        };
        let seconds = |span: Option<super::format::Span>| span.map(|span| span.0);
        let window = Window {
            every: seconds(entry.value.every),
            from: seconds(entry.value.from).unwrap_or(0.0),
            until: seconds(entry.value.until),
        };
        let end = match (window.until, window.every) {
            (Some(until), Some(every)) if until > every => {
                return self.refuse(
                    entry.referenced,
                    "until is beyond every, where the next cycle begins",
                );
            }
            (until, every) => until.or(every),
        };
        if end.is_some_and(|end| end <= window.from) {
            return self.refuse(
                entry.referenced,
                "it ends before it begins: until must be after from",
            );
        }
        Ok(window)
    }

    fn device_exists(&self, index: &Located<Index>, devices: &[Device]) -> Checked<()> {
        let Index(DeviceIndex { gpu, mig }) = index.value;
        let Some(device) = usize::try_from(gpu).ok().and_then(|gpu| devices.get(gpu)) else {
            let message = format!("there is no device {gpu}: this host has {}", devices.len());
            return self.refuse(index.referenced, message);
        };
        match mig {
            Some(mig) if u64::from(mig) >= device.mig.len() as u64 => {
                let parts = device.mig.len();
                let message =
                    format!("there is no MIG device {gpu}:{mig}: device {gpu} has {parts}");
                self.refuse(index.referenced, message)
            }
            _ => Ok(()),
        }
    }

    fn uid(&self, name: &Located<String>, users: &Users<'_>) -> Checked<u32> {
        match users.get(name.value.as_str()) {
            Some(uid) => Ok(*uid),
            None => self.refuse(
                name.referenced,
                format!(
                    "there is no user {}: add it to users, with its uid",
                    name.value
                ),
            ),
        }
    }

    /// Unix time in milliseconds; the epoch unless said.
    fn moment(&self, moment: Option<Moment>) -> i64 {
        match moment {
            None => self.epoch,
            Some(Moment::Absolute(time)) => time.0,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "durations are whole milliseconds"
            )]
            Some(Moment::SecondsBeforeEpoch(seconds)) => self.epoch - (seconds * 1000.0) as i64,
        }
    }
}

/// The shell of an environment whose members were not given.
fn shell(pid: u32, environment: &Environment) -> Process {
    Process {
        pid,
        facts: Some(Facts {
            uid: environment.uid,
            comm: "bash".to_owned(),
            container_id: None,
            parent: 1,
            claim: Claim::Named(environment.eid.clone()),
            started_milliseconds: environment.created_milliseconds,
            readable: Readable::Yes,
        }),
        uses: Vec::new(),
        window: environment.window,
    }
}

/// Tells each device who uses it, and scales utilization down where the peaks of processes that may run
/// at the same time would make a device more than busy.
fn fit(devices: &mut [Device], processes: &mut [Process]) {
    for device in devices {
        let mut loads = Vec::new();
        for (position, process) in processes.iter().enumerate() {
            for (at, used) in process.uses.iter().enumerate() {
                if used.index.gpu == device.index {
                    device.users.push((position, at));
                    loads.push((process.window, used.utilization.peak()));
                }
            }
        }
        let peak = peak_together(&loads);
        if peak > 1.0 {
            for (position, at) in &device.users {
                processes[*position].uses[*at].scale = 1.0 / peak;
            }
        }
    }
}

/// A UUID that only depends on where the device is.
fn derived_uuid(prefix: &str, host: &str, index: &str) -> String {
    let hash = Sha256::digest(format!("{prefix}/{host}/{index}"));
    let hex: String = hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "{prefix}-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
