//! Tests of whole programs against real Prometheus, real /proc, real nvidia-smi and real genv 1.4.3.

pub mod nvml_sim;
pub mod tools;
