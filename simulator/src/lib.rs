//! Simulated hosts: a scenario file describes their devices, environments and processes over time.
//!
//! One engine serves the demo, the tests and the simulated NVML library. `docs/scenario.md` explains the file.
//!
//! What a scenario shows is a pure function of the scenario and of the time that the caller passes in. [`SourceOptions`]
//! chooses the source of a program: this machine or a scenario.

mod check;
mod choose;
mod definition;
mod engine;
mod format;
mod nvml;
mod pattern;
mod sources;
#[cfg(test)]
mod tests;
mod view;

pub use choose::{GpuSourceKind, SourceError, SourceOptions};
pub use definition::{
    Calls, Device, DeviceFault, Environment, Facts, Host, HostFault, MigDevice, Process, Readable, Scenario, Use,
    WrongAnswer, WrongText, Xid,
};
pub use engine::{Engine, ScenarioError, WrittenScenario};
pub use nvml::{Measurement, NvmlError, ThrottleReason};
pub use pattern::{Level, Pattern, Window};
pub use sources::{RealSources, sources};
pub use view::{DeviceAt, DeviceProcess, HostAt, Measured, ProcessAt, percent};
