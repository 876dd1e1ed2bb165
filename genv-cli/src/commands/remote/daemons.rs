//! `genv remote monitor` and `genv remote enforce`, which start genv's daemons.

use super::hosts::RemoteFlags;
use super::results::fetch_all;
use crate::commands::enforce::Enforce;
use crate::commands::monitor::Monitor;

/// Serves the metrics of all hosts.
pub(super) fn monitor(hosts: &RemoteFlags, monitor: Monitor) -> anyhow::Result<()> {
    check(hosts)?;
    monitor.run_for_hosts(hosts.daemon_flags())
}

/// Enforces rules on all hosts.
pub(super) fn enforce(hosts: &RemoteFlags, enforce: Enforce) -> anyhow::Result<()> {
    // The help of the daemon needs no hosts.
    if !enforce.asks_for_help() {
        check(hosts)?;
    }
    enforce.run_for_hosts(hosts.daemon_flags())
}

/// Checks the list of hosts before the start of a daemon. With `--exit-on-error`, checks each host too: a running daemon
/// continues without a failed host.
fn check(hosts: &RemoteFlags) -> anyhow::Result<()> {
    hosts.hosts.list()?;
    if hosts.exit_on_error {
        fetch_all(hosts, &[])?;
    }
    Ok(())
}
