//! A state of the real genv 1.4.3, which the first change of ours imports.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use genv_core::state::{LockError, StateStore, StoreError, lock_devices};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{Lines, ended};
use genv_tests::peer::Peer;
use genv_tests::process::{Running, write_script};
use genv_tests::state;
use rustix::process::getuid;
use serde_json::Value;

/// The environment that holds all devices in the files of genv 1.4.3 after the import.
const HOLDER: &str = "moved-to-state.json";

/// For a lock that is held as long as it is waited for.
const SHORT: Duration = Duration::from_millis(50);

/// genv 1.4.3 on a machine with so many devices.
fn peer(devices: u32) -> Result<(Simulation, Peer)> {
    let devices = format!("[{{count: {devices}, memory: 16gi}}]");
    let simulation = Simulation::new(&format!("version: 1\nhosts:\n- devices: {devices}\n  processes: []\n"));
    let peer = Peer::new(&simulation)?;
    Ok((simulation, peer))
}

#[test]
fn an_environment_of_genv_1_keeps_its_devices_and_genv_1_attaches_none_afterwards() -> Result<()> {
    let (_simulation, peer) = peer(4)?;
    let mut shell = peer.shell()?;
    shell.run("genv activate --name training --gpus 2")?;
    let eid = shell.run("echo $GENV_ENVIRONMENT_ID")?.trim().to_owned();
    let find = ["devices", "find", "--eid", &eid];
    ensure!(peer.genv(&find)?.trim() == "0,1");
    let files = ["envs.json", "devices.json"].map(|name| peer.state_directory().join(name));
    let content = |files: &[PathBuf]| files.iter().map(fs::read).collect::<Result<Vec<_>, _>>();
    let before = content(&files)?;

    // A command that only reads shows it, and changes nothing.
    let query = ["envs", "query", "--query", "eid", "config.name", "config.gpus"];
    let expected = format!("{eid},training,2");
    ensure!(peer.our_genv(&query)?.trim() == expected);
    ensure!(!peer.state_directory().join(state::FILE).exists() && content(&files)? == before);

    peer.our_genv(&["exec", "--gpus", "1", "--", "true"])?;
    ensure!(peer.our_genv(&query)?.trim() == expected);
    ensure!(peer.our_genv(&find)?.trim() == "0,1");
    let kept = files.each_ref().map(|path| path.with_extension("json.imported"));
    ensure!(content(&kept)? == before);

    // genv 1.4.3 has one environment, which holds all devices, and a new one gets none.
    let shown = peer.genv(&["envs", "ps", "--format", "csv", "--no-header"])?;
    ensure!(shown.starts_with(HOLDER) && shown.lines().count() == 1, "{shown}");
    let me = std::process::id().to_string();
    peer.genv(&["envs", "activate", "--eid", "late", "--uid", "0", "--username", "root", "--pid", &me])?;
    let report = peer.our_command("genv")?.args(["doctor", "--json"]).output()?;
    let report: Value = serde_json::from_slice(&report.stdout)?;
    let checks = report["checks"].as_array().context("no checks")?;
    let theirs = checks.iter().find(|it| it["name"] == "genv 1.x").context("it is not named")?;
    ensure!(
        theirs["verdict"] == "warn" && theirs["found"].as_str().is_some_and(|it| it.contains("late of root")),
        "{theirs}"
    );
    for wish in [["--count", "1"], ["--index", "3"]] {
        let mut attach = peer.command("genv");
        let attach = attach.args(["devices", "attach", "--eid", "late"]).args(wish).stdin(Stdio::null());
        let refused = attach.output()?;
        ensure!(refused.status.code() == Some(1), "{wish:?}: {refused:?}");
    }
    let all = peer.genv(&["devices", "find", "--eid", HOLDER])?;
    ensure!(all.trim() == "0,1,2,3", "{all}");

    // The imported environment ends with its shell.
    shell.kill()?;
    peer.our_genv(&["exec", "--", "true"])?;
    let state = state::read(&peer.state_directory())?;
    ensure!(state["environments"].as_array().is_some_and(Vec::is_empty), "{state}");
    Ok(())
}

#[test]
fn the_import_waits_until_genv_1_has_changed_its_state() -> Result<()> {
    let (_simulation, peer) = peer(2)?;
    let folder = peer.state_directory();
    let (uid, me) = (getuid().as_raw().to_string(), std::process::id().to_string());
    peer.genv(&["envs", "activate", "--eid", "theirs", "--uid", &uid, "--pid", &me])?;
    // Without its devices it asks nvidia-smi for them, and holds the lock for as long as that takes.
    peer.genv(&["devices", "ps"])?;
    fs::remove_file(folder.join("devices.json"))?;
    let pipe = peer.folder().join("pipe");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success());
    write_script(&peer.folder().join("bin/nvidia-smi"), &format!("#!/bin/sh\ncat {}\n", pipe.display()))?;
    let mut genv = peer.command("genv");
    let mut theirs = Running::spawn(genv.args(["devices", "ps"]).stdin(Stdio::null()).stdout(Stdio::null()))?;
    // Opening the other end waits until it reads.
    let mut input = File::create(&pipe)?;
    let mut store = StateStore::new(&folder).patience(SHORT);
    let mut change = || store.update(|_| Ok::<_, StoreError>(()));
    let holder = match change() {
        Err(StoreError::Lock(LockError::TimedOut { holder, .. })) => holder.context("no holder")?,
        other => bail!("{other:?}"),
    };
    ensure!(holder.contains(&format!("process {} ", theirs.id())), "{holder}");
    ensure!(!folder.join(state::FILE).exists());
    input.write_all(b"16384\n16384\n")?;
    drop(input);
    ensure!(ended(&mut theirs)?.success());
    change()?;
    let state = state::read(&folder)?;
    ensure!(state["environments"][0]["eid"] == "theirs" && state["devices"][1]["index"] == 1, "{state}");
    Ok(())
}

/// Locks the device of an environment until a line comes.
const LOCKS: &str = r#"
import sys
import genv.sdk
from genv.entities import Env

def told(*what):
    print(*what, flush=True)
    sys.stdin.readline()

with genv.sdk.activate(eid="sdk", config=Env.Config(gpus=1)):
    with genv.sdk.lock():
        told("locked", *genv.sdk.attached())
    told("over")
"#;

#[test]
fn a_device_that_genv_1_has_locked_is_locked_for_ours() -> Result<()> {
    let (_simulation, peer) = peer(2)?;
    peer.genv(&["devices", "ps"])?;
    let mut python = peer.command("python3");
    let python = python.args(["-c", LOCKS]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = Running::spawn(python)?;
    let mut input = python.stdin.take().context("no stdin")?;
    let printed = Lines::of(python.stdout.take().context("no stdout")?);
    ensure!(printed.next_line()? == "locked 0");
    let lock = |index: u32| lock_devices(&peer.state_directory(), &[index].into(), Some(SHORT));
    let locked = lock(0);
    ensure!(matches!(&locked, Err(StoreError::Lock(LockError::TimedOut { .. }))), "{locked:?}");
    lock(1)?;
    input.write_all(b"\n")?;
    ensure!(printed.next_line()? == "over");
    lock(0)?;
    drop(input);
    ensure!(ended(&mut python)?.success());
    Ok(())
}
