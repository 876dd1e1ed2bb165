//! A scenario that was checked: its references resolved and its defaults filled in.

use std::collections::{BTreeMap, HashMap};

use genv_core::model::{DeviceIndex, ProcessType};
use serde::Deserialize;

use super::nvml::{Measurement, NvmlError, ThrottleReason};
use super::pattern::{Level, Pattern, Window};

/// Hosts whose whole behaviour is a function of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Hosts, in the file's order; names are distinct.
    pub hosts: Vec<Host>,
    /// Names by uid.
    pub users: BTreeMap<u32, String>,
}

/// One host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Name: given, or this machine's.
    pub name: String,
    /// Whether the scenario names it.
    pub named: bool,
    /// Scenario time 0, Unix time in milliseconds.
    pub epoch_milliseconds: i64,
    /// `nvmlSystemGetDriverVersion`.
    pub driver_version: String,
    /// `nvmlSystemGetCudaDriverVersion`: major and minor.
    pub cuda_version: (u32, u32),
    /// Whole GPUs, by index.
    pub devices: Vec<Device>,
    /// Environments; absent: those of the machine's real state directory.
    pub environments: Option<Vec<Environment>>,
    /// Processes, by position; others refer to it.
    pub processes: Vec<Process>,
    /// Position in `processes`, by pid.
    pub(super) by_pid: HashMap<u32, usize>,
    /// What goes wrong.
    pub faults: Vec<(Window, HostFault)>,
}

/// One whole GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// `nvmlDeviceGetIndex`.
    pub index: u32,
    /// `nvmlDeviceGetName`.
    pub name: String,
    /// `nvmlDeviceGetUUID`.
    pub uuid: String,
    /// `nvmlDeviceGetMinorNumber`.
    pub minor: u32,
    /// `busId` of `nvmlDeviceGetPciInfo`, such as `00000000:07:00.0`.
    pub pci_bus_id: String,
    /// Memory installed.
    pub memory_bytes: u64,
    /// Memory that the driver holds.
    pub memory_reserved_bytes: u64,
    /// Fixed amount of memory in use; absent: the sum of the processes.
    pub memory_used_bytes: Option<u64>,
    /// Fixed utilization; absent: the sum of the processes.
    pub utilization: Option<Pattern>,
    /// Memory controller; absent: 0.6 of the utilization.
    pub memory_controller: Option<Pattern>,
    /// Video encoder.
    pub encoder: Pattern,
    /// Video decoder.
    pub decoder: Pattern,
    /// °C.
    pub temperature_celsius: Level,
    /// °C by limit: `shutdown`, `slowdown`, `memory_max`, `gpu_max`.
    pub temperature_limits_celsius: BTreeMap<&'static str, u32>,
    /// W.
    pub power_watts: Level,
    /// W.
    pub power_limit_watts: f64,
    /// MHz by clock: `graphics`, `sm`, `memory`, `video`.
    pub clocks_megahertz: BTreeMap<&'static str, u32>,
    /// Speed of each fan, as a share of its maximum.
    pub fan_speed_ratios: Vec<Level>,
    /// Why clocks are held back.
    pub throttled: Vec<ThrottleReason>,
    /// Corrected and uncorrected ECC errors; absent: no ECC memory.
    pub ecc_errors: Option<(u64, u64)>,
    /// `nvmlDeviceGetPcieReplayCounter`.
    pub pcie_replays: u32,
    /// The MIG devices of a split GPU.
    pub mig: Vec<MigDevice>,
    /// XID errors.
    pub xid: Vec<Xid>,
    /// What goes wrong.
    pub faults: Vec<(Window, DeviceFault)>,
    /// Which processes use it or its MIG devices: position in [`Host::processes`], and in its `uses`.
    pub(super) users: Vec<(usize, usize)>,
}

/// One MIG device of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct MigDevice {
    /// Such as `3g.40gb`.
    pub profile: String,
    /// `nvmlDeviceGetUUID`.
    pub uuid: String,
    /// Memory installed.
    pub memory_bytes: u64,
    /// `nvmlDeviceGetGpuInstanceId`. Those with one id are compute instances that share the memory of a GPU instance.
    pub gpu_instance: u32,
    /// `nvmlDeviceGetComputeInstanceId`: 0 is the first of the GPU instance.
    pub compute_instance: u32,
}

impl MigDevice {
    /// Memory in use in its GPU instance without a process. Real drivers show from 9 to 26 MiB, and more in larger ones.
    pub(super) fn empty_bytes(&self) -> u64 {
        const MI: u64 = 1 << 20;
        // 9 MiB for each 16 GiB.
        ((self.memory_bytes >> 34) * 9 * MI).clamp(9 * MI, 26 * MI).min(self.memory_bytes)
    }
}

/// An XID error that happens at a moment, or over and over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xid {
    /// NVIDIA's code.
    pub xid: u64,
    /// Scenario time of the first.
    pub first_seconds: f64,
    /// Seconds to the next; absent: it happens once.
    pub every_seconds: Option<f64>,
}

/// One environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// Environment id.
    pub eid: String,
    /// Owner.
    pub uid: u32,
    /// Owner's name.
    pub username: String,
    /// Configured name.
    pub name: Option<String>,
    /// Configured device count.
    pub gpus: Option<u32>,
    /// Configured memory per device, which its attachments claim.
    pub gpu_memory_bytes: Option<u64>,
    /// When it was activated, Unix time in milliseconds; absent: when its window began.
    pub created_milliseconds: Option<i64>,
    /// The time from its activation to the end of its lease, in seconds; absent without a lease.
    pub lease_seconds: Option<f64>,
    /// The attached GPUs.
    pub devices: Vec<u32>,
    /// Member processes.
    pub pids: Vec<u32>,
    /// Member Jupyter kernels.
    pub kernel_ids: Vec<String>,
    /// When it is there.
    pub window: Window,
}

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// The facts of a simulated process; absent for a real process, whose facts come from `/proc`.
    pub facts: Option<Facts>,
    /// What it uses.
    pub uses: Vec<Use>,
    /// When it is there.
    pub window: Window,
}

/// The facts in `/proc` of a simulated process.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Effective uid.
    pub uid: u32,
    /// Real uid.
    pub real_uid: u32,
    /// Command name.
    pub comm: String,
    /// Container, if in one.
    pub container_id: Option<String>,
    /// Parent's pid.
    pub parent: u32,
    /// The variables of its environ.
    pub claim: genv_core::proc::Claim,
    /// Its start, Unix time in milliseconds; absent: when its window began.
    pub started_milliseconds: Option<i64>,
    /// Whether and how it can be read.
    pub readable: Readable,
}

/// Whether `/proc` shows a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// It does.
    Yes,
    /// `/proc/PID` may not be read.
    No,
    /// It ends just before it is read.
    Vanished,
}

/// A process's use of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Which device; a MIG device rather than its GPU.
    pub index: DeviceIndex,
    /// In which of NVML's lists it is.
    pub process_type: ProcessType,
    /// Used memory of the device.
    pub memory_bytes: u64,
    /// Its utilization, from its own start on.
    pub utilization: Pattern,
    /// The factor of its utilization, so that no device exceeds full utilization.
    pub(super) scale: f64,
}

/// What goes wrong with a whole host.
#[derive(Clone, Debug, PartialEq)]
pub enum HostFault {
    /// `nvmlInit` answers this.
    Init(NvmlError),
    /// Calls do not return.
    Hang(Calls),
    /// Added to the driver's generation.
    Reload(u64),
    /// So many processes more appear between two calls.
    InsufficientSize(u32),
    /// These calls answer wrongly.
    Wrong(Calls, WrongAnswer),
}

/// What goes wrong with one GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceFault {
    /// It does not answer any more.
    Lost,
    /// Calls about it do not return.
    Hang(Calls),
    /// It cannot answer these.
    NotSupported(Vec<Measurement>),
    /// These calls about it answer wrongly.
    Wrong(Calls, WrongAnswer),
}

/// What a call of the simulated NVML library answers instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongAnswer {
    /// This error.
    Error(NvmlError),
    /// This number in the place of every measured number, as far as its type holds it; of a process list the memory
    /// of each process, of utilization samples each share.
    Number(u64),
    /// So many entries of a list, whatever room there is.
    Count(u32),
    /// This in the place of a text.
    Text(WrongText),
}

/// What a driver may write where a text should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrongText {
    /// Nothing.
    Empty,
    /// Bytes that are no UTF-8.
    NotUtf8,
    /// Characters up to the end of the buffer, without the NUL.
    Unterminated,
}

/// Which NVML calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Every one.
    All,
    /// Those with these names; a name without `_v2` or `_v3` at its end means every version.
    Named(Vec<String>),
}

impl Calls {
    /// Whether a call is among them.
    pub(super) fn contain(&self, call: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => {
                let any_version = call.trim_end_matches(|digit: char| digit.is_ascii_digit());
                let any_version = any_version.strip_suffix("_v").unwrap_or(call);
                names.iter().any(|name| name == call || name == any_version)
            }
        }
    }
}
