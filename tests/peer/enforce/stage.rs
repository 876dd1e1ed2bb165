//! Processes, their user, and the two programs that judge them.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{is_alive, sleeper_of};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{self, until};
use genv_tests::peer::Peer;
use genv_tests::process::{self, Sleeper};
use rustix::process::geteuid;
use serde_json::Value;

/// Whose processes they are. Root's are out of reach of every rule of ours, so that where root runs the tests somebody
/// else is meant, who has a name on every machine.
pub(crate) fn account() -> Result<(u32, String)> {
    let own = geteuid();
    if own.is_root() {
        return Ok((65_534, "nobody".to_owned()));
    }
    let output = Command::new("id").arg("-un").output()?;
    let name = String::from_utf8(output.stdout)?.trim().to_owned();
    Ok((own.as_raw(), name))
}

/// A process of that user, in an environment.
pub(crate) fn in_environment(eid: &str) -> Result<Sleeper> {
    sleeper_of(account()?.0, &[("PATH", "/bin"), ("GENV_ENVIRONMENT_ID", eid)])
}

/// One outside of any.
pub(crate) fn outside() -> Result<Sleeper> {
    sleeper_of(account()?.0, &[("PATH", "/bin")])
}

/// Processes with the device and the memory, in MiB, that each uses; of four devices with 40 GiB.
pub(crate) fn lab(uses: &[(&Sleeper, u32, u32)]) -> String {
    let processes: Vec<String> = uses
        .iter()
        .map(|(process, index, memory)| {
            let pid = process.pid();
            format!("{{pid: {pid}, devices: [{{index: {index}, memory: {memory}mi}}]}}")
        })
        .collect();
    let processes = processes.join(", ");
    format!("version: 1\nhosts:\n- devices: [{{count: 4, memory: 40gi}}]\n  processes: [{processes}]\n")
}

/// A machine with genv 1.4.3 and ours.
pub(crate) struct Stage {
    pub(crate) peer: Peer,
    pub(crate) uid: u32,
    pub(crate) username: String,
}

/// What was named, or had its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) pids: BTreeSet<u32>,
    /// Environments with devices.
    pub(crate) attachments: BTreeSet<(String, u64)>,
}

impl Stage {
    pub(crate) fn new(simulation: &Simulation) -> Result<Self> {
        let (uid, username) = account()?;
        let peer = Peer::new(simulation)?;
        // The state comes with the first command.
        peer.genv(&["devices"])?;
        Ok(Self { peer, uid, username })
    }

    /// An environment of the user, alive as long as this process is.
    pub(crate) fn environment(&self, eid: &str, member: &Sleeper, devices: &[u32]) -> Result<()> {
        let (pid, uid) = (member.pid().to_string(), self.uid.to_string());
        let identity = ["--pid", &pid, "--eid", eid, "--uid", &uid];
        let activate = [&["envs", "activate"], &identity[..], &["--username", &self.username]];
        self.peer.genv(&activate.concat())?;
        for device in devices {
            let device = device.to_string();
            self.peer.genv(&["devices", "attach", "--eid", eid, "--index", &device])?;
        }
        Ok(())
    }

    pub(crate) fn limit_memory(&self, eid: &str, memory: &str) -> Result<()> {
        let words = ["envs", "config", "--eid", eid, "gpu-memory", "--gpu-memory"];
        self.peer.genv(&[&words[..], &[memory]].concat())?;
        Ok(())
    }

    pub(crate) fn theirs(&self, flags: &[&str]) -> Result<Output> {
        let mut command = self.peer.command("genv");
        patience::output(command.args(["enforce", "--interval", "0"]).args(flags))
    }

    /// What ours says of the same flags, without doing anything.
    pub(crate) fn ours(&self, flags: &[&str]) -> Result<Value> {
        let own = self.peer.folder().join("enforcer");
        // What it said before would count as done.
        let _ = fs::remove_dir_all(&own);
        let program = process::program("genv-enforcer")?;
        let mut command = self.peer.our_command(&program.to_string_lossy())?;
        command
            .env("STATE_DIRECTORY", &own)
            .env_remove("GENV_TERMINATE_PROCESSES")
            .args(["run", "--once", "--dry-run", "--genv-1"])
            .args(flags);
        let output = patience::output(&mut command)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{flags:?}: {stderr}");
        Ok(serde_json::from_slice(&fs::read(own.join("status.json"))?)?)
    }

    pub(crate) fn attachments(&self) -> Result<BTreeSet<(String, u64)>> {
        let path = self.peer.state_directory().join("devices.json");
        let devices: Value = serde_json::from_slice(&fs::read(path)?)?;
        let devices = devices["devices"].as_array().context("no devices")?;
        let held = devices.iter().flat_map(|device| {
            let index = device["index"].as_u64().unwrap_or_default();
            let attachments = device["attachments"].as_array().into_iter().flatten();
            attachments.filter_map(move |it| Some((it["eid"].as_str()?.to_owned(), index)))
        });
        Ok(held.collect())
    }

    /// What ends, and what is taken, when genv 1.4.3 enforces with these flags: as much as is expected, and no more.
    pub(crate) fn ended_by_theirs(&self, flags: &[&str], processes: &[&Sleeper], expected: &Named) -> Result<Named> {
        let before = self.attachments()?;
        let output = self.theirs(flags)?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{flags:?}: {output:?}");
        until(&format!("{expected:?} has ended; it said {said}"), || {
            Ok(expected.pids.iter().all(|pid| !is_alive(*pid)))
        })?;
        let pids = processes.iter().map(|it| it.pid());
        Ok(Named {
            pids: pids.filter(|pid| !is_alive(*pid)).collect(),
            attachments: before.difference(&self.attachments()?).cloned().collect(),
        })
    }
}

/// Everything that a status names to be ended or taken.
pub(crate) fn named(status: &Value) -> Result<Named> {
    let mut named = Named::default();
    for violation in status["violations"].as_array().context("no violations")? {
        for target in violation["targets"].as_array().context("no targets")? {
            let target = target.as_str().context("no text")?;
            let words: Vec<&str> = target.split([' ', ',']).collect();
            for pair in words.windows(2) {
                if let ["process", pid] = pair {
                    named.pids.insert(pid.parse()?);
                }
            }
            if let ["device", index, "of", "environment", eid, ..] = words[..] {
                named.attachments.insert((eid.to_owned(), index.parse()?));
            }
        }
    }
    Ok(named)
}

pub(crate) fn rules(status: &Value) -> Vec<&str> {
    let violations = status["violations"].as_array().into_iter().flatten();
    violations.filter_map(|it| it["rule"].as_str()).collect()
}

pub(crate) const ONLY_OUTSIDE: [&str; 3] = ["--non-env-processes", "--no-env-devices", "--no-env-memory"];
pub(crate) const ONLY_DEVICES: [&str; 2] = ["--env-devices", "--no-env-memory"];
pub(crate) const ONLY_MEMORY: [&str; 2] = ["--no-env-devices", "--env-memory"];
pub(crate) const NONE: [&str; 2] = ["--no-env-devices", "--no-env-memory"];
