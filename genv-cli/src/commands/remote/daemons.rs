//! `genv remote monitor` and `genv remote enforce`, which become genv's daemons.

use super::answers::ask;
use super::hosts::HostFlags;
use crate::commands::enforce::Enforce;
use crate::commands::monitor::Monitor;

/// Serves the metrics of all hosts.
pub(super) fn monitor(hosts: &HostFlags, monitor: Monitor) -> anyhow::Result<()> {
    check(hosts)?;
    monitor.run_of(hosts.of_daemons())
}

/// Enforces rules on all hosts.
pub(super) fn enforce(hosts: &HostFlags, enforce: Enforce) -> anyhow::Result<()> {
    // The daemon tells its flags, whichever hosts are meant.
    if !enforce.asks_for_help() {
        check(hosts)?;
    }
    enforce.run_of(hosts.of_daemons())
}

/// What is wrong with the list is said before a daemon is started, and who wants no host to fail is told of one. A daemon
/// that runs goes on without a host that fails.
fn check(hosts: &HostFlags) -> anyhow::Result<()> {
    hosts.list()?;
    if hosts.exit_on_error {
        ask(hosts, &[])?;
    }
    Ok(())
}
