//! What must not grow while hosts fail all the time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use genv_tests::exporter::Exporter;
use genv_tests::footprint::Footprint;

use crate::remote_hosts::fleet::Fleet;
use crate::remote_hosts::{is_up, wait};

/// What counts as flat: which hosts are being tried again differs, and allocators keep a little.
const FLAT_BYTES: u64 = 4 << 20;
const FLAT_DESCRIPTORS: usize = 8;
const FLAT_THREADS: usize = 4;

/// What it holds most of the time while a host delivers so many snapshots.
fn usual(exporter: &Exporter, host: &str, cycles: usize) -> Result<Footprint> {
    let (mut seen, mut footprints) = (BTreeSet::new(), Vec::new());
    wait(exporter, "the cycles", |scrape| {
        footprints.push(Footprint::of(exporter.pid()));
        let at = scrape.value("genv_snapshot_timestamp_seconds", &[("hostname", host)]);
        seen.insert(at.map_or(0, |at| (at * 1000.0) as u64));
        seen.len() >= cycles
    })?;
    Ok(Footprint::median(&footprints.into_iter().collect::<Result<Vec<_>>>()?))
}

/// A thousand cycles in the long form.
#[test]
fn cycles_with_hosts_in_trouble_leave_descriptors_threads_and_memory_flat() -> Result<()> {
    let hundreds = if std::env::var_os("GENV_TEST_LONG").is_some() { 9 } else { 1 };
    let fleet = Fleet::start()?;
    let exporter = fleet.exporter(Duration::from_millis(100))?;
    let well = fleet.well();
    wait(&exporter, "the hosts that are well", |scrape| well.iter().all(|host| is_up(scrape, host)))?;
    // Until every buffer and every back-off has been as large as it gets.
    usual(&exporter, &well[0], 100)?;
    let early = usual(&exporter, &well[0], 100)?;
    for _ in 0..hundreds {
        let late = usual(&exporter, &well[0], 100)?;
        ensure!(
            late.anonymous_bytes <= early.anonymous_bytes + FLAT_BYTES
                && late.descriptors <= early.descriptors + FLAT_DESCRIPTORS
                && late.threads <= early.threads + FLAT_THREADS,
            "it grew from {early:?} to {late:?}"
        );
    }
    Ok(())
}
