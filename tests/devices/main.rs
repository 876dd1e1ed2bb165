//! Devices and processes as drivers and the kernel show them, whole and at fault.

mod attribution;
mod faults;
mod nvidia_smi;
mod nvml_source;
mod reader;
mod recorded;
