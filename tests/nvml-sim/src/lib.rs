//! A `libnvidia-ml.so` that answers from a scenario file, for tests on machines with no GPU.
//!
//! `GENV_SCENARIO` names the file, whose first host is the machine. The file is read again when it changes. NVML's
//! reference documents the functions; the comments here are about their results.

#![allow(non_snake_case, reason = "the exported functions have NVML's names")]

mod abi;
mod device;
mod driver;
mod events;
mod export_table;
mod identity;
mod library;
mod measurements;
mod mig;
mod processes;
