//! The NVML source, reading the simulated library through the real `nvml-wrapper`.
//!
//! The library is as global to a process as a driver is to a machine: each test runs in a process of its own.

mod devices;
mod driver;
mod older;
mod processes;
pub(crate) mod stage;
pub(crate) mod values;
mod xid;
