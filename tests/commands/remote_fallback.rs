//! Hosts with no genv, polled through their nvidia-smi: the real one of three generations, on the simulated library.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_core::model::{Attribution, DeviceIndex, Snapshot};
use genv_remote::protocol::HostProgram;
use genv_tests::local_commands::{self, poller};
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::{Sleeper, write_script};
use genv_tests::shell::installed;
use genv_tests::tools;
use tempfile::TempDir;

/// Two GPUs, of which the second tells neither its utilization nor its power, and a process on both.
fn machine(pid: u32) -> Simulation {
    Simulation::new(&format!(
        "version: 1
users: {{alice: 1001}}
hosts:
- name: gpu01
  driver_version: 550.163.01
  cuda_version: \"12.4\"
  environments: []
  devices:
  - {{name: NVIDIA A100-SXM4-40GB, uuid: GPU-12345678-1234-1234-1234-123456780000, memory: 40gi,
      memory_used: 8gi, utilization: 0.37, temperature: 33, power: 72, power_limit: 400}}
  - {{name: NVIDIA A100-SXM4-40GB, uuid: GPU-12345678-1234-1234-1234-123456780001, memory: 40gi,
      memory_used: 1gi, faults: [{{not_supported: [utilization, power]}}]}}
  processes:
  - pid: {pid}
    comm: train.py
    user: alice
    devices: [{{index: \"0\", memory: 8gi}}, {{index: \"1\", memory: 1gi}}]
"
    ))
}

fn folder_with(script: &str) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    write_script(&folder.path().join("nvidia-smi"), script)?;
    Ok(folder)
}

fn poll(shell: &str, prepare: impl Fn(&mut Command) + Sync) -> Result<Snapshot> {
    local_commands::poll(&mut poller(HostProgram::NvidiaSmi), || {
        let mut command = Command::new(installed(shell));
        prepare(&mut command);
        command
    })
}

#[test]
fn three_generations_of_nvidia_smi_tell_devices_and_whose_processes_use_them() -> Result<()> {
    let sleeper = Sleeper::start(&[])?;
    let simulation = machine(sleeper.pid());
    for (generation, shell) in [(470, "tcsh"), (535, "fish"), (550, "zsh"), (550, "bash"), (550, "sh")] {
        let smi = tools::program(&format!("nvidia-smi-{generation}"), "nvidia-smi");
        // A poll asks the program itself, and not genv's shim.
        let script = "#!/bin/sh\n[ \"$GENV_BYPASS$LC_ALL\" = 1C ] || exit 4\nexec SMI \"$@\"\n";
        let folder = folder_with(&script.replace("SMI", &smi.display().to_string()))?;
        let snapshot = poll(shell, |command| {
            let environment = simulation.command(std::path::Path::new("sh"));
            command.envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display())).env("HOME", folder.path());
        })?;
        let wrong = format!("{generation}: {snapshot:#?}");
        assert!(!snapshot.installed && snapshot.environments.is_empty(), "{wrong}");
        assert!(snapshot.collectors.values().all(|it| it.success && it.current), "{wrong}");
        assert_eq!(snapshot.driver_version.as_deref(), Some("550.163.01"), "{wrong}");
        let [first, second] = &snapshot.devices[..] else { panic!("{wrong}") };
        let memory = first.measurements.memory.context("no memory")?;
        assert_eq!(memory.total_bytes, 40 << 30, "{wrong}");
        assert_eq!(first.measurements.utilization_ratio, Some(0.37), "{wrong}");
        assert_eq!(first.name.as_deref(), Some("NVIDIA A100-SXM4-40GB"), "{wrong}");
        assert_eq!(first.measurements.clocks_hertz.len(), 4, "{wrong}");
        assert!(first.measurements.throttled.is_some(), "{wrong}");
        // What it cannot ask is absent, not 0.
        assert_eq!(second.measurements.utilization_ratio, None, "{wrong}");
        assert!(second.up && second.measurements.memory.is_some(), "{wrong}");
        let [process] = &snapshot.processes[..] else { panic!("{wrong}") };
        assert_eq!(process.pid, sleeper.pid());
        assert!(process.start_time_ticks.is_some_and(|ticks| ticks > 0), "{wrong}");
        assert_eq!(process.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(process.comm.as_deref(), Some("sleep"));
        let outside = Attribution::Outside { reason: "no_claim".to_owned() };
        assert_eq!(process.attribution, outside, "{wrong}");
        let indices: Vec<DeviceIndex> = process.devices.iter().map(|it| it.index).collect();
        assert_eq!(indices, [DeviceIndex::gpu(0), DeviceIndex::gpu(1)]);
        assert_eq!(process.devices[0].memory_used_bytes, Some(8 << 30), "{wrong}");
    }
    Ok(())
}

#[test]
fn a_driver_without_an_answer_is_reported_and_the_host_stays() -> Result<()> {
    for (script, expected) in [
        (
            "#!/bin/sh\necho\necho 'NVIDIA-SMI has failed because it could not talk to the driver.'\nexit 9\n",
            "ended with exit code 9 and printed 'NVIDIA-SMI has failed",
        ),
        ("#!/bin/sh\nprintf 'Kein Treiber \\377\\033[2J'\nexit 1\n", "'Kein Treiber \u{fffd}\\u{1b}[2J'"),
        ("#!/bin/sh\nexit 0\n", "printed nothing"),
        ("#!/bin/sh\nkill -9 $$\n", "exit code 137"),
    ] {
        let folder = folder_with(script)?;
        let snapshot = poll("sh", |command| {
            command.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
        })?;
        let gpu = &snapshot.collectors["gpu"];
        let error = gpu.error.clone().context("no error")?;
        ensure!(!gpu.success && error.contains(expected), "{error}");
        assert_eq!(snapshot.devices, []);
        assert!(snapshot.collectors["state"].success);
    }
    Ok(())
}

#[test]
fn a_user_without_the_right_to_run_commands_is_reported() -> Result<()> {
    let error = poll("sh", |command| {
        command.args(["-c", "echo 'This account is currently not available.'; exit 1", "sh"]);
    });
    let error = error.err().context("it was polled")?.to_string();
    ensure!(error.contains("printed 'This account is currently not available.'"), "{error}");
    Ok(())
}
