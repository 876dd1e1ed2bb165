//! The transport of `genv-remote` against the real sshd: who is let in, whose key is trusted, and what goes wrong.

mod commands;
mod faults;
mod host_keys;
mod login;
mod sudo;
mod support;
mod ways;
