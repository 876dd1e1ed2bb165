//! Containers of an environment.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use genv_tests::tools;

use crate::shims::stage::{MIG_OF_1, MIG_OF_3, Stage, UUID, called_with, real, text};

fn docker(stage: &Stage, environment: &str, arguments: &[&str]) -> Result<Output> {
    client(stage, "docker", environment, arguments)
}

/// The shim `name` in front of its recorder.
pub(crate) fn client(stage: &Stage, name: &str, environment: &str, arguments: &[&str]) -> Result<Output> {
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
    let mig = format!("run --device nvidia.com/gpu={MIG_OF_3} --device nvidia.com/gpu={MIG_OF_1} image");
    let own_mig = format!("run -e GENV_ENVIRONMENT_ID --device nvidia.com/gpu={MIG_OF_1} image");
    for (line, called) in [
        ("run --gpus all image", "run -e GENV_ENVIRONMENT_ID --gpus \"device=0,1\" image"),
        ("run --gpus=1 image", "run -e GENV_ENVIRONMENT_ID --gpus=device=0 image"),
        ("container run --gpus device=1 image", "container run -e GENV_ENVIRONMENT_ID --gpus device=1 image"),
        (
            "-H tcp://x container create --gpus \"device=0,1,2\" image",
            "-H tcp://x container create -e GENV_ENVIRONMENT_ID --gpus \"device=0,1\" image",
        ),
        (&foreign, "run -e GENV_ENVIRONMENT_ID --gpus device=0 image"),
        ("run -it --rm image --gpus all", "run -e GENV_ENVIRONMENT_ID -it --rm image --gpus all"),
        ("exec x run --gpus all", "exec x run --gpus all"),
        // Device 1 is split: only its MIG devices have names.
        (
            "run --device nvidia.com/gpu=all --device /dev/fuse image --device nvidia.com/gpu=all",
            "run -e GENV_ENVIRONMENT_ID --device nvidia.com/gpu=0 --device nvidia.com/gpu=1:0 \
             --device nvidia.com/gpu=1:1 --device /dev/fuse image --device nvidia.com/gpu=all",
        ),
        (&mig, &own_mig),
        (
            "run --runtime=nvidia image",
            "run -e GENV_ENVIRONMENT_ID -e NVIDIA_VISIBLE_DEVICES=0,1 --runtime=nvidia image",
        ),
        (
            "run --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all image",
            "run -e GENV_ENVIRONMENT_ID --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 image",
        ),
        ("run -eNVIDIA_VISIBLE_DEVICES=1,3 image", "run -e GENV_ENVIRONMENT_ID -eNVIDIA_VISIBLE_DEVICES=1 image"),
        (
            "run --env=NVIDIA_VISIBLE_DEVICES=none --runtime nvidia image",
            "run -e GENV_ENVIRONMENT_ID --env=NVIDIA_VISIBLE_DEVICES=none --runtime nvidia image",
        ),
        ("run --runtime runc image", "run -e GENV_ENVIRONMENT_ID --runtime runc image"),
    ] {
        let typed: Vec<&str> = line.split(' ').collect();
        let output = docker(&stage, "mine", &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), called, "{line}");
        assert_eq!(output.status.code(), Some(7), "{line}");
        if line == mig {
            let stderr = text(&output.stderr);
            assert!(
                stderr.starts_with("genv: the shim leaves out of --device ") && stderr.contains(MIG_OF_3),
                "{stderr}"
            );
        }
    }
    // Without a value it is that of the shell.
    let mut command = stage.recorder("docker");
    command.env("NVIDIA_VISIBLE_DEVICES", "1,2");
    let output = command.args(["run", "-e", "NVIDIA_VISIBLE_DEVICES", "image"]).output()?;
    assert_eq!(called_with(&text(&output.stdout)), "run -e GENV_ENVIRONMENT_ID -e NVIDIA_VISIBLE_DEVICES=1 image");
    Ok(())
}

#[test]
fn what_the_environment_has_not_is_refused() -> Result<()> {
    let stage = Stage::new()?;
    for (environment, flag, value, code) in [
        ("mine", "--gpus", "3", 4),
        // A PCI address begins like a MIG device of device 0.
        ("mine", "--gpus", "device=00000000:03:00.0", 4),
        ("mine", "--gpus", "device=$(touch x)\u{1b}[31m", 4),
        ("mine", "--gpus", "nonsense", 2),
        ("mine", "--device", &format!("nvidia.com/gpu={MIG_OF_3}"), 4),
        ("mine", "-e", "NVIDIA_VISIBLE_DEVICES=2,3", 4),
        ("free", "--gpus", "all", 4),
        ("free", "--device", "nvidia.com/gpu=all", 4),
        ("free", "--runtime", "nvidia", 4),
        ("gone", "--gpus", "all", 1),
        ("gone", "--device", "nvidia.com/gpu=all", 1),
        ("gone", "--runtime", "nvidia", 1),
    ] {
        let output = docker(&stage, environment, &["run", flag, value, "image"])?;
        assert_eq!(output.status.code(), Some(code), "{environment} {flag} {value}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{environment} {flag} {value}");
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
            "genv: the shim does not restrict the devices that a compose file asks for: write device_ids: [\"0\", \"1\"] there",
        ),
        ("free", "compose up", "run 'genv attach' first"),
        ("mine", "compose ps", ""),
        ("gone", "compose up", ""),
    ] {
        let typed: Vec<&str> = line.split(' ').collect();
        let output = docker(&stage, environment, &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), line);
        let stderr = text(&output.stderr);
        assert_eq!(stderr.lines().count(), usize::from(!note.is_empty()), "{stderr}");
        assert!(stderr.contains(note), "{environment} {line}: {stderr}");
    }
    Ok(())
}

#[test]
fn without_gpus_or_an_environment_docker_is_as_it_was() -> Result<()> {
    let stage = Stage::new()?;
    for (environment, typed, called) in [
        ("free", "run image", "run -e GENV_ENVIRONMENT_ID image"),
        ("gone", "run image", "run image"),
        ("", "run --gpus all image", "run --gpus all image"),
    ] {
        let typed: Vec<&str> = typed.split(' ').collect();
        let output = docker(&stage, environment, &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), called, "{environment} {typed:?}");
    }
    let mut bypassed = stage.recorder("docker");
    let output = bypassed.env("GENV_BYPASS", "1").args(["run", "--gpus", "all", "image"]).output()?;
    assert_eq!(called_with(&text(&output.stdout)), "run --gpus all image");
    Ok(())
}

/// A flag of a help text, and whether it takes a value.
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
pub(crate) fn knows_every_flag(tool: &str, name: &str, device: &str) -> Result<()> {
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
    for tool in ["docker-client-20", "docker-client"] {
        knows_every_flag(tool, "docker", "device=2")?;
    }
    Ok(())
}
