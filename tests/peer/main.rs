//! The real genv 1.4.3 compared with this project, and hosts behind the real sshd.

mod documented;
mod exporter;
mod queries;
mod remote;
mod remote_commands;
mod remote_enforce;
mod remote_hosts;
mod remote_ssh;
mod state;
