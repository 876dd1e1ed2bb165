//! Containers of an environment.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use genv_tests::tools;

use crate::shims::stage::{MIG_OF_1, MIG_OF_3, Stage, UUID, called_with, real, text};

fn client(stage: &Stage, name: &str, environment: &str, arguments: &[&str]) -> Result<Output> {
    let real_nvidia_smi = real(550);
    let folders = [stage.recorders(), real_nvidia_smi.parent().context("a folder")?.to_owned()];
    // The recorder of the client, and the real nvidia-smi.
    std::fs::remove_file(stage.recorders().join("nvidia-smi")).ok();
    let folders: Vec<&Path> = folders.iter().map(|folder| folder.as_path()).collect();
    let mut command = stage.shim(name, &folders);
    command.env("GENV_ENVIRONMENT_ID", environment).args(arguments);
    Ok(command.output()?)
}

#[test]
fn containers_get_the_environments_devices_and_belong_to_it() -> Result<()> {
    let stage = Stage::new()?;
    let foreign = format!("run --gpus \"device={},0\" image", UUID[3]);
    let mig = format!("run --device GPU={MIG_OF_3} --device GPU={MIG_OF_1} image");
    let own_mig = format!("RUN --device GPU={MIG_OF_1} image");
    // Device 1 is split: only its MIG devices have names.
    let all = "--device GPU=0 --device GPU=1:0 --device GPU=1:1";
    for (name, environment, line, called) in [
        ("docker", "mine", "run --gpus all image", "RUN --gpus \"device=0,1\" image"),
        ("docker", "mine", "run --gpus=1 image", "RUN --gpus=device=0 image"),
        ("docker", "mine", "-D container run --gpus \"device=1,2\" image", "-D container RUN --gpus device=1 image"),
        ("docker", "mine", &foreign, "RUN --gpus device=0 image"),
        ("docker", "mine", "run image --gpus all", "RUN image --gpus all"),
        ("docker", "mine", "exec x run --gpus all", "exec x run --gpus all"),
        ("docker", "mine", "run --device GPU=all --device /x image", &format!("RUN {all} --device /x image")),
        ("docker", "mine", &mig, &own_mig),
        ("docker", "mine", "run --runtime=nvidia image", "RUN -e VISIBLE=0,1 --runtime=nvidia image"),
        ("docker", "mine", "run -eVISIBLE=1,3 image", "RUN -eVISIBLE=1 image"),
        ("docker", "mine", "run --runtime nvidia -e VISIBLE=all image", "RUN --runtime nvidia -e VISIBLE=0,1 image"),
        ("docker", "mine", "run --env=VISIBLE=none --runtime nvidia x", "RUN --env=VISIBLE=none --runtime nvidia x"),
        ("docker", "mine", "run --runtime runc image", "RUN --runtime runc image"),
        ("docker", "free", "run image", "RUN image"),
        ("docker", "gone", "run image", "run image"),
        ("docker", "", "run --gpus all image", "run --gpus all image"),
        // 0,1,3 are devices, not a number of them.
        ("podman", "mine", "run --gpus all image", "RUN --gpus 0,1:0,1:1 image"),
        ("podman", "mine", "--log-level x container run --gpus 0,3 x", "--log-level x container RUN --gpus 0 x"),
        ("podman", "mine", "run --pod p --device GPU=all image", &format!("RUN --pod p {all} image")),
        ("podman", "mine", "run -e VISIBLE=all image", "RUN -e VISIBLE=0,1 image"),
        ("podman", "mine", "compose up", "compose up"),
        ("podman", "mine", "ps", "ps"),
        ("podman", "", "run --gpus all image", "run --gpus all image"),
    ] {
        let spell = |line: &str| line.replace("VISIBLE=", "NVIDIA_VISIBLE_DEVICES=").replace("GPU=", "nvidia.com/gpu=");
        let (typed, called) = (spell(line), spell(called).replace("RUN", "run -e GENV_ENVIRONMENT_ID"));
        let typed: Vec<&str> = typed.split(' ').collect();
        let output = client(&stage, name, environment, &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), called, "{name} {environment} {line}");
        assert_eq!(output.status.code(), Some(7), "{name} {environment} {line}");
        let stderr = text(&output.stderr);
        if line == mig {
            assert!(
                stderr.starts_with("genv: the shim leaves out of --device ") && stderr.contains(MIG_OF_3),
                "{stderr}"
            );
        }
        if (name, environment) == ("podman", "mine") {
            let is_noted = line.contains("compose up") || line.contains('3');
            assert_eq!(stderr.lines().count(), usize::from(is_noted), "{line}: {stderr}");
        }
    }
    // Without a value it is that of the shell.
    let mut command = stage.recorder("docker");
    command.env("NVIDIA_VISIBLE_DEVICES", "1,2");
    let output = command.args(["run", "-e", "NVIDIA_VISIBLE_DEVICES", "image"]).output()?;
    assert_eq!(called_with(&text(&output.stdout)), "run -e GENV_ENVIRONMENT_ID -e NVIDIA_VISIBLE_DEVICES=1 image");
    let mut bypassed = stage.recorder("docker");
    let output = bypassed.env("GENV_BYPASS", "1").args(["run", "--gpus", "all", "image"]).output()?;
    assert_eq!(called_with(&text(&output.stdout)), "run --gpus all image");
    Ok(())
}

#[test]
fn what_the_environment_has_not_is_refused() -> Result<()> {
    let stage = Stage::new()?;
    for (name, environment, flag, value, code) in [
        ("docker", "mine", "--gpus", "3", 4),
        // A PCI address begins like a MIG device of device 0.
        ("docker", "mine", "--gpus", "device=00000000:03:00.0", 4),
        ("docker", "mine", "--gpus", "device=$(touch x)\u{1b}[31m", 4),
        ("docker", "mine", "--gpus", "nonsense", 2),
        ("docker", "mine", "--device", &format!("nvidia.com/gpu={MIG_OF_3}"), 4),
        ("docker", "mine", "-e", "NVIDIA_VISIBLE_DEVICES=2,3", 4),
        ("docker", "free", "--gpus", "all", 4),
        ("docker", "free", "--device", "nvidia.com/gpu=all", 4),
        ("docker", "free", "--runtime", "nvidia", 4),
        ("docker", "gone", "--gpus", "all", 1),
        ("docker", "gone", "--device", "nvidia.com/gpu=all", 1),
        ("docker", "gone", "--runtime", "nvidia", 1),
        ("podman", "mine", "--gpus", "2", 4),
        ("podman", "mine", "--gpus", "device=0", 2),
        ("podman", "free", "--gpus", "all", 4),
        ("podman", "gone", "--gpus", "all", 1),
    ] {
        let output = client(&stage, name, environment, &["run", flag, value, "image"])?;
        assert_eq!(output.status.code(), Some(code), "{name} {environment} {flag} {value}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{name} {environment} {flag} {value}");
        let stderr = text(&output.stderr);
        assert!(
            stderr.starts_with("genv: cannot ") && stderr.lines().count() == 1 && !stderr.contains('\u{1b}'),
            "{stderr:?}"
        );
    }
    Ok(())
}

#[test]
fn a_note_says_that_compose_files_are_not_restricted() -> Result<()> {
    let stage = Stage::new()?;
    for (environment, line, note) in [
        (
            "mine",
            "compose up -d",
            "genv: the shim does not restrict the devices that a compose file asks for: write device_ids: [\"0\", \"1\"] there, the devices of this environment, under 'devices: !override', since compose adds devices to those of other files",
        ),
        ("free", "compose up", "run 'genv attach' first"),
        ("mine", "compose ps", ""),
        ("gone", "compose up", ""),
    ] {
        let typed: Vec<&str> = line.split(' ').collect();
        let output = client(&stage, "docker", environment, &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), line);
        let stderr = text(&output.stderr);
        assert_eq!(stderr.lines().count(), usize::from(!note.is_empty()), "{stderr}");
        assert!(stderr.contains(note), "{environment} {line}: {stderr}");
    }
    Ok(())
}

type Flag = (String, bool);

/// The flags that a client's help lists: `  -a, --attach list   Attach to …`.
fn flags(help: &str) -> Vec<Flag> {
    let mut flags = Vec::new();
    for line in help.lines() {
        let Some(start) = line.find("--").filter(|start| *start <= 6) else {
            continue;
        };
        let words = line[start..].split("   ").next().unwrap_or_default().trim();
        let takes_value = words.contains(' ');
        let long = words.split(' ').next().unwrap_or_default();
        flags.push((long.to_owned(), takes_value));
        let short = line[..start].trim().trim_end_matches(',');
        if !short.is_empty() {
            flags.push((short.to_owned(), takes_value));
        }
    }
    flags
}

/// Checks that the shim `name` knows every flag of a real client; in the environment `alone`, `--gpus all` is `device`.
fn knows_every_flag(tool: &str, name: &str, device: &str) -> Result<()> {
    let stage = Stage::new()?;
    let real = tools::program(tool, name);
    let help = |arguments: &[&str]| -> Result<Vec<Flag>> {
        let output = Command::new(&real).args(arguments).output()?;
        ensure!(output.status.success(), "{tool} {arguments:?}: {output:?}");
        Ok(flags(&text(&output.stdout)))
    };
    for subcommand in ["run", "create"] {
        let flags = help(&[subcommand, "--help"])?;
        ensure!(flags.len() > 100, "{tool} {subcommand}: {flags:?}");
        // As the help has it, each flag alone, and each letter behind one that takes no value.
        for (flag, takes_value) in flags {
            // The environment's own device in its place would be no sign of anything.
            if flag == "--gpus" {
                continue;
            }
            let value: &[&str] = if takes_value { &["--gpus"] } else { &[] };
            let line = [&[subcommand, &flag], value, &["--gpus", "all", "image", "--gpus", "all"]].concat();
            let output = client(&stage, name, "alone", &line)?;
            let value = if takes_value { " --gpus" } else { "" };
            let expected =
                format!("{subcommand} -e GENV_ENVIRONMENT_ID {flag}{value} --gpus {device} image --gpus all");
            assert_eq!(called_with(&text(&output.stdout)), expected, "{tool} {flag}");
            assert_eq!(text(&output.stderr), "", "{tool} {flag}");
        }
    }
    for (flag, takes_value) in help(&["--help"])? {
        let value: &[&str] = if takes_value { &["run"] } else { &[] };
        let line = [&[flag.as_str()], value, &["run", "--gpus", "all", "image"]].concat();
        let called = called_with(&text(&client(&stage, name, "alone", &line)?.stdout));
        assert!(
            called.ends_with(&format!("run -e GENV_ENVIRONMENT_ID --gpus {device} image")),
            "{tool} {flag}: {called}"
        );
    }
    Ok(())
}

#[test]
fn every_flag_of_real_clients_is_known() -> Result<()> {
    knows_every_flag("docker-client-20", "docker", "device=2")?;
    knows_every_flag("docker-client", "docker", "device=2")?;
    knows_every_flag("podman-4", "podman", "2")?;
    knows_every_flag("podman", "podman", "2")
}
