//! Simulated hosts: a scenario file tells what their devices, environments and processes do over time.
//!
//! One engine serves the demo, the tests and the simulated NVML library. `docs/scenario.md` explains the file.
//!
//! Everything is a pure function of the scenario and of the time that the caller passes in.

mod check;
mod definition;
mod engine;
mod format;
mod nvml;
mod pattern;
mod sources;
mod view;

pub use definition::{
    Calls, Device, DeviceFault, Environment, Facts, Host, HostFault, MigDevice, Process, Readable, Scenario, Use,
    WrongAnswer, WrongText, Xid,
};
#[cfg(test)]
mod tests;

pub use engine::{Engine, ScenarioError, WrittenScenario};
pub use nvml::{Measurement, NvmlError, ThrottleReason};
pub use pattern::{Level, Pattern, Window};
pub use sources::{Clock, RealSources, sources};
pub use view::{DeviceAt, DeviceProcess, HostAt, Measured, ProcessAt, percent};
