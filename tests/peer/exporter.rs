//! Beside the real genv 1.4.3.

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::{Peer, Shell};

/// Its devices work where there are processes: of one that works without a process it is not known who uses it.
fn lab(processes: &str) -> String {
    let utilization = if processes.is_empty() { 0.0 } else { 0.37 };
    format!(
        "version: 1\nhosts:\n- devices: [{{count: 3, memory: 40gi, utilization: {utilization}, temperature: 51}}]\n  \
         processes: [{processes}]\n"
    )
}

/// A process in the background of a shell, in its environment if it has one.
fn background(shell: &mut Shell) -> Result<u32> {
    let pid = shell.run("sleep 1000000 >/dev/null & echo $!")?;
    Ok(pid.trim().parse()?)
}

#[test]
fn the_old_families_are_those_of_genv_1_4_3_sample_by_sample() -> Result<()> {
    let simulation = Simulation::new(&lab(""));
    let peer = Peer::new(&simulation)?;

    // Three environments, one with a name and a memory limit, one that has nothing; and processes in two of
    // them and in none, on one device and on several.
    let mut first = peer.shell()?;
    first.run("genv activate --name training --gpus 1 --gpu-memory 10gi")?;
    let mut second = peer.shell()?;
    second.run("genv activate --gpus 2")?;
    let mut third = peer.shell()?;
    third.run("genv activate")?;
    let mut outside = peer.shell()?;
    let pids = [background(&mut first)?, background(&mut first)?, background(&mut second)?, background(&mut outside)?];
    let [a, b, c, d] = pids;
    simulation.rewrite(&lab(&format!(
        "{{pid: {a}, devices: [{{index: 0, memory: 5gi}}]}}, \
         {{pid: {b}, devices: [{{index: 0, memory: 1500mi}}, {{index: 1, memory: 300mi}}]}}, \
         {{pid: {c}, devices: [{{index: 1, memory: 7000mi}}, {{index: 2, memory: 7001mi}}]}}, \
         {{pid: {d}, devices: [{{index: 2, memory: 123456789b}}]}}"
    )));

    let setup = Setup::with_driver(&simulation)?.env("GENV_TMPDIR", peer.state_directory());
    let exporter = setup.flag("--interval=1s").start()?;
    let monitor = peer.monitor()?;
    // It sets one family after the other while it answers; the processes of users come last.
    let processes = |scrape: &Scrape| {
        scrape.value("genv_processes_total", &[]).ok() == Some(4.0)
            && !scrape.all("genv_user_processes_total", &[]).is_empty()
    };
    let theirs = monitor.wait_for("genv monitor sees the processes", processes)?;
    exporter.wait_for("the processes", |scrape| {
        let states = scrape.all("genv_processes", &[]);
        states.iter().map(|(_, processes)| processes).sum::<f64>() == 4.0
    })?;
    let ours = Scrape::parse(&exporter.get("/metrics/genv1")?.text()?)?;

    ensure!(theirs.samples.len() > 30, "only {} samples to compare", theirs.samples.len());
    let first_difference = theirs
        .samples
        .iter()
        .find(|(series, value)| ours.samples.get(series) != Some(value))
        .map(|(series, value)| (series, value, ours.samples.get(series)));
    ensure!(first_difference.is_none(), "genv 1.4.3 and we differ: {first_difference:?}");
    let more = ours.samples.keys().find(|series| !theirs.samples.contains_key(series));
    ensure!(more.is_none(), "we tell more than genv 1.4.3: {more:?}");
    assert_eq!(ours.types, theirs.types);
    Ok(())
}
