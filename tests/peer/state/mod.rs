//! One state, changed by the real genv 1.4.3 and by this project.

mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{AttachRequest, Selection};
use genv_core::state::{
    ChangeError, Configuration, EditableState, LockError, MemberId, State, StateStore, StoreError, lock_devices,
};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::wait_for_lock;
use genv_tests::state_client::StateClient;

/// genv 1.4.3 on a machine with so many devices, of which it has made the state.
fn peer(devices: u32) -> Result<(Simulation, Peer, StateStore)> {
    let simulation = Simulation::new(&format!("version: 1\nhosts:\n- devices: [{{count: {devices}, memory: 16gi}}]\n"));
    let peer = Peer::new(&simulation)?;
    peer.genv(&["devices", "ps"])?;
    let store = StateStore::new(peer.state_directory());
    Ok((simulation, peer, store))
}

fn count(count: u32) -> AttachRequest {
    AttachRequest::new(Selection::Count(count))
}

fn change<T>(store: &mut StateStore, change: impl FnOnce(&mut EditableState) -> T) -> Result<T> {
    Ok(store.update(|state| Ok::<_, StoreError>(change(state)))?)
}

fn read(peer: &Peer, name: &str) -> Result<String> {
    Ok(std::fs::read_to_string(peer.state_directory().join(name))?)
}

/// A pid that lives as long as this test.
fn me() -> String {
    std::process::id().to_string()
}

fn activate_by_peer(peer: &Peer, eid: &str, pid: &str) -> Result<()> {
    peer.genv(&["envs", "activate", "--eid", eid, "--uid", "0", "--username", "root", "--pid", pid])?;
    Ok(())
}

#[test]
fn each_sees_extends_and_ends_what_the_other_made() -> Result<()> {
    let (_simulation, peer, mut store) = peer(4)?;
    let attached = change(&mut store, |state| -> Result<_, ChangeError> {
        state.activate("ours", 0, Some("root"), &MemberId::Process(std::process::id()));
        let configuration = Configuration {
            name: Some("my name".to_owned()),
            gpus: Some(2),
            gpu_memory: Some(MemoryAmount::from_person("4g").expect("an amount")),
        };
        state.configure("ours", configuration)?;
        state.attach("ours", &count(2))
    })??;
    ensure!(attached == [0, 1]);
    let envs = peer.genv(&["envs", "ps", "--format", "csv", "--no-header"])?;
    ensure!(envs.starts_with("ours,root(0),my name,"), "{envs}");
    ensure!(peer.genv(&["devices", "find", "--eid", "ours"])?.trim() == "0,1");

    // It extends ours: another member, another device.
    let mut shell = peer.shell()?;
    let pid = shell.pid().to_string();
    activate_by_peer(&peer, "ours", &pid)?;
    peer.genv(&["devices", "attach", "--eid", "ours", "--count", "3"])?;
    let state = store.read()?;
    ensure!(state.environments[0].pids == [std::process::id(), shell.pid()]);
    ensure!(state.devices.iter().filter(|it| !it.attachments.is_empty()).count() == 3);

    // We extend its own, and end what ended.
    activate_by_peer(&peer, "theirs", &me())?;
    change(&mut store, |state| state.attach("theirs", &count(1)))??;
    ensure!(peer.genv(&["devices", "find", "--eid", "theirs"])?.trim() == "3");
    change(&mut store, |state| {
        state.leave("theirs", &MemberId::Process(std::process::id()));
        state.leave("ours", &MemberId::Process(std::process::id()));
    })?;
    ensure!(peer.genv(&["envs", "find", "--pid", &pid])?.trim() == "ours");
    ensure!(peer.genv(&["devices", "find", "--eid", "theirs"])?.trim().is_empty());
    shell.kill()?;
    change(&mut store, |_| ())?;
    ensure!(read(&peer, "envs.json")? == "{\n  \"envs\": []\n}");
    ensure!(!read(&peer, "devices.json")?.contains("eid"));
    Ok(())
}

#[test]
fn what_we_write_it_writes_again_byte_for_byte() -> Result<()> {
    let (_simulation, peer, mut store) = peer(3)?;
    let texts = ["my env", "$(touch x);\"'\\", "Ünï😀", "\u{1b}[2J\u{7f}\r\n\t\u{0}", "\u{2028}a\u{10dcff}b"];
    change(&mut store, |state| -> Result<(), ChangeError> {
        for text in texts {
            state.activate(text, 7, Some(text), &MemberId::Process(std::process::id()));
            let configuration = Configuration {
                name: Some(text.to_owned()),
                gpus: Some(u32::MAX),
                gpu_memory: Some(MemoryAmount::mebibytes(7)),
            };
            state.configure(text, configuration)?;
            state.attach(text, &count(2))?;
        }
        state.activate("plain", 0, None, &MemberId::Process(std::process::id()));
        Ok(())
    })??;
    let ours = [read(&peer, "envs.json")?, read(&peer, "devices.json")?];
    // Both of its commands write what they read.
    std::fs::remove_file(peer.state_directory().join("genv-members.json"))?;
    peer.genv(&["envs", "find", "--pid", "1"])?;
    peer.genv(&["devices", "find", "--eid", "plain"])?;
    ensure!([read(&peer, "envs.json")?, read(&peer, "devices.json")?] == ours);
    change(&mut store, |_| ())?;
    ensure!([read(&peer, "envs.json")?, read(&peer, "devices.json")?] == ours);
    Ok(())
}

#[test]
fn neither_changes_the_state_while_the_other_does() -> Result<()> {
    let (_simulation, peer, mut store) = peer(2)?;
    let genv = |arguments: &[&str]| {
        let mut command = peer.command("genv");
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    // It waits for us.
    let child = store.update(|state| -> Result<Child, StoreError> {
        let pid = me();
        let arguments = ["envs", "activate", "--eid", "theirs", "--uid", "0", "--pid", &pid];
        let mut child = genv(&arguments).spawn().expect("it was started before");
        wait_for_lock(&mut child).expect("it waits");
        state.activate("ours", 0, None, &MemberId::Process(std::process::id()));
        Ok(child)
    })?;
    ensure!(child.wait_with_output()?.status.success());
    let state = store.read()?;
    let eids: Vec<&str> = state.environments.iter().map(|it| it.eid.as_str()).collect();
    ensure!(eids == ["ours", "theirs"], "{eids:?}");

    // We wait for it: it holds the lock for as long as a hanging nvidia-smi takes.
    std::fs::remove_file(peer.state_directory().join("devices.json"))?;
    let pipe = peer.folder().join("pipe");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success());
    let hanging = peer.folder().join("bin/nvidia-smi");
    std::fs::remove_file(&hanging)?;
    std::fs::write(&hanging, format!("#!/bin/sh\ncat {}\n", pipe.display()))?;
    std::fs::set_permissions(&hanging, std::fs::Permissions::from_mode(0o755))?;
    let mut child = genv(&["devices", "ps"]).spawn()?;
    // Opening the other end waits until it reads.
    let mut input = std::fs::File::create(&pipe)?;
    let mut impatient = StateStore::new(peer.state_directory()).patience(Duration::from_millis(50));
    let error = change(&mut impatient, |_| ()).expect_err("it holds the lock");
    let Some(StoreError::Lock(LockError::TimedOut { holder, .. })) = error.downcast_ref() else {
        anyhow::bail!("{error}");
    };
    let holder = holder.as_deref().context("no holder")?;
    ensure!(holder.contains(&format!("process {} ", child.id())), "{holder}");
    input.write_all(b"16384\n16384\n")?;
    drop(input);
    ensure!(child.wait()?.success());
    change(&mut impatient, |_| ())?;
    Ok(())
}

/// Starts a line of sh that uses genv 1.4.3.
fn sh(peer: &Peer, line: &str) -> Result<Child> {
    let mut command = peer.command("sh");
    command.args(["-c", line]).stdin(Stdio::null());
    Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

fn holders(state: &State) -> BTreeMap<u32, Vec<&str>> {
    let devices = state.devices.iter();
    devices
        .map(|device| {
            let eids = device.attachments.iter().map(|it| it.eid.as_str());
            (device.index, eids.collect())
        })
        .collect()
}

#[test]
fn activations_and_attachments_of_both_at_once_lose_nothing_and_give_no_device_twice() -> Result<()> {
    const OURS: u32 = 60;
    const THEIRS: u32 = 20;
    const DEVICES: u32 = 50;
    let (_simulation, peer, mut store) = peer(DEVICES)?;
    let directory = peer.state_directory();
    let mut theirs = Vec::new();
    let mut ours = Vec::new();
    for number in 0..OURS.max(THEIRS) {
        if number < THEIRS {
            let eid = format!("theirs-{number}");
            let pid = me();
            theirs.push(sh(
                &peer,
                &format!(
                    "genv envs activate --eid {eid} --uid 0 --pid {pid} && genv devices attach --eid {eid} --count 1"
                ),
            )?);
        }
        if number < OURS {
            ours.push(StateClient::start(&directory, &format!("ours-{number}"), 1, None)?);
        }
    }
    let mut had = BTreeSet::new();
    for client in &mut ours {
        let answer = client.answer()?;
        if !answer.starts_with("no: ") {
            ensure!(had.insert(answer.parse::<u32>()?), "device {answer} was given twice");
        }
    }
    for mut child in theirs {
        child.wait()?;
    }
    let state = store.read()?;
    let of_theirs = |eid: &&str| eid.starts_with("theirs");
    let environments = state.environments.iter().map(|it| it.eid.as_str());
    ensure!(environments.filter(of_theirs).count() == THEIRS as usize);
    // Of ours, those that got no device are gone as a whole.
    ensure!(state.environments.len() == THEIRS as usize + had.len());
    for (index, eids) in holders(&state) {
        ensure!(eids.len() == 1, "device {index} is held by {eids:?}");
        ensure!(had.contains(&index) == eids[0].starts_with("ours"), "{index}: {eids:?}");
    }
    Ok(())
}

const SDK: &str = r#"
import os, sys
import genv.sdk
from genv.entities import Env

def told(*what):
    print(*what, flush=True)
    sys.stdin.readline()

with genv.sdk.activate(eid="sdk", config=Env.Config(name="python", gpus=1)):
    told(os.getpid(), *genv.sdk.attached())
    genv.sdk.refresh_configuration()
    told(genv.sdk.configuration().name, *genv.sdk.refresh_attached())
    with genv.sdk.lock():
        told("locked")
told("over")
"#;

#[test]
fn its_python_sdk_shares_environments_attachments_and_device_locks() -> Result<()> {
    let (_simulation, peer, mut store) = peer(3)?;
    let mut command = peer.command("python3");
    let mut child = command.args(["-c", SDK]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no stdin")?;
    let mut output = std::io::BufReader::new(child.stdout.take().context("no stdout")?);
    let mut next = |go_on: bool| -> Result<String> {
        if go_on {
            input.write_all(b"\n")?;
        }
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line)?;
        ensure!(!line.is_empty(), "it ended");
        Ok(line.trim_end().to_owned())
    };
    let pid = child.id();
    ensure!(next(false)? == format!("{pid} 0"));
    let state = store.read()?;
    ensure!(state.environments[0].eid == "sdk" && state.environments[0].pids == [pid]);
    change(&mut store, |state| -> Result<(), ChangeError> {
        let mut configuration = state.configuration("sdk")?;
        configuration.name = Some("renamed".to_owned());
        state.configure("sdk", configuration)?;
        state.attach("sdk", &count(2))?;
        Ok(())
    })??;
    ensure!(next(true)? == "renamed 0 1");
    ensure!(next(true)? == "locked");
    let lock = |index: u32| {
        let patience = Some(Duration::from_millis(50));
        lock_devices(Path::new(&peer.state_directory()), &[index].into(), patience)
    };
    let error = lock(1).expect_err("it is locked");
    ensure!(matches!(error, StoreError::Lock(LockError::TimedOut { .. })), "{error}");
    lock(2)?;
    ensure!(next(true)? == "over");
    lock(0)?;
    lock(1)?;
    ensure!(store.read()?.environments.is_empty());
    drop(input);
    child.wait()?;
    Ok(())
}
