//! A snapshot of this machine for one command.

use std::time::Duration;

use anyhow::Context as _;
use genv_core::collect::once;
use genv_core::model::Snapshot;
use genv_simulator::SourceOptions;

/// Takes a snapshot, and waits at most this long for the GPUs. Without their answer the collector `gpu` has the reason.
pub(crate) fn take(patience: Duration) -> anyhow::Result<Snapshot> {
    let options = SourceOptions::default().or_from_environment()?;
    // The first host of a scenario stands for this machine.
    let host = options.open()?.into_iter().take(1).collect();
    let publication = once(host, patience).context("cannot take a snapshot of this machine")?;
    let host = publication.hosts.first();
    let snapshot = host.and_then(|host| host.snapshot.clone());
    let snapshot = snapshot.context("cannot take a snapshot of this machine: it has no host")?;
    Ok(Snapshot::clone(&snapshot))
}

/// The reason for the failure of a collector; absent if it has succeeded.
pub(crate) fn silence(snapshot: &Snapshot, collector: &str) -> Option<String> {
    let status = snapshot.collectors.get(collector)?;
    if status.success {
        return None;
    }
    let unknown = || "it gives no reason".to_owned();
    Some(status.error.clone().unwrap_or_else(unknown))
}
