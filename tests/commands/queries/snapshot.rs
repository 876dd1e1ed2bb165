//! `genv snapshot`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use genv_core::model::Snapshot;
use genv_tests::process::program;

use crate::queries::lab::Lab;

fn snapshots(lab: &Lab, arguments: &[&str]) -> Result<Vec<Snapshot>> {
    let said = lab.ask(&[&["snapshot"], arguments].concat())?;
    ensure!(said.code == 0, "{}", said.stderr);
    said.stdout.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn each_host_has_a_line_and_one_without_a_driver_has_the_reason() -> Result<()> {
    let lab = Lab::new()?;
    let alone = snapshots(&lab, &[])?;
    ensure!(alone.len() == 1 && alone[0].version == 1 && alone[0].devices.is_empty(), "{alone:?}");
    let gpu = &alone[0].collectors["gpu"];
    ensure!(gpu.error.as_ref().is_some_and(|error| error.contains("/nonexistent/libnvidia-ml.so.1")), "{gpu:?}");
    ensure!(!gpu.success && alone[0].collectors["state"].success, "{alone:?}");
    let both = snapshots(&lab, &["--gpu.source=simulated"])?;
    ensure!(both.len() == 2 && both.iter().all(|host| !host.environments.is_empty()), "{both:?}");
    ensure!(both.iter().all(|host| host.collectors.values().all(|status| status.success)), "{both:?}");
    Ok(())
}

#[test]
fn follow_prints_a_line_each_interval_until_stdout_is_closed() -> Result<()> {
    let lab = Lab::new()?;
    let mut command = lab.command(program("genv")?);
    command.args(["snapshot", "--follow", "--interval=100ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
    let mut times = Vec::new();
    for _ in 0..3 {
        let snapshot: Snapshot = serde_json::from_str(&lines.next().context("it ended")??)?;
        ensure!(snapshot.interval_seconds == 0.1, "{snapshot:?}");
        times.push(snapshot.timestamp_seconds);
    }
    ensure!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    drop(lines);
    let output = child.wait_with_output()?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    Ok(())
}
