//! `genv-enforcer run --host` over the real sshd: rules here, real processes and their ends on machines of their own.
//!
//! Each machine is a namespace of pids, which only root can make.

mod endings;
mod lab;
mod rules;
