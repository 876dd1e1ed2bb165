//! Tests of the program `genv snapshot`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use genv_core::model::Snapshot;

/// genv with the environment of a machine without a driver, a state directory and simulated devices.
fn genv(folder: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_genv"));
    for name in ["GENV_DEVICES", "GENV_SCENARIO"] {
        command.env_remove(name);
    }
    command.env("GENV_TMPDIR", folder.path().join("state")).env("GENV_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1");
    command
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn snapshots(output: &[u8]) -> Vec<Snapshot> {
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("each line is a snapshot")).collect()
}

#[test]
fn a_snapshot_is_one_object_with_the_devices_of_this_machine() {
    let folder = folder();
    let mut command = genv(&folder);
    command.arg("snapshot").env("GENV_DEVICES", "2").env_remove("GENV_NVML_LIBRARY");
    let output = command.assert().success().stderr("").get_output().stdout.clone();
    let [snapshot] = &snapshots(&output)[..] else { panic!("{}", String::from_utf8_lossy(&output)) };
    assert_eq!(snapshot.version, 1);
    assert_eq!(snapshot.devices.len(), 2);
    assert!(snapshot.devices.iter().all(|device| device.up));
    assert!(snapshot.collectors.values().all(|status| status.success));
}

#[test]
fn without_a_driver_the_snapshot_has_the_reason() {
    let folder = folder();
    let output = genv(&folder).arg("snapshot").assert().success().get_output().stdout.clone();
    let snapshot = &snapshots(&output)[0];
    assert_eq!(snapshot.devices, []);
    let gpu = &snapshot.collectors["gpu"];
    assert!(!gpu.success);
    assert!(gpu.error.as_ref().unwrap().contains("/nonexistent/libnvidia-ml.so.1"));
    assert!(snapshot.collectors["state"].success);
}

#[test]
fn every_simulated_host_has_a_line() {
    let folder = folder();
    let mut command = genv(&folder);
    command.args(["snapshot", "--gpu.source=simulated"]);
    let output = command.assert().success().get_output().stdout.clone();
    let snapshots = snapshots(&output);
    assert_eq!(snapshots.len(), 2);
    assert!(snapshots.iter().all(|snapshot| !snapshot.environments.is_empty()));
}

#[test]
fn follow_prints_a_line_each_interval_until_stdout_is_closed() {
    let folder = folder();
    let mut program = genv(&folder)
        .args(["snapshot", "--follow", "--interval=100ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut times = Vec::new();
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        let snapshot: Snapshot = serde_json::from_str(&line).unwrap();
        assert_eq!(snapshot.interval_seconds, 0.1);
        times.push(snapshot.timestamp_seconds);
    }
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    drop(lines);
    assert!(program.wait().unwrap().success());
    let mut complaints = String::new();
    program.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    assert_eq!(complaints, "");
}

#[test]
fn wrong_usage_ends_with_2_and_anything_else_with_1() {
    let folder = folder();
    let complaint = |arguments: &[&str], variable: (&str, &str), code: i32| {
        let mut command = genv(&folder);
        command.arg("snapshot").args(arguments).env(variable.0, variable.1);
        let output = command.assert().code(code).stdout("").get_output().stderr.clone();
        String::from_utf8(output).unwrap()
    };
    let none = ("NO_COLOR", "1");
    let text = complaint(&["--interval=5"], none, 2);
    assert!(text.contains("duration '5' lacks a unit: write 5s"), "{text}");
    let text = complaint(&["--interval=1ms"], none, 2);
    assert!(text.contains("choose 100ms to 1h"), "{text}");
    complaint(&["--gpu.source=amd"], none, 2);
    let text = complaint(&["--gpu.source=nvml", "--gpu.scenario=x"], none, 2);
    assert!(text.contains("choose --gpu.source=simulated"), "{text}");
    let text = complaint(&[], ("GENV_DEVICES", "two"), 2);
    assert!(text.starts_with("genv: GENV_DEVICES is 'two'"), "{text}");
    let missing = PathBuf::from(folder.path()).join("lab.yaml");
    let text = complaint(&[&format!("--gpu.scenario={}", missing.display())], none, 1);
    assert!(text.starts_with("genv: cannot read the scenario "), "{text}");
}
