//! The simulated NVML library as C programs and `nvml-wrapper` see it.

mod driver;
mod events;
mod faults;
mod lifecycle;
mod processes;
mod recorded;
mod values;
