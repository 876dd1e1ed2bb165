//! The scenario file as it is written; `docs/scenario.md` explains every key.

mod values;

use std::collections::BTreeMap;

use genv_core::model::ProcessType;
use genv_core::yaml::Located;
use serde::Deserialize;

use super::definition::{Calls, WrongText};
use super::nvml::{Measurement, NvmlError, ThrottleReason};
use super::pattern::{Level, Pattern};

pub(super) use values::{Amount, CudaVersion, Index, Moment, Span, Timestamp};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) version: Located<u32>,
    pub(super) epoch: Option<Timestamp>,
    #[serde(default)]
    pub(super) users: BTreeMap<String, Located<u32>>,
    #[serde(default)]
    pub(super) hosts: Vec<HostEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostEntry {
    pub(super) name: Option<Located<String>>,
    pub(super) driver_version: Option<String>,
    pub(super) cuda_version: Option<CudaVersion>,
    #[serde(default)]
    pub(super) devices: Vec<DeviceEntry>,
    pub(super) environments: Option<Vec<EnvironmentEntry>>,
    #[serde(default)]
    pub(super) processes: Vec<ProcessEntry>,
    #[serde(default)]
    pub(super) faults: Vec<Located<HostFaultEntry>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceEntry {
    pub(super) name: Option<String>,
    pub(super) count: Option<Located<u32>>,
    pub(super) uuid: Option<Located<String>>,
    pub(super) minor: Option<Located<u32>>,
    pub(super) pci_bus_id: Option<Located<String>>,
    pub(super) memory: Option<Amount>,
    pub(super) memory_reserved: Option<Located<Amount>>,
    pub(super) memory_used: Option<Located<Amount>>,
    pub(super) utilization: Option<Pattern>,
    pub(super) memory_controller: Option<Pattern>,
    pub(super) encoder: Option<Pattern>,
    pub(super) decoder: Option<Pattern>,
    pub(super) temperature: Option<Level>,
    #[serde(default)]
    pub(super) temperature_limits: TemperatureLimits,
    pub(super) power: Option<Located<Level>>,
    pub(super) power_limit: Option<f64>,
    #[serde(default)]
    pub(super) clocks: Clocks,
    #[serde(default)]
    pub(super) fans: Vec<Level>,
    #[serde(default)]
    pub(super) throttled: Vec<ThrottleReason>,
    pub(super) ecc: Option<Ecc>,
    #[serde(default)]
    pub(super) pcie_replays: u32,
    #[serde(default)]
    pub(super) mig: Vec<Located<MigEntry>>,
    #[serde(default)]
    pub(super) xid: Vec<Located<XidEntry>>,
    #[serde(default)]
    pub(super) faults: Vec<Located<DeviceFaultEntry>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemperatureLimits {
    pub(super) shutdown: Option<u32>,
    pub(super) slowdown: Option<u32>,
    pub(super) memory_max: Option<u32>,
    pub(super) gpu_max: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clocks {
    pub(super) graphics: Option<u32>,
    pub(super) sm: Option<u32>,
    pub(super) memory: Option<u32>,
    pub(super) video: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Ecc {
    pub(super) enabled: Option<bool>,
    pub(super) corrected: u64,
    pub(super) uncorrected: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MigEntry {
    pub(super) profile: String,
    pub(super) memory: Amount,
    pub(super) uuid: Option<Located<String>>,
    pub(super) gpu_instance: Option<Located<u32>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct XidEntry {
    pub(super) xid: u64,
    pub(super) at: Option<Span>,
    pub(super) every: Option<Span>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnvironmentEntry {
    pub(super) eid: Located<String>,
    pub(super) user: Located<String>,
    pub(super) name: Option<String>,
    pub(super) gpus: Option<u32>,
    pub(super) gpu_memory: Option<Amount>,
    pub(super) created: Option<Moment>,
    pub(super) lease: Option<Span>,
    #[serde(default)]
    pub(super) devices: Vec<Located<Index>>,
    pub(super) pids: Option<Vec<u32>>,
    #[serde(default)]
    pub(super) kernel_ids: Vec<String>,
    pub(super) during: Option<Located<DuringEntry>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessEntry {
    pub(super) pid: Located<u32>,
    pub(super) comm: Option<Located<String>>,
    pub(super) user: Option<Located<String>>,
    pub(super) real_user: Option<Located<String>>,
    pub(super) environment: Option<Located<String>>,
    pub(super) claim: Option<Located<ClaimEntry>>,
    pub(super) proc: Option<Located<ProcEntry>>,
    pub(super) container_id: Option<Located<String>>,
    pub(super) parent: Option<Located<u32>>,
    pub(super) started: Option<Located<Moment>>,
    #[serde(rename = "type")]
    pub(super) process_type: Option<ProcessType>,
    #[serde(default)]
    pub(super) devices: Vec<UseEntry>,
    pub(super) during: Option<Located<DuringEntry>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClaimEntry {
    None,
    Unreadable,
    Empty,
    Overwritten,
    Zombie,
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProcEntry {
    Vanished,
    Unreadable,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UseEntry {
    pub(super) index: Located<Index>,
    pub(super) memory: Option<Amount>,
    pub(super) utilization: Option<Pattern>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DuringEntry {
    pub(super) every: Option<Span>,
    pub(super) from: Option<Span>,
    pub(super) until: Option<Span>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFaultEntry {
    pub(super) init: Option<NvmlError>,
    pub(super) hang: Option<Calls>,
    pub(super) reload: Option<u32>,
    pub(super) insufficient_size: Option<u32>,
    pub(super) wrong: Option<Calls>,
    pub(super) error: Option<NvmlError>,
    pub(super) number: Option<u64>,
    pub(super) count: Option<u32>,
    pub(super) text: Option<WrongText>,
    pub(super) during: Option<Located<DuringEntry>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceFaultEntry {
    #[serde(default)]
    pub(super) lost: bool,
    pub(super) hang: Option<Calls>,
    pub(super) not_supported: Option<Vec<Measurement>>,
    pub(super) wrong: Option<Calls>,
    pub(super) error: Option<NvmlError>,
    pub(super) number: Option<u64>,
    pub(super) count: Option<u32>,
    pub(super) text: Option<WrongText>,
    pub(super) during: Option<Located<DuringEntry>>,
}
