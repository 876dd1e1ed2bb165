//! `genv monitor`, `genv enforce` and `genv usage execute`, which become other programs.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use genv_tests::http::free_port;
use genv_tests::peer::Monitor;
use genv_tests::process::{copy_program, program, write_script};

use crate::queries::lab::Lab;

fn monitor(lab: &Lab, folder: Option<&Path>, port: u16) -> Result<Monitor> {
    let mut command = lab.command(program("genv")?);
    command.args(["monitor", "-i", "1", "-p", &port.to_string()]);
    if let Some(folder) = folder {
        command.arg("--config-dir").arg(folder);
    }
    Monitor::start(&mut command, port, &lab.folder())
}

#[test]
fn monitor_is_the_exporter_on_all_interfaces_with_files_for_prometheus() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 1, memory: 40gi}]}")?;
    let port = free_port()?;
    let running = monitor(&lab, None, port)?;
    let name = fs::read_to_string(format!("/proc/{}/comm", running.pid()))?;
    assert_eq!(name, "genv-exporter\n");
    // Whoever listens on one address only does not have this one.
    TcpStream::connect(("127.0.0.2", port)).context("it listens on 127.0.0.1 alone")?;
    let written = fs::read_to_string(lab.state().join("metrics/prometheus/prometheus.yml"))?;
    ensure!(written.contains(&format!("127.0.0.1:{port}")), "{written}");
    let mode = fs::metadata(lab.state())?.permissions().mode();
    assert_eq!(mode & 0o7777, 0o777, "the state directory belongs to everybody");
    Ok(())
}

#[test]
fn files_of_others_are_kept_and_metrics_are_served_all_the_same() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 1, memory: 40gi}]}")?;
    let folder = lab.folder().join("metrics");
    let file = folder.join("prometheus/prometheus.yml");
    fs::create_dir_all(folder.join("prometheus"))?;
    fs::write(&file, "# of genv 1.4.3\n")?;
    let _running = monitor(&lab, Some(&folder), free_port()?)?;
    assert_eq!(fs::read_to_string(&file)?, "# of genv 1.4.3\n");
    let log = fs::read_to_string(lab.folder().join("monitor.log"))?;
    ensure!(log.contains("Metrics are served nevertheless"), "{log}");
    Ok(())
}

/// A program of this name that tells its arguments and repeats its input.
fn stand_in(path: &Path, who: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("no folder")?)?;
    write_script(path, &format!("#!/bin/sh\necho {who} \"$@\"\ncat\n"))
}

/// The exit code, stdout and stderr of a copy of genv that reads this input.
fn run(lab: &Lab, genv: &Path, line: &str, input: &str) -> Result<(Option<i32>, String, String)> {
    let mut command = lab.command(genv);
    command
        .args(line.split_whitespace())
        .env("PATH", format!("{}:/usr/bin:/bin", lab.folder().join("other").display()));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn()?;
    // Who has ended already reads nothing.
    let _ = child.stdin.take().context("no stdin")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

#[test]
fn the_enforcer_is_found_beside_genv_then_on_path() -> Result<()> {
    let lab = Lab::new()?;
    let (own, other) = (lab.folder().join("own"), lab.folder().join("other"));
    fs::create_dir(&own)?;
    copy_program("genv", &own.join("genv"))?;
    let run = |line: &str, input: &str| run(&lab, &own.join("genv"), line, input);
    for line in ["enforce --interval 0", "usage execute"] {
        let (code, stdout, stderr) = run(line, "")?;
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        ensure!(stderr.contains("genv-enforcer is not installed"), "{stderr}");
    }
    stand_in(&other.join("genv-enforcer"), "other")?;
    let (code, stdout, _) = run("enforce --max-devices-for-user a=1 b=2 --interval 0", "")?;
    assert_eq!((code, stdout.as_str()), (Some(0), "other run --genv-1 --max-devices-for-user a=1 b=2 --interval 0\n"));
    let (code, stdout, _) = run("enforce --config=rules.yaml --once", "")?;
    assert_eq!((code, stdout.as_str()), (Some(0), "other run --config=rules.yaml --once\n"));
    stand_in(&own.join("genv-enforcer"), "own")?;
    let (code, stdout, _) = run("usage execute", "a report")?;
    assert_eq!((code, stdout.as_str()), (Some(0), "own execute-report\na report"));
    Ok(())
}

#[test]
fn exec_of_an_old_tool_becomes_its_stand_in() -> Result<()> {
    let lab = Lab::new()?;
    let installed = lab.folder().join("installed");
    fs::create_dir_all(installed.join("bin"))?;
    copy_program("genv", &installed.join("bin/genv"))?;
    let run = |line: &str| run(&lab, &installed.join("bin/genv"), line, "");
    let (code, _, stderr) = run("exec nvidia-smi")?;
    ensure!(code == Some(127) && stderr.contains("Install genv again"), "{stderr}");
    stand_in(&installed.join("lib/genv/shims/nvidia-smi"), "stand-in")?;
    assert_eq!(run("exec nvidia-smi -L --id=0")?, (Some(0), "stand-in -L --id=0\n".to_owned(), String::new()));
    let (code, _, stderr) = run("exec docker ps")?;
    ensure!(code == Some(127) && stderr.contains("cannot run"), "{stderr}");
    // It ran in no environment of its own.
    ensure!(!lab.state().exists());
    Ok(())
}
