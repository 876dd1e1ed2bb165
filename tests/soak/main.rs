//! Ten minutes of a busy lab, or as many seconds as `GENV_SOAK_SECONDS` says: what stays the same.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::footprint::Footprint;
use genv_tests::http;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::{Sleeper, children, has_started_a_process_besides};
use genv_tests::state::{self, Environment};

const DEVICES: usize = 8;
const ENVIRONMENTS: usize = 100;
const PROCESSES: usize = 200;
/// Processes, and half as many environments, that are replaced each second.
const CHURN: usize = 10;
const USERS: u32 = 20;

/// What exporter and reader, each with its libraries, may allocate together. `genv-bench budgets` measures the shipped
/// programs, their text included.
const BUDGET_BYTES: u64 = 15 << 20;
/// What counts as flat: allocators keep a little more or less.
const FLAT_BYTES: u64 = 1 << 20;

/// A lab in which somebody is always coming or going.
struct Lab {
    simulation: Simulation,
    state: std::path::PathBuf,
    round: usize,
    processes: Vec<(Sleeper, String)>,
}

impl Lab {
    fn turn(&mut self) -> Result<()> {
        self.round += 1;
        self.processes.drain(..CHURN.min(self.processes.len()));
        while self.processes.len() < PROCESSES {
            // Two processes an environment, which lives as long as the first of them.
            let number = (self.round * PROCESSES + self.processes.len()) / 2;
            let eid = format!("e{number}");
            let process = Sleeper::start(&[("PATH", "/bin"), ("GENV_ENVIRONMENT_ID", &eid)])?;
            self.processes.push((process, eid));
        }
        let mut environments = Vec::<Environment>::with_capacity(ENVIRONMENTS);
        for (process, eid) in &self.processes {
            if environments.iter().all(|known| known.eid != *eid) {
                let number = eid[1..].parse::<u32>()?;
                environments.push(Environment {
                    eid: eid.clone(),
                    uid: if number % 2 == 0 { rustix::process::getuid().as_raw() } else { 50_000 + number % USERS },
                    pids: vec![process.pid()],
                    devices: vec![number as usize % DEVICES],
                    gpu_memory: Some("1gi"),
                });
            }
        }
        state::write(&self.state, DEVICES, &environments)?;
        self.simulation.rewrite(&self.scenario());
        Ok(())
    }

    fn scenario(&self) -> String {
        // Each minute a device is lost for some seconds, and the driver is reloaded.
        let lost = if self.round % 60 > 50 { ", faults: [{lost: true}]" } else { "" };
        let generation = self.round / 60;
        let uses: Vec<_> =
            (0..DEVICES).map(|index| format!("{{index: {index}, memory: 42mi, utilization: 0.004}}")).collect();
        let uses = uses.join(", ");
        let mut scenario = format!(
            "version: 1\nhosts:\n- faults: [{{reload: {generation}}}]\n  devices:\n  - {{xid: [{{xid: 31, every: 10s}}]{lost}}}\n  - {{count: {}}}\n  processes:\n",
            DEVICES - 1
        );
        for (process, _) in &self.processes {
            scenario.push_str(&format!("  - {{pid: {}, devices: [{uses}]}}\n", process.pid()));
        }
        scenario
    }
}

#[test]
fn ten_minutes_of_churn_leave_memory_flat_and_start_no_program() -> Result<()> {
    let seconds = match std::env::var("GENV_SOAK_SECONDS") {
        Ok(seconds) => seconds.parse().context("GENV_SOAK_SECONDS")?,
        Err(_) => 600,
    };
    ensure!(seconds >= 3, "GENV_SOAK_SECONDS is too little for three parts");
    let simulation = Simulation::new("version: 1\n");
    let setup = Setup::with_driver(&simulation)?.flag("--interval=1s");
    let mut lab = Lab { state: setup.folder().join("state"), simulation, round: 0, processes: Vec::new() };
    lab.turn()?;
    let exporter = setup.start()?;
    exporter.wait_for("the lab", |scrape| scrape.all("genv_device_up", &[]).len() == DEVICES)?;

    let readers = children(exporter.pid());
    ensure!(readers.len() == 1, "there are the readers {readers:?}");

    let (mut early, mut late, mut most) = (Vec::new(), Vec::new(), Footprint::default());
    let mut in_environments = 0.0_f64;
    // By turns and not by time: also on a busy machine all happens in each third.
    for turn in 0..seconds {
        let next = Instant::now() + Duration::from_secs(1);
        lab.turn()?;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let scrape = exporter.scrape()?;
        let zipped = http::get_with(exporter.port(), "/metrics", &[("Accept-Encoding", "gzip")])?;
        assert_eq!(zipped.header("content-encoding"), Some("gzip"));
        let belonging = scrape.value("genv_processes", &[("state", "environment")]);
        in_environments = in_environments.max(belonging.unwrap_or(0.0));

        let footprint = Footprint::of(exporter.pid())?;
        most = most.max(footprint);
        // The first third is for everything to have happened once.
        match turn * 3 / seconds {
            0 => {}
            1 => early.push(footprint),
            _ => late.push(footprint),
        }
    }
    // A read that takes long leaves its thread behind until the read ends: what it usually holds counts, not the most.
    // On a busy machine a third may pass with fewer processes, and their descriptors, than the lab has.
    let descriptors = early.iter().map(|it| it.descriptors).max().unwrap_or_default();
    let (early, late) = (Footprint::median(&early), Footprint::median(&late));
    ensure!(in_environments >= CHURN as f64, "the lab was empty: {in_environments} processes");
    ensure!(late.anonymous_bytes <= early.anonymous_bytes + FLAT_BYTES, "memory grew from {early:?} to {late:?}");
    ensure!(late.threads <= early.threads + 1, "threads: from {early:?} to {late:?}");
    ensure!(late.descriptors <= descriptors + 4, "descriptors: from {descriptors} to {late:?}");
    ensure!(most.anonymous_bytes <= BUDGET_BYTES, "{most:?} of {BUDGET_BYTES} bytes");
    println!("{most:?} of {BUDGET_BYTES} bytes");
    ensure!(
        !has_started_a_process_besides(&readers, exporter.pid())?,
        "another program than the reader was started: {}",
        exporter.log()
    );
    Ok(())
}
