//! Tests of whole programs against real Prometheus, real /proc, real nvidia-smi and real genv 1.4.3.

#![allow(missing_docs, reason = "a comment says what a name does not, and most names say enough")]

pub mod alertmanager;
pub mod browser;
pub mod changed_user;
pub mod dashboard;
pub mod docker;
pub mod documentation;
pub mod enforcer;
pub mod exporter;
pub mod footprint;
pub mod hanging;
pub mod history;
pub mod http;
pub mod lease;
pub mod local_commands;
pub mod machine;
pub mod metrics;
pub mod nvml_answers;
pub mod nvml_sim;
pub mod own_file_system;
pub mod patience;
pub mod peer;
pub mod process;
pub mod prometheus;
pub mod reserved;
pub mod root;
mod server;
pub mod session;
pub mod shell;
pub mod ssh;
pub mod state;
pub mod terminal;
pub mod tools;
mod victim;
