//! From the file as written to a scenario that holds together.

mod devices;
mod processes;

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

use genv_core::model::DeviceIndex;
use genv_core::yaml::{self, Located, Place};

use super::definition::{Device, Host, HostFault, Process, Scenario, WrongAnswer, WrongText};
use super::format::{DuringEntry, File, HostEntry, HostFaultEntry, Index, Moment, Span};
use super::nvml::NvmlError;
use super::pattern::{Window, peak_together};

/// 2026-01-01T00:00:00Z: a fixed default, so that two programs agree without agreeing on anything.
const DEFAULT_EPOCH_MILLISECONDS: i64 = 1_767_225_600_000;

/// Checks a scenario that was read from `text`.
pub(super) fn scenario(
    source_name: &str,
    text: &str,
    machine_name: &str,
    file: &File,
) -> Result<Scenario, yaml::Error> {
    Checker { source_name, text, machine_name, epoch: file.epoch.map_or(DEFAULT_EPOCH_MILLISECONDS, |epoch| epoch.0) }
        .scenario(file)
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
        if seen.insert(value) { Ok(()) } else { self.refuse(place, format!("{} is there twice", what())) }
    }

    fn scenario(&self, file: &File) -> Checked<Scenario> {
        if file.version.value != 1 {
            let message = format!("version {} is not known: this program reads version 1", file.version.value);
            return self.refuse(file.version.referenced, message);
        }
        let mut uids = HashSet::new();
        for uid in file.users.values() {
            self.unique(&mut uids, uid.value, uid.referenced, || format!("uid {}", uid.value))?;
        }
        let users: Users<'_> = file.users.iter().map(|(name, uid)| (name.as_str(), uid.value)).collect();
        let mut hosts: Vec<Host> = Vec::new();
        for entry in &file.hosts {
            let host = self.host(entry, &users)?;
            if hosts.iter().any(|other| other.name == host.name) {
                let message = format!("host {} is there twice: give each its own name", host.name);
                return Err(match &entry.name {
                    Some(name) => yaml::Error::at(self.source_name, self.text, name.referenced, message),
                    None => yaml::Error::whole(self.source_name, message),
                });
            }
            hosts.push(host);
        }
        Ok(Scenario { hosts, users: file.users.iter().map(|(name, uid)| (uid.value, name.clone())).collect() })
    }

    fn host(&self, entry: &HostEntry, users: &Users<'_>) -> Checked<Host> {
        let name = match &entry.name {
            Some(name) if name.value.is_empty() => {
                return self.refuse(name.referenced, "the name is empty");
            }
            // Labels of metrics have the same sign in place of most of these, so that two names could become one.
            Some(name) if name.value.contains(char::is_control) => {
                return self.refuse(name.referenced, "the name has a control character: leave it out");
            }
            Some(name) => name.value.clone(),
            None => self.machine_name.to_owned(),
        };
        let mut devices = self.devices(&name, &entry.devices)?;
        let environments =
            entry.environments.as_ref().map(|entries| self.environments(entries, users, &devices)).transpose()?;
        let mut processes = self.processes(entry, users, environments.as_deref(), &devices)?;
        fit(&mut devices, &mut processes);
        let faults = entry.faults.iter().map(|fault| self.host_fault(fault)).collect::<Checked<_>>()?;
        Ok(Host {
            name,
            named: entry.name.is_some(),
            epoch_milliseconds: self.epoch,
            driver_version: entry.driver_version.clone().unwrap_or_else(|| "550.163.01".to_owned()),
            cuda_version: entry.cuda_version.map_or((12, 4), |version| version.0),
            devices,
            environments,
            by_pid: processes.iter().enumerate().map(|(position, process)| (process.pid, position)).collect(),
            processes,
            faults,
        })
    }

    fn host_fault(&self, entry: &Located<HostFaultEntry>) -> Checked<(Window, HostFault)> {
        let window = self.window(entry.value.during.as_ref())?;
        let fault = entry.value.clone();
        Ok((
            window,
            match (fault.init, fault.hang, fault.reload, fault.insufficient_size, fault.wrong) {
                (Some(error), None, None, None, None) => HostFault::Init(error),
                (None, Some(calls), None, None, None) => HostFault::Hang(calls),
                (None, None, Some(generation), None, None) => HostFault::Reload(generation.into()),
                (None, None, None, Some(more), None) => HostFault::InsufficientSize(more),
                (None, None, None, None, Some(calls)) => HostFault::Wrong(
                    calls,
                    self.wrong_answer(entry.referenced, (fault.error, fault.number, fault.count, fault.text))?,
                ),
                _ => {
                    return self.refuse(
                        entry.referenced,
                        "a fault of a host is one of init, hang, reload, insufficient_size and wrong",
                    );
                }
            },
        ))
    }

    fn wrong_answer(
        &self,
        referenced: Place,
        answer: (Option<NvmlError>, Option<u64>, Option<u32>, Option<WrongText>),
    ) -> Checked<WrongAnswer> {
        match answer {
            (Some(error), None, None, None) => Ok(WrongAnswer::Error(error)),
            (None, Some(number), None, None) => Ok(WrongAnswer::Number(number)),
            (None, None, Some(count), None) => Ok(WrongAnswer::Count(count)),
            (None, None, None, Some(text)) => Ok(WrongAnswer::Text(text)),
            _ => self.refuse(referenced, "a wrong answer is one of error, number, count and text"),
        }
    }

    fn window(&self, entry: Option<&Located<DuringEntry>>) -> Checked<Window> {
        let Some(entry) = entry else {
            return Ok(Window::ALWAYS);
        };
        let seconds = |span: Option<Span>| span.map(|span| span.0);
        let window = Window {
            every: seconds(entry.value.every),
            from: seconds(entry.value.from).unwrap_or(0.0),
            until: seconds(entry.value.until),
        };
        let end = match (window.until, window.every) {
            (Some(until), Some(every)) if until > every => {
                return self.refuse(entry.referenced, "until is beyond every, where the next cycle begins");
            }
            (until, every) => until.or(every),
        };
        if end.is_some_and(|end| end <= window.from) {
            return self.refuse(entry.referenced, "it ends before it begins: until must be after from");
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
            Some(mig) if usize::from(mig) >= device.mig.len() => {
                let parts = device.mig.len();
                let message = format!("there is no MIG device {gpu}:{mig}: device {gpu} has {parts}");
                self.refuse(index.referenced, message)
            }
            _ => Ok(()),
        }
    }

    fn uid(&self, name: &Located<String>, users: &Users<'_>) -> Checked<u32> {
        match users.get(name.value.as_str()) {
            Some(uid) => Ok(*uid),
            None => {
                self.refuse(name.referenced, format!("there is no user {}: add it to users, with its uid", name.value))
            }
        }
    }

    /// Unix time in milliseconds; the epoch by default.
    fn moment(&self, moment: Option<Moment>) -> i64 {
        match moment {
            None => self.epoch,
            Some(Moment::Absolute(time)) => time.0,
            #[expect(clippy::cast_possible_truncation, reason = "durations are whole milliseconds")]
            Some(Moment::SecondsBeforeEpoch(seconds)) => self.epoch - (seconds * 1000.0) as i64,
        }
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
