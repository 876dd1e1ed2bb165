//! A scenario at one moment: plain numbers, computed on request.

mod device;
mod measured;

use std::time::{SystemTime, UNIX_EPOCH};

use super::definition::{DeviceFault, Environment, Host, HostFault, Process, WrongAnswer};
use super::nvml::NvmlError;
use super::pattern::Window;

pub use device::{DeviceAt, DeviceProcess};
pub use measured::{Measured, percent};

/// Milliseconds of Unix time, negative before 1970.
fn unix_milliseconds(time: SystemTime) -> i64 {
    let whole = |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()),
    }
}

impl Host {
    /// This host at a moment. Moments are whole milliseconds, from the epoch on.
    pub fn at(&self, now: SystemTime) -> HostAt<'_> {
        let since = unix_milliseconds(now).saturating_sub(self.epoch_milliseconds);
        HostAt {
            host: self,
            #[expect(clippy::cast_precision_loss, reason = "milliseconds are exact in 53 bits for 285,000 years")]
            seconds: since.max(0) as f64 / 1000.0,
        }
    }

    /// The process with this pid, there or not.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid).map(|at| &self.processes[*at])
    }
}

/// A host at a moment.
#[derive(Clone, Copy, Debug)]
pub struct HostAt<'a> {
    host: &'a Host,
    seconds: f64,
}

impl<'a> HostAt<'a> {
    /// What does not change.
    pub const fn host(&self) -> &'a Host {
        self.host
    }

    /// Scenario time.
    pub const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The moment, Unix time.
    pub fn timestamp_seconds(&self) -> f64 {
        self.unix(self.seconds)
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds are exact in 53 bits")]
    fn unix(&self, seconds: f64) -> f64 {
        self.host.epoch_milliseconds as f64 / 1000.0 + seconds
    }

    fn faults(&self) -> impl Iterator<Item = &'a HostFault> {
        in_force(&self.host.faults, self.seconds)
    }

    /// What `nvmlInit` answers instead of success.
    pub fn init_error(&self) -> Option<NvmlError> {
        self.faults().find_map(|fault| match fault {
            HostFault::Init(error) => Some(*error),
            _ => None,
        })
    }

    /// Whether an NVML call does not return now, because of the whole host.
    pub fn hangs(&self, call: &str) -> bool {
        self.faults().any(|fault| matches!(fault, HostFault::Hang(calls) if calls.contain(call)))
    }

    /// Whether some NVML call does not return now, of the host or of any device: a sweep over all of them hangs.
    pub(crate) fn sweep_hangs(&self) -> bool {
        self.faults().any(|fault| matches!(fault, HostFault::Hang(_)))
            || self.devices().any(|device| device.faults().any(|fault| matches!(fault, DeviceFault::Hang(_))))
    }

    /// What an NVML call answers wrongly now, because of the whole host.
    pub fn wrong(&self, call: &str) -> Option<WrongAnswer> {
        self.faults().find_map(|fault| match fault {
            HostFault::Wrong(calls, answer) if calls.contain(call) => Some(*answer),
            _ => None,
        })
    }

    /// The driver's generation: when it changes the driver was reloaded, and everything that was opened
    /// before is uninitialized.
    pub fn driver_generation(&self) -> u64 {
        self.faults()
            .map(|fault| match fault {
                HostFault::Reload(generation) => *generation,
                _ => 0,
            })
            .sum()
    }

    /// How many processes more appear between asking for a list's size and for the list.
    pub fn more_processes_between_calls(&self) -> u32 {
        self.faults()
            .map(|fault| match fault {
                HostFault::InsufficientSize(more) => *more,
                _ => 0,
            })
            .sum()
    }

    /// Whole GPUs, by index.
    pub fn devices(&self) -> impl Iterator<Item = DeviceAt<'a>> + use<'a> {
        let at = *self;
        self.host.devices.iter().map(move |device| DeviceAt::new(at, device))
    }

    /// One whole GPU.
    pub fn device(&self, index: u32) -> Option<DeviceAt<'a>> {
        let device = self.host.devices.get(usize::try_from(index).ok()?)?;
        Some(DeviceAt::new(*self, device))
    }

    /// Processes that are there now, real ones included.
    pub fn processes(&self) -> impl Iterator<Item = ProcessAt<'a>> + use<'a> {
        let at = *self;
        self.host.processes.iter().filter_map(move |process| at.present(process))
    }

    /// The process with this pid, if it is there now.
    pub fn process(&self, pid: u32) -> Option<ProcessAt<'a>> {
        self.present(self.host.process(pid)?)
    }

    fn present(&self, process: &'a Process) -> Option<ProcessAt<'a>> {
        let since = process.window.since(self.seconds)?;
        Some(ProcessAt { process, began_timestamp_seconds: self.unix(since) })
    }

    /// Environments that are there now, each with the Unix time of its activation; absent when the machine's
    /// real state tells.
    pub fn environments(&self) -> Option<Vec<(&'a Environment, f64)>> {
        let environments = self.host.environments.as_ref()?;
        Some(
            environments
                .iter()
                .filter_map(|environment| {
                    let since = environment.window.since(self.seconds)?;
                    let created = started(environment.created_milliseconds, self.unix(since));
                    Some((environment, created))
                })
                .collect(),
        )
    }
}

/// A given Unix time in milliseconds, or when a window began.
#[expect(clippy::cast_precision_loss, reason = "milliseconds are exact in 53 bits")]
fn started(given: Option<i64>, began: f64) -> f64 {
    given.map_or(began, |milliseconds| milliseconds as f64 / 1000.0)
}

fn in_force<T>(faults: &[(Window, T)], seconds: f64) -> impl Iterator<Item = &T> {
    faults.iter().filter(move |(window, _)| window.since(seconds).is_some()).map(|(_, fault)| fault)
}

/// A process at a moment at which it is there.
#[derive(Clone, Copy, Debug)]
pub struct ProcessAt<'a> {
    /// What does not change.
    pub process: &'a Process,
    began_timestamp_seconds: f64,
}

impl ProcessAt<'_> {
    /// When it was started, Unix time; meaningless for a real process.
    pub fn started_timestamp_seconds(&self) -> f64 {
        let given = self.process.facts.as_ref();
        started(given.and_then(|facts| facts.started_milliseconds), self.began_timestamp_seconds)
    }
}
