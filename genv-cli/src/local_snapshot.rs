//! What is true on this machine now, as far as its GPUs tell in time.

use std::time::Duration;

use anyhow::Context as _;
use genv_core::collect::once;
use genv_core::model::Snapshot;
use genv_simulator::SourceOptions;

/// One snapshot. GPUs are waited for so long at most; without them it tells why in its collector `gpu`.
///
/// # Errors
/// A variable has a wrong value, or a thread cannot be started.
pub(crate) fn take(patience: Duration) -> anyhow::Result<Snapshot> {
    let options = SourceOptions::default().or_from_environment()?;
    // Of a scenario's hosts the first is this machine.
    let host = options.open()?.into_iter().take(1).collect();
    let publication = once(host, patience).context("cannot ask this machine")?;
    let host = publication.hosts.first();
    let snapshot = host.and_then(|host| host.snapshot.clone());
    let snapshot = snapshot.context("cannot ask this machine: nothing answers")?;
    Ok(Snapshot::clone(&snapshot))
}

/// Why a collector of a snapshot told nothing; none: it did.
pub(crate) fn silence(snapshot: &Snapshot, collector: &str) -> Option<String> {
    let status = snapshot.collectors.get(collector)?;
    if status.success {
        return None;
    }
    let unknown = || "it gives no reason".to_owned();
    Some(status.error.clone().unwrap_or_else(unknown))
}
