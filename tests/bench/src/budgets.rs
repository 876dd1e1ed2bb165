//! The budgets of one machine's exporter.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::process::{children, has_started_a_process_besides};

use crate::load::{DEVICES, ENVIRONMENTS, LOAD, Load, PROCESSES};
use crate::measured::{Task, beyond_library};
use crate::scrape::scrapes;
use crate::table::{Table, mebibytes, median, verdict};

const ROUNDS: usize = 5;

pub(crate) fn table() -> Result<Table> {
    let load = Load::start(false)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;

    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    collection_rows(&load, &state, &mut table)?;

    let exporter = Setup::with_driver(&load.simulation)?.env("GENV_TMPDIR", &state).flag("--interval=1s").start()?;
    exporter_rows(&load, &exporter, &mut table)?;
    Ok(table)
}

fn collection_rows(load: &Load, state: &Path, table: &mut Table) -> Result<()> {
    let collection = Task::Collection(state.to_owned());
    let floor = Task::Floor(state.to_owned(), load.pids());
    let in_process = Task::CollectionInProcess(state.to_owned());
    let (mut ours, mut bare, mut ratios, mut of_readers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let floor = floor.run(&load.simulation)?;
        ensure!(floor.processes == DEVICES * PROCESSES, "the floor saw {floor:?}");
        let collection = collection.run(&load.simulation)?;
        let in_process = in_process.run(&load.simulation)?;
        let seen = (collection.devices, collection.processes, collection.environments);
        ensure!(seen == (DEVICES, PROCESSES, ENVIRONMENTS), "the collection saw {seen:?}");
        ours.push(collection.cpu_seconds);
        bare.push(floor.cpu_seconds);
        ratios.push(collection.cpu_seconds / floor.cpu_seconds);
        of_readers.push(collection.cpu_seconds / in_process.cpu_seconds);
    }
    let (ours, bare, ratio, of_reader) = (median(ours), median(bare), median(ratios), median(of_readers));
    table.cost(&format!("CPU of one collection with its reader: {LOAD}"), ours, Some(0.004));
    table.cost("CPU of the same NVML calls and reads alone", bare, None);
    table.row(&[&"collection ÷ calls and reads alone", &format!("{ratio:.2}"), &"1.5", &verdict(ratio <= 1.5)]);
    let what = "collection with a reader ÷ without one";
    table.row(&[&what, &format!("{of_reader:.3}"), &"1.05", &verdict(of_reader <= 1.05)]);
    Ok(())
}

fn exporter_rows(load: &Load, exporter: &Exporter, table: &mut Table) -> Result<()> {
    load.wait_until_seen_by(exporter)?;
    let scraped = scrapes(exporter.port(), Duration::from_secs(5))?;
    let (median, p99) = (scraped.median.as_secs_f64(), scraped.percentile_99.as_secs_f64());
    let size = format!("scrape of that, gzip ({} bytes), kept connection", scraped.bytes);
    table.cost(&format!("{size}: median"), median, None);
    table.cost(&format!("{size}: 99th percentile"), p99, Some(1e-3));
    let rate = format!("{:.0}", scraped.per_second);
    table.row(&[
        &"scrapes per second, two connections, clients on the same cores",
        &rate,
        &"20,000",
        &verdict(scraped.per_second >= 20_000.0),
    ]);

    let library = Task::Library.run(&load.simulation)?.bytes;
    let readers = children(exporter.pid());
    let beyond = beyond_library(exporter.pid(), library)?;
    table.row(&[
        &format!("resident memory under that load, with the reader, beyond the library's {}", mebibytes(library)),
        &mebibytes(beyond),
        &"15 MiB",
        &verdict(beyond <= 15 << 20),
    ]);

    let started = has_started_a_process_besides(&readers, exporter.pid())? || readers.len() != 1;
    table.row(&[
        &"programs started, besides the reader",
        &(if started { "some" } else { "0" }),
        &"0",
        &verdict(!started),
    ]);
    Ok(())
}
