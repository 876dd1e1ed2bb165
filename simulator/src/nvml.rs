//! Names of NVML that scenarios use.

use serde::{Deserialize, Serialize};

/// An answer that a device can be made to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// `nvmlDeviceGetName`.
    Name,
    /// `nvmlDeviceGetMinorNumber`.
    Minor,
    /// `nvmlDeviceGetUtilizationRates`: GPU and memory controller.
    Utilization,
    /// `nvmlDeviceGetEncoderUtilization`.
    Encoder,
    /// `nvmlDeviceGetDecoderUtilization`.
    Decoder,
    /// `nvmlDeviceGetMemoryInfo` and `_v2`.
    Memory,
    /// `nvmlDeviceGetMemoryInfo_v2` alone, as before driver 510: memory is known, the reserved part is not.
    MemoryReserved,
    /// `nvmlDeviceGetTemperature`.
    Temperature,
    /// `nvmlDeviceGetTemperatureThreshold`.
    TemperatureLimits,
    /// `nvmlDeviceGetPowerUsage`.
    Power,
    /// `nvmlDeviceGetEnforcedPowerLimit`.
    PowerLimit,
    /// `nvmlDeviceGetTotalEnergyConsumption`.
    Energy,
    /// `nvmlDeviceGetClockInfo`.
    Clocks,
    /// `nvmlDeviceGetNumFans`, `nvmlDeviceGetFanSpeed_v2`.
    Fans,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons`.
    Throttled,
    /// `nvmlDeviceGetTotalEccErrors`.
    Ecc,
    /// `nvmlDeviceGetPcieReplayCounter`.
    PcieReplays,
    /// `nvmlDeviceGetComputeRunningProcesses`, `nvmlDeviceGetGraphicsRunningProcesses`.
    Processes,
    /// Their `usedGpuMemory`, which becomes `NVML_VALUE_NOT_AVAILABLE`.
    ProcessMemory,
    /// `nvmlDeviceGetProcessUtilization`.
    ProcessUtilization,
    /// `nvmlDeviceRegisterEvents` for XID errors.
    XidEvents,
}

impl Measurement {
    /// Every one.
    pub const ALL: [Self; 21] = [
        Self::Name,
        Self::Minor,
        Self::Utilization,
        Self::Encoder,
        Self::Decoder,
        Self::Memory,
        Self::MemoryReserved,
        Self::Temperature,
        Self::TemperatureLimits,
        Self::Power,
        Self::PowerLimit,
        Self::Energy,
        Self::Clocks,
        Self::Fans,
        Self::Throttled,
        Self::Ecc,
        Self::PcieReplays,
        Self::Processes,
        Self::ProcessMemory,
        Self::ProcessUtilization,
        Self::XidEvents,
    ];

    /// Whether a MIG device can answer it; the others concern whole GPUs.
    pub(super) const fn of_mig_devices(self) -> bool {
        matches!(self, Self::Name | Self::Memory | Self::MemoryReserved | Self::Processes | Self::ProcessMemory)
    }

    /// Whether a GPU that is split into MIG devices has the value itself: the driver does not report
    /// utilization of such a GPU or of its processes (NVML's reference, `nvmlDeviceGetUtilizationRates`).
    pub(super) const fn of_mig_parents(self) -> bool {
        !matches!(self, Self::Utilization | Self::Encoder | Self::Decoder | Self::ProcessUtilization)
    }
}

macro_rules! nvml_errors {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// `nvmlReturn_t` other than success, with NVML's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u32)]
        pub enum NvmlError {
            $(#[doc = $text] $name = $code,)*
        }

        impl NvmlError {
            /// The number in `nvmlReturn_t`.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// A sentence, as `nvmlErrorString` gives.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

nvml_errors! {
    Uninitialized = 1, "NVML was not initialized";
    InvalidArgument = 2, "an argument is invalid";
    NotSupported = 3, "not supported";
    NoPermission = 4, "no permission";
    NotFound = 6, "not found";
    InsufficientSize = 7, "insufficient size";
    InsufficientPower = 8, "external power cables are not attached";
    DriverNotLoaded = 9, "the NVIDIA driver is not loaded";
    Timeout = 10, "timeout";
    IrqIssue = 11, "the kernel found an interrupt issue";
    LibraryNotFound = 12, "the NVML library was not found";
    FunctionNotFound = 13, "function not found";
    CorruptedInforom = 14, "the infoROM is corrupted";
    GpuIsLost = 15, "the GPU is lost";
    ResetRequired = 16, "the GPU requires a reset";
    OperatingSystem = 17, "the operating system blocked the request";
    LibRmVersionMismatch = 18, "driver and library versions do not match";
    InUse = 19, "in use by another client";
    Memory = 20, "insufficient memory";
    NoData = 21, "no data";
    InsufficientResources = 23, "insufficient resources";
    Unknown = 999, "unknown error";
}

/// Why clocks are held back: bits of `nvmlDeviceGetCurrentClocksThrottleReasons`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleReason {
    /// `nvmlClocksThrottleReasonApplicationsClocksSetting`.
    ApplicationsClocksSetting,
    /// `nvmlClocksThrottleReasonSwPowerCap`.
    SwPowerCap,
    /// `nvmlClocksThrottleReasonHwSlowdown`.
    HwSlowdown,
    /// `nvmlClocksThrottleReasonSyncBoost`.
    SyncBoost,
    /// `nvmlClocksThrottleReasonSwThermalSlowdown`.
    SwThermalSlowdown,
    /// `nvmlClocksThrottleReasonHwThermalSlowdown`.
    HwThermalSlowdown,
    /// `nvmlClocksThrottleReasonHwPowerBrakeSlowdown`.
    HwPowerBrakeSlowdown,
    /// `nvmlClocksThrottleReasonDisplayClockSetting`.
    DisplayClockSetting,
}

impl ThrottleReason {
    /// `nvmlClocksThrottleReasonGpuIdle`: the bit of a device that has nothing to do.
    pub const IDLE_BIT: u64 = 0x1;

    /// Every reason but idleness, which is no throttle.
    pub const ALL: [Self; 8] = [
        Self::ApplicationsClocksSetting,
        Self::SwPowerCap,
        Self::HwSlowdown,
        Self::SyncBoost,
        Self::SwThermalSlowdown,
        Self::HwThermalSlowdown,
        Self::HwPowerBrakeSlowdown,
        Self::DisplayClockSetting,
    ];

    /// Its bit.
    pub const fn bit(self) -> u64 {
        match self {
            Self::ApplicationsClocksSetting => 0x2,
            Self::SwPowerCap => 0x4,
            Self::HwSlowdown => 0x8,
            Self::SyncBoost => 0x10,
            Self::SwThermalSlowdown => 0x20,
            Self::HwThermalSlowdown => 0x40,
            Self::HwPowerBrakeSlowdown => 0x80,
            Self::DisplayClockSetting => 0x100,
        }
    }

    /// Its name in snapshots and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ApplicationsClocksSetting => "applications_clocks_setting",
            Self::SwPowerCap => "sw_power_cap",
            Self::HwSlowdown => "hw_slowdown",
            Self::SyncBoost => "sync_boost",
            Self::SwThermalSlowdown => "sw_thermal_slowdown",
            Self::HwThermalSlowdown => "hw_thermal_slowdown",
            Self::HwPowerBrakeSlowdown => "hw_power_brake_slowdown",
            Self::DisplayClockSetting => "display_clock_setting",
        }
    }
}
