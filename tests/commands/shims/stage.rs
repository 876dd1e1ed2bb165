//! A machine with an environment, and shims in front of real programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result};
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::{Sleeper, program, write_script};
use genv_tests::state::{self, Environment};
use genv_tests::tools;
use serde_json::json;

pub(crate) const GENERATIONS: [u32; 3] = [470, 535, 550];

pub(crate) const UUID: [&str; 4] = [
    "GPU-00000000-0000-0000-0000-000000000000",
    "GPU-00000000-0000-0000-0000-000000000001",
    "GPU-00000000-0000-0000-0000-000000000002",
    "GPU-00000000-0000-0000-0000-000000000003",
];
pub(crate) const MIG_OF_1: &str = "MIG-00000000-0000-0000-0001-000000000001";
pub(crate) const MIG_OF_3: &str = "MIG-00000000-0000-0000-0003-000000000001";

/// A machine of four GPUs, of which 1 and 3 are split. The environment `mine` is attached to 0 (with 4 GiB of 40)
/// and 1, `free` to none, `wide` to as many as there are names for. One process belongs to `mine`, one to nobody.
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    pub(crate) simulation: Simulation,
    pub(crate) own: Sleeper,
    pub(crate) other: Sleeper,
}

impl Stage {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "mine")])?;
        let other = Sleeper::start(&[("A", "1")])?;
        let simulation = Simulation::new(&scenario(own.pid(), other.pid()));
        let member = own.pid();
        let stage = Self { folder, simulation, own, other };
        fs::create_dir(stage.shims())?;
        for name in ["nvidia-smi", "docker", "podman"] {
            symlink(program("genv-shim")?, stage.shims().join(name))?;
        }
        fs::create_dir(stage.recorders())?;
        for name in ["nvidia-smi", "docker", "podman"] {
            write_script(&stage.recorders().join(name), RECORDER)?;
        }
        let uid = rustix::process::getuid().as_raw();
        let environment = |eid: &str, devices: &[usize]| Environment::new(eid, uid, member, devices);
        let environments = [
            Environment { gpu_memory: Some("4gi"), ..environment("mine", &[0]) },
            environment("free", &[]),
            environment("wide", &(0..18).collect::<Vec<usize>>()),
            environment("five", &[0, 1, 2, 3, 4]),
            environment("alone", &[2]),
        ];
        state::write(&stage.state(), 18, &environments)?;
        // One amount for each attachment: the helper gives one to all, and the second device has none.
        state::edit(&stage.state(), |it| {
            let attachments = it["devices"][1]["attachments"].as_array_mut().context("no attachments")?;
            attachments.push(json!({"eid": "mine"}));
            Ok(())
        })?;
        Ok(stage)
    }

    pub(crate) fn replace(&mut self, own: Sleeper, other: Sleeper) {
        self.simulation.rewrite(&scenario(own.pid(), other.pid()));
        (self.own, self.other) = (own, other);
    }

    pub(crate) fn shims(&self) -> PathBuf {
        self.folder.path().join("shims")
    }

    /// The folder of programs that tell what they were called with.
    pub(crate) fn recorders(&self) -> PathBuf {
        self.folder.path().join("recorders")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The shim `name` in the environment `mine`, in front of what is in `folders`.
    pub(crate) fn shim(&self, name: &str, folders: &[&Path]) -> Command {
        let mut path = vec![self.shims()];
        path.extend(folders.iter().map(|folder| folder.to_path_buf()));
        path.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let mut command = self.simulation.command(&self.shims().join(name));
        command
            .env("PATH", std::env::join_paths(path).expect("no colon in a path"))
            .env("GENV_TMPDIR", self.state())
            .env("GENV_ENVIRONMENT_ID", "mine")
            .env_remove("GENV_BYPASS")
            .env_remove("GENV_SMI")
            .env_remove("GENV_SHIM_DEPTH");
        command
    }

    pub(crate) fn nvidia_smi(&self, generation: u32) -> Command {
        let real = real(generation);
        self.shim("nvidia-smi", &[real.parent().expect("it is in a folder")])
    }

    /// The shim in front of a program that tells what it was called with.
    pub(crate) fn recorder(&self, name: &str) -> Command {
        self.shim(name, &[&self.recorders()])
    }

    /// What the recorder behind `nvidia-smi` in this environment was called with, after this line was typed.
    pub(crate) fn recorded(&self, environment: &str, line: &str) -> Result<String> {
        let mut command = self.recorder("nvidia-smi");
        command.env("GENV_ENVIRONMENT_ID", environment);
        let output = command.args(line.split_whitespace()).output()?;
        Ok(called_with(&text(&output.stdout)))
    }
}

pub(crate) fn real(generation: u32) -> PathBuf {
    tools::program(&format!("nvidia-smi-{generation}"), "nvidia-smi")
}

pub(crate) fn real_output(stage: &Stage, generation: u32, arguments: &[&str]) -> Result<Output> {
    let mut command = stage.simulation.command(&real(generation));
    Ok(command.args(arguments).output()?)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Tells its pid, its arguments, and what it was allowed to show.
const RECORDER: &str = r#"#!/bin/sh
echo "pid $$"
for argument; do printf 'argument %s\n' "$argument"; done
[ -z "${NVSMI_SHOW_ALL_DEVICES+set}" ] || echo "all $NVSMI_SHOW_ALL_DEVICES"
exit 7
"#;

/// The arguments that recorders tell, one line for each time that one ran.
pub(crate) fn called_with(output: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in output.lines() {
        match (line.split_once(' '), lines.last_mut()) {
            (Some(("pid", _)), _) => lines.push(String::new()),
            (Some(("argument", argument)), Some(last)) => {
                last.push_str(if last.is_empty() { "" } else { " " });
                last.push_str(argument);
            }
            (Some(("all", all)), Some(last)) => *last = format!("[all {all}] {last}"),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

fn scenario(own: u32, other: u32) -> String {
    let [zero, one, two, three] = UUID;
    format!(
        "version: 1
hosts:
- name: gpu02
  environments: []
  devices:
  - {{name: NVIDIA A100-SXM4-40GB, memory: 40gi, utilization: 0.37, uuid: {zero}}}
  - name: NVIDIA A100-SXM4-80GB
    memory: 80gi
    uuid: {one}
    mig: [{{profile: 3g.40gb, memory: 40gi, uuid: {MIG_OF_1}}}, {{profile: 4g.40gb, memory: 40gi}}]
  - {{name: NVIDIA GeForce RTX 3090, memory: 24gi, uuid: {two}, ecc: {{enabled: false}}, fans: [0.3, 0.3]}}
  - name: NVIDIA A100-SXM4-80GB
    memory: 80gi
    uuid: {three}
    mig: [{{profile: 7g.80gb, memory: 80gi, uuid: {MIG_OF_3}}}]
  processes:
  - {{pid: {own}, devices: [{{index: 0, memory: 3gi}}, {{index: \"1:1\", memory: 4gi}}]}}
  - {{pid: {other}, devices: [{{index: 0, memory: 1gi}}, {{index: \"1:0\", memory: 5gi}}, {{index: \"1:1\", memory: 1gi}}, {{index: 2, memory: 1gi}}]}}
"
    )
}
