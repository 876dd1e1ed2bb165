//! The GPUs of a host: one trait, and the sources behind it.

pub mod bounds;
mod current_call;
pub mod nvml;
pub mod reader;

use serde::{Deserialize, Serialize};

use crate::model::{DeviceIndex, DeviceMeasurements, ProcessType, Withheld};

/// A source of readings of all devices of a host.
///
/// A source lives on a thread of its own, because a call into a driver may hang.
pub trait GpuSource: Send {
    /// Reads every device once. A value that a device cannot report is absent, and a lost device is reported as lost.
    /// Only a failure of all devices is an error: then the source has released the driver, and the next call opens it
    /// again.
    ///
    /// # Errors
    /// The driver cannot be reached at all: see [`GpuError`].
    fn sample(&mut self) -> Result<GpuSample, GpuError>;

    /// Whether the devices are simulated rather than read from a driver.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// MIG devices that a GPU has at most, and the end of the ids of their instances: far more than any product, so that a
/// wrong count of a driver costs little. A driver that reports more is not believed.
pub const MOST_MIG_DEVICES: u32 = 64;

/// Utilization, 0–1, that a device shows at most while no process uses it.
pub(crate) const UNUSED_RATIO: f64 = 0.05;

/// Why no device of a host could be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The NVML library could not be loaded: no driver is installed, or the path is wrong.
    #[error(
        "cannot load the NVML library {library}: {reason}; install the NVIDIA driver, or name the library with GENV_NVML_LIBRARY"
    )]
    LibraryNotLoaded {
        /// Path or soname that was tried.
        library: String,
        /// The error of the loader.
        reason: String,
    },
    /// NVIDIA's kernel module is not loaded, so that the library was not called.
    #[error(
        "NVIDIA's kernel module is not loaded (no /proc/driver/nvidia/version): load it with 'nvidia-smi', or as root with 'modprobe nvidia'; where /proc \
         hides it, name the library with GENV_NVML_LIBRARY"
    )]
    NoModule,
    /// The library is there, the driver does not answer: not loaded, mismatched, lost, no permission.
    #[error("{call} failed: {reason}")]
    Driver {
        /// NVML call that failed.
        call: &'static str,
        /// The error of NVML.
        reason: String,
    },
    /// A simulated source cannot be used.
    #[error("{0}")]
    Simulated(String),
    /// A process that reads the GPUs could not be started, ended, or answered with this error.
    #[error("{0}")]
    Reader(String),
    /// The driver was asked before, and did not answer. The text is the reason.
    #[error("{0}")]
    Unanswered(String),
}

/// Which GPUs to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gpus {
    /// All but these, by index.
    AllBut(Vec<u32>),
    /// These alone.
    Only(Vec<u32>),
}

impl Gpus {
    pub(crate) const fn all() -> Self {
        Self::AllBut(Vec::new())
    }

    fn include(&self, index: u32) -> bool {
        match self {
            Self::AllBut(left_out) => !left_out.contains(&index),
            Self::Only(gpus) => gpus.contains(&index),
        }
    }
}

/// All devices of a host, read once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// `nvmlSystemGetDriverVersion`.
    pub driver_version: Option<String>,
    /// The number of times that the driver was opened. Facts from another session may not hold in this one.
    pub session: u64,
    /// Whether the driver serves this machine alone, so that no process of another machine can use its GPUs: each GPU
    /// tells by `nvmlDeviceGetVirtualizationMode` that it is neither in a vGPU guest nor in a host of vGPUs, and the
    /// machine is not WSL.
    pub serves_one_machine: bool,
    /// Whole GPUs and MIG devices, by index. A GPU that is split into MIG devices is listed before them.
    pub devices: Vec<DeviceSample>,
    /// XID errors that happened since the last sample.
    pub xid_events: Vec<XidEvent>,
    /// The values that the devices have and that the sample lacks, each with its failed call or its contradiction.
    #[serde(skip)]
    pub withheld: Vec<Withheld>,
}

/// One device, read once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Which device.
    pub index: DeviceIndex,
    /// `nvmlDeviceGetUUID`.
    pub uuid: String,
    /// The device does not answer any more (`NVML_ERROR_GPU_IS_LOST`, `NVML_ERROR_RESET_REQUIRED`): nothing else is
    /// filled.
    pub lost: bool,
    /// `nvmlDeviceGetName`.
    pub name: Option<String>,
    /// `nvmlDeviceGetMinorNumber`.
    pub minor: Option<u32>,
    /// MIG profile such as `3g.40gb`; only of a MIG device.
    pub profile: Option<String>,
    /// `nvmlDeviceGetGpuInstanceId`; only of a MIG device. See [`DeviceSample::instance`].
    pub gpu_instance: Option<u32>,
    /// Whether this whole GPU is split into MIG devices.
    pub mig_parent: bool,
    /// Whether this whole GPU is in MIG mode and has no MIG devices: no CUDA program runs on it.
    pub mig_unsplit: bool,
    /// The measurements.
    pub measurements: DeviceMeasurements,
    /// Processes that use the device, distinct by pid. Empty for a MIG parent: its MIG devices list the processes.
    /// Absent: the driver listed none, and one of its lists could not be read.
    pub processes: Option<Vec<GpuProcess>>,
    /// Whether further processes are possible: one of the driver's lists could not be read, or other readings
    /// contradict the lists.
    pub processes_incomplete: bool,
    /// Whether the driver answered both its list of compute processes and its list of graphics processes. A list that it
    /// does not support counts as empty, and proves nothing.
    pub lists_answered: bool,
}

impl DeviceSample {
    /// Whether all processes on the device are known, so that a process that is not listed does not use the device.
    pub const fn processes_known(&self) -> bool {
        self.processes.is_some() && !self.processes_incomplete
    }

    /// The GPU instance of a MIG device: the GPU, and the id of the instance. The MIG devices of one GPU instance are
    /// its compute instances. Each has processes of its own, and all have the memory of the GPU instance.
    pub fn instance(&self) -> Option<(u32, u32)> {
        self.gpu_instance.map(|id| (self.index.gpu, id))
    }

    /// A device that does not answer any more.
    pub fn lost(index: DeviceIndex, uuid: String) -> Self {
        Self {
            index,
            uuid,
            lost: true,
            name: None,
            minor: None,
            profile: None,
            gpu_instance: None,
            mig_parent: false,
            mig_unsplit: false,
            measurements: DeviceMeasurements::default(),
            processes: None,
            processes_incomplete: false,
            lists_answered: false,
        }
    }
}

/// One process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// The list of NVML that has the process.
    pub process_type: ProcessType,
    /// `usedGpuMemory`; absent for `NVML_VALUE_NOT_AVAILABLE`.
    pub memory_used_bytes: Option<u64>,
    /// `smUtil` of `nvmlDeviceGetProcessUtilization`, 0–1, for the time since the last sample and at least for the last
    /// second; the first time, and after a longer gap, for the time that the driver keeps samples. 0 if the call works
    /// and has no sample of this process. Absent if the call fails, or if the sample of the process is not a share or
    /// does not belong to the requested time. Without a sample also absent if the device may be at work and no sample
    /// shows which of the listed processes works.
    pub utilization_ratio: Option<f64>,
}

/// One XID error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct XidEvent {
    /// Whole GPU on which it happened.
    pub index: DeviceIndex,
    /// NVIDIA's XID code.
    pub xid: u64,
    /// When it was received, Unix time.
    pub timestamp_seconds: f64,
}
