//! Environments and processes.

use std::collections::HashSet;

use genv_core::model::ProcessType;
use genv_core::proc::{Claim, MissingEvidence};

use super::{Checked, Checker, Users};
use crate::definition::{Device, Environment, Facts, Process, Readable, Use};
use crate::format::{ClaimEntry, EnvironmentEntry, HostEntry, Index, ProcEntry, ProcessEntry};
use crate::pattern::{Pattern, Window};

/// The shells that environments without `pids` are given start here: above what Linux gives out
/// (`pid_max` is at most 4194304), so that no real process is taken for one.
const FIRST_SHELL_PID: u32 = 5_000_000;

impl Checker<'_> {
    pub(super) fn environments(
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
                self.unique(&mut attached, wanted, index.referenced, || format!("device {wanted}"))?;
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
                lease_seconds: entry.lease.map(|lease| lease.0),
                devices: indices,
                pids: entry.pids.clone().unwrap_or_else(|| vec![shell]),
                kernel_ids: entry.kernel_ids.clone(),
                window: self.window(entry.during.as_ref())?,
            });
        }
        Ok(environments)
    }

    pub(super) fn processes(
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
            self.unique(&mut pids, pid, entry.pid.referenced, || format!("pid {pid}"))?;
            let mut indices = HashSet::new();
            let mut uses = Vec::new();
            for entry_use in &entry.devices {
                let Index(index) = entry_use.index.value;
                self.device_exists(&entry_use.index, devices)?;
                if index.mig.is_none() && !devices[index.gpu as usize].mig.is_empty() {
                    let message = format!("device {index} is split into MIG devices: name one, such as \"{index}:0\"");
                    return self.refuse(entry_use.index.referenced, message);
                }
                self.unique(&mut indices, index, entry_use.index.referenced, || format!("device {index}"))?;
                // A process that uses a device holds memory of the device.
                const LEAST_BYTES: u64 = 1 << 20;
                uses.push(Use {
                    index,
                    process_type: entry.process_type.unwrap_or(ProcessType::Compute),
                    memory_bytes: entry_use.memory.map_or(LEAST_BYTES, |memory| memory.0),
                    utilization: entry_use.utilization.clone().unwrap_or(Pattern::Constant(0.0)),
                    scale: 1.0,
                });
            }
            let environment = self.environment(entry, environments.unwrap_or_default())?;
            let window = match (&entry.during, environment) {
                (None, Some(environment)) => environment.window,
                (during, _) => self.window(during.as_ref())?,
            };
            processes.push(Process {
                pid,
                facts: self.facts(entry, users, environment, &host.processes)?,
                uses,
                window,
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

    fn environment<'e>(
        &self,
        entry: &ProcessEntry,
        environments: &'e [Environment],
    ) -> Checked<Option<&'e Environment>> {
        let Some(eid) = &entry.environment else {
            return Ok(None);
        };
        match environments.iter().find(|e| e.eid == eid.value) {
            Some(environment) => Ok(Some(environment)),
            None => self.refuse(eid.referenced, format!("there is no environment {} on this host", eid.value)),
        }
    }

    /// The facts of a simulated process; a real one, which has no user, must have none.
    fn facts(
        &self,
        entry: &ProcessEntry,
        users: &Users<'_>,
        environment: Option<&Environment>,
        processes: &[ProcessEntry],
    ) -> Checked<Option<Facts>> {
        let Some(user) = &entry.user else {
            let real = "a process without user is a real one: its facts come from /proc";
            let given = [
                entry.comm.as_ref().map(|given| given.referenced),
                entry.real_user.as_ref().map(|given| given.referenced),
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
        let claim = match entry.claim.as_ref().map(|claim| &claim.value) {
            None => environment.map_or(Claim::Absent, |e| Claim::Named(e.eid.clone())),
            Some(ClaimEntry::None) => Claim::Absent,
            Some(ClaimEntry::Named(eid)) => Claim::Named(eid.clone()),
            Some(ClaimEntry::Unreadable) => Claim::Missing(MissingEvidence::EnvironUnreadable),
            Some(ClaimEntry::Empty) => Claim::Missing(MissingEvidence::EnvironEmpty),
            Some(ClaimEntry::Overwritten) => Claim::Missing(MissingEvidence::EnvironOverwritten),
            Some(ClaimEntry::Zombie) => Claim::Missing(MissingEvidence::Zombie),
        };
        let comes_and_goes = entry.during.is_some() || environment.is_some_and(|e| e.window != Window::ALWAYS);
        let simulated = |pid: u32| {
            pid >= FIRST_SHELL_PID || processes.iter().any(|process| process.pid.value == pid && process.user.is_some())
        };
        let parent = match &entry.parent {
            Some(parent) if parent.value != 1 && !simulated(parent.value) => {
                return self.refuse(
                    parent.referenced,
                    "a simulated process descends from simulated ones: name one of them, or 1",
                );
            }
            Some(parent) => parent.value,
            None => environment
                .and_then(|e| e.pids.iter().copied().find(|pid| simulated(*pid)))
                .filter(|member| *member != entry.pid.value)
                .unwrap_or(1),
        };
        Ok(Some(Facts {
            uid: self.uid(user, users)?,
            real_uid: self.uid(entry.real_user.as_ref().unwrap_or(user), users)?,
            comm: entry.comm.as_ref().map_or_else(|| "python3".to_owned(), |comm| comm.value.clone()),
            container_id: entry.container_id.as_ref().map(|id| id.value.clone()),
            parent,
            claim,
            started_milliseconds: match (&entry.started, comes_and_goes) {
                (None, true) => None,
                (started, _) => Some(self.moment(started.as_ref().map(|started| started.value))),
            },
            readable: match entry.proc.as_ref().map(|proc| proc.value) {
                None => Readable::Yes,
                Some(ProcEntry::Unreadable) => Readable::No,
                Some(ProcEntry::Vanished) => Readable::Vanished,
            },
        }))
    }
}

/// The shell of an environment whose members were not given.
fn shell(pid: u32, environment: &Environment) -> Process {
    Process {
        pid,
        facts: Some(Facts {
            uid: environment.uid,
            real_uid: environment.uid,
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
