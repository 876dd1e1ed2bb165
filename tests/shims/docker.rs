//! Containers of an environment.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use genv_tests::tools;

use crate::stage::{Stage, UUID, called_with, real, text};

fn docker(stage: &Stage, environment: &str, arguments: &[&str]) -> Result<Output> {
    let real_nvidia_smi = real(550);
    let folders = [
        stage.recorders(),
        real_nvidia_smi.parent().context("a folder")?.to_owned(),
    ];
    // The recorder of docker, and the real nvidia-smi.
    std::fs::remove_file(stage.recorders().join("nvidia-smi")).ok();
    let folders: Vec<&Path> = folders.iter().map(|folder| folder.as_path()).collect();
    let mut command = stage.shim("docker", &folders);
    command
        .env("GENV_ENVIRONMENT_ID", environment)
        .args(arguments);
    Ok(command.output()?)
}

#[test]
fn containers_get_the_environments_devices_and_belong_to_it() -> Result<()> {
    let stage = Stage::new()?;
    let uuid = format!("device={}", UUID[1]);
    let foreign = format!("\"device={},0\"", UUID[3]);
    for (typed, called) in [
        (
            &["run", "--gpus", "all", "image"][..],
            "run -e GENV_ENVIRONMENT_ID --gpus \"device=0,1\" image",
        ),
        (
            &["run", "--gpus=1", "image"],
            "run -e GENV_ENVIRONMENT_ID --gpus=device=0 image",
        ),
        (
            &["create", "--gpus", "2", "image"],
            "create -e GENV_ENVIRONMENT_ID --gpus \"device=0,1\" image",
        ),
        (
            &["container", "run", "--gpus", "device=1", "image"],
            "container run -e GENV_ENVIRONMENT_ID --gpus device=1 image",
        ),
        (
            &[
                "-H",
                "tcp://x",
                "container",
                "create",
                "--gpus",
                "\"device=0,1,2\"",
                "image",
            ],
            "-H tcp://x container create -e GENV_ENVIRONMENT_ID --gpus \"device=0,1\" image",
        ),
        (
            &["run", "--gpus", &uuid, "image"],
            &format!("run -e GENV_ENVIRONMENT_ID --gpus {uuid} image"),
        ),
        (
            &["run", "--gpus", &foreign, "image"],
            "run -e GENV_ENVIRONMENT_ID --gpus device=0 image",
        ),
        (
            &[
                "run",
                "--gpus",
                "\"capabilities=utility,compute\",count=1",
                "image",
            ],
            "run -e GENV_ENVIRONMENT_ID --gpus \"capabilities=utility,compute\",device=0 image",
        ),
        (
            &["run", "-it", "--rm", "image", "--gpus", "all"],
            "run -e GENV_ENVIRONMENT_ID -it --rm image --gpus all",
        ),
        (&["run", "image"], "run -e GENV_ENVIRONMENT_ID image"),
        (&["ps", "-a"], "ps -a"),
        (
            &["exec", "x", "run", "--gpus", "all"],
            "exec x run --gpus all",
        ),
    ] {
        let output = docker(&stage, "mine", typed)?;
        assert_eq!(called_with(&text(&output.stdout)), called, "{typed:?}");
        assert_eq!(output.status.code(), Some(7), "{typed:?}");
    }
    Ok(())
}

#[test]
fn what_the_environment_has_not_is_refused() -> Result<()> {
    let stage = Stage::new()?;
    let foreign = format!("device={}", UUID[3]);
    for (environment, gpus, code) in [
        ("mine", "3", 4),
        ("mine", "device=2", 4),
        ("mine", &foreign, 4),
        // A PCI address begins like a MIG device of device 0.
        ("mine", "device=00000000:03:00.0", 4),
        ("mine", "device=$(touch x)\u{1b}[31m", 4),
        ("mine", "nonsense", 2),
        ("mine", "0", 2),
        ("free", "1", 4),
        ("free", "all", 4),
        ("gone", "all", 1),
    ] {
        let output = docker(&stage, environment, &["run", "--gpus", gpus, "image"])?;
        assert_eq!(
            output.status.code(),
            Some(code),
            "{environment} {gpus}: {output:?}"
        );
        assert_eq!(text(&output.stdout), "", "{environment} {gpus}");
        let said = text(&output.stderr);
        assert!(
            said.starts_with("genv: cannot ")
                && said.lines().count() == 1
                && !said.contains('\u{1b}'),
            "{said:?}"
        );
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
        assert_eq!(
            called_with(&text(&output.stdout)),
            called,
            "{environment} {typed:?}"
        );
    }
    let mut bypassed = stage.recorder("docker");
    let output = bypassed
        .env("GENV_BYPASS", "1")
        .args(["run", "--gpus", "all", "image"])
        .output()?;
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

#[test]
fn every_flag_of_real_clients_is_known() -> Result<()> {
    let stage = Stage::new()?;
    for tool in ["docker-client-20", "docker-client"] {
        let client = tools::program(tool, "docker");
        let help = |arguments: &[&str]| -> Result<Vec<Flag>> {
            let output = Command::new(&client).args(arguments).output()?;
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
                let line = [
                    &[subcommand, &flag],
                    value,
                    &["--gpus", "all", "image", "--gpus", "all"],
                ]
                .concat();
                let output = docker(&stage, "alone", &line)?;
                let value = if takes_value { " --gpus" } else { "" };
                let expected = format!(
                    "{subcommand} -e GENV_ENVIRONMENT_ID {flag}{value} --gpus device=2 image --gpus all"
                );
                assert_eq!(
                    called_with(&text(&output.stdout)),
                    expected,
                    "{tool} {flag}"
                );
                assert_eq!(text(&output.stderr), "", "{tool} {flag}");
            }
        }
        for (flag, takes_value) in help(&["--help"])? {
            let value: &[&str] = if takes_value { &["run"] } else { &[] };
            let line = [&[flag.as_str()], value, &["run", "--gpus", "all", "image"]].concat();
            let called = called_with(&text(&docker(&stage, "alone", &line)?.stdout));
            assert!(
                called.ends_with("run -e GENV_ENVIRONMENT_ID --gpus device=2 image"),
                "{tool} {flag}: {called}"
            );
        }
    }
    Ok(())
}
