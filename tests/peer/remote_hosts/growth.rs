//! What must not grow while hosts fail all the time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use genv_tests::exporter::Exporter;
use genv_tests::footprint::Footprint;

use crate::remote_hosts::fleet::Fleet;
use crate::remote_hosts::{is_up, wait};

const INTERVAL: Duration = Duration::from_millis(100);
/// Cycles before anything counts.
const WARM_UP: usize = 200;
/// Cycles in each half.
const CYCLES: usize = 500;
/// What counts as flat: which hosts are being tried again differs, and allocators keep a little.
const FLAT_BYTES: u64 = 4 << 20;
const FLAT_DESCRIPTORS: usize = 8;
const FLAT_THREADS: usize = 4;

/// What it holds most of the time while a host delivers so many snapshots.
fn usual(exporter: &Exporter, host: &str, cycles: usize) -> Result<Footprint> {
    let mut seen = BTreeSet::new();
    let mut footprints = Vec::new();
    let mut failure = None;
    while seen.len() < cycles {
        let before = seen.len();
        wait(exporter, "another cycle", |scrape| {
            match Footprint::of(exporter.pid()) {
                Ok(footprint) => footprints.push(footprint),
                Err(error) => failure = Some(error),
            }
            let labels = [("hostname", host)];
            let at = scrape.value("genv_snapshot_timestamp_seconds", &labels);
            seen.insert(at.map_or(0, |at| (at * 1000.0) as u64));
            seen.len() > before || failure.is_some()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
    }
    Ok(Footprint::median(&footprints))
}

#[test]
fn a_thousand_cycles_with_hosts_in_trouble_leave_descriptors_threads_and_memory_flat() -> Result<()> {
    let fleet = Fleet::start()?;
    let exporter = fleet.exporter(INTERVAL)?;
    let well = fleet.well();
    wait(&exporter, "the hosts that are well", |scrape| well.iter().all(|host| is_up(scrape, host)))?;
    // Until every buffer and every back-off has been as large as it gets.
    usual(&exporter, &well[0], WARM_UP)?;
    let early = usual(&exporter, &well[0], CYCLES)?;
    let late = usual(&exporter, &well[0], CYCLES)?;
    ensure!(
        late.anonymous_bytes <= early.anonymous_bytes + FLAT_BYTES
            && late.descriptors <= early.descriptors + FLAT_DESCRIPTORS
            && late.threads <= early.threads + FLAT_THREADS,
        "it grew from {early:?} to {late:?}"
    );
    Ok(())
}
