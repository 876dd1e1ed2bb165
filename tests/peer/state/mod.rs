//! One state, changed by the real genv 1.4.3 and by this project.

mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{AttachRequest, Selection};
use genv_core::state::{
    Configuration, EditableState, LockError, MemberId, Refusal, StateStore, StoreError, lock_devices,
};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{Lines, ended};
use genv_tests::peer::Peer;
use genv_tests::process::{Running, wait_for_lock};
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
    let attached = change(&mut store, |state| -> Result<_, Refusal> {
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
    ensure!(state.environments[0].pids().eq([std::process::id(), shell.pid()]));
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
    change(&mut store, |state| -> Result<(), Refusal> {
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
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
}

/// Programs forked from one Python, each with an environment of its own until its input ends. Every second one asks for a part
/// of a device.
const FORKS: &str = r#"
import os, sys
import genv.sdk
from genv.entities import Env

eids = sys.argv[1:]
for number, eid in enumerate(eids):
    if os.fork() == 0:
        memory = "5gi" if number % 2 else None
        with genv.sdk.activate(eid=eid, config=Env.Config(gpu_memory=memory)):
            genv.sdk.refresh_configuration()
            try:
                device, = genv.sdk.attach(gpus=1)
            except RuntimeError:
                device = "none"
            os.write(1, f"{eid} {device}\n".encode())
            sys.stdin.readline()
        os._exit(0)
for _ in eids:
    os.wait()
"#;

#[test]
fn activations_and_attachments_of_both_at_once_lose_nothing_and_give_no_device_twice() -> Result<()> {
    const DEVICES: u32 = 40;
    const EDITORS: u32 = 12;
    const FORKED: u32 = 12;
    let (_simulation, peer, mut store) = peer(DEVICES)?;
    let directory = peer.state_directory();
    let eids =
        |way: &str, numbers: Range<u32>| -> Vec<String> { numbers.map(|number| format!("{way}-{number}")).collect() };
    let mut python = peer.command("python3");
    python.args(["-c", FORKS]).args(eids("their-sdk", 0..FORKED));
    let mut forks = Running::spawn(python.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut editors = Vec::new();
    for eid in eids("their-editor", 0..EDITORS) {
        let pid = me();
        let line =
            format!("genv envs activate --eid {eid} --uid 0 --pid {pid} && genv devices attach --eid {eid} --count 1");
        editors.push((sh(&peer, &line)?, eid));
    }
    // Every second one of ours asks for a part of a device, too.
    let start = |numbers: Range<u32>| -> Result<Vec<(String, StateClient)>> {
        let of_ours = eids("ours", numbers).into_iter().enumerate();
        of_ours
            .map(|(number, eid)| {
                let memory = (number % 2 == 1).then_some("5gi");
                let client = StateClient::start(&directory, &eid, 1, memory)?;
                Ok((eid, client))
            })
            .collect()
    };

    let mut had = BTreeMap::new();
    let lines = Lines::of(forks.stdout.take().context("no stdout")?);
    let mut hear = |line: &str| -> Result<()> {
        let (eid, device) = line.split_once(' ').context("no device")?;
        if device != "none" {
            had.insert(eid.to_owned(), device.parse::<u32>().with_context(|| line.to_owned())?);
        }
        Ok(())
    };
    // Python takes its time to start. From now on all attach devices at the same time, and there are enough for most.
    hear(&lines.next_line()?)?;
    let mut ours = start(0..20)?;
    for _ in 1..FORKED {
        hear(&lines.next_line()?)?;
    }
    for (child, eid) in editors {
        let output = child.wait_with_output()?;
        match output.status.code() {
            Some(0) => hear(&format!("{eid} {}", String::from_utf8(output.stdout)?.trim()))?,
            code => ensure!(code == Some(1), "{eid}: {code:?}"),
        }
    }
    // These ask for more devices than are left.
    ours.extend(start(20..60)?);
    for (eid, client) in &mut ours {
        let answer = client.answer()?;
        if !answer.starts_with("no: ") {
            hear(&format!("{eid} {answer}"))?;
        }
    }

    let state = store.read()?;
    let mut attached = BTreeMap::new();
    for device in &state.devices {
        let total = device.total_memory.context("no total")?.bytes();
        let claims = device.attachments.iter().map(|it| it.gpu_memory.map_or(total, MemoryAmount::bytes));
        ensure!((1..=total).contains(&claims.sum::<u64>()), "unused, or given to too many: {device:?}");
        for attachment in &device.attachments {
            let twice = attached.insert(attachment.eid.clone(), device.index);
            ensure!(twice.is_none(), "{} asked for one device and has two", attachment.eid);
        }
    }
    ensure!(attached == had, "{attached:?} and not {had:?}");
    for way in ["ours", "their-editor", "their-sdk"] {
        ensure!(had.keys().any(|eid| eid.starts_with(way)), "{way} has no device");
    }
    // Of ours, those that got no device are gone as a whole.
    let environments: BTreeSet<&String> = state.environments.iter().map(|it| &it.eid).collect();
    let theirs = [eids("their-sdk", 0..FORKED), eids("their-editor", 0..EDITORS)].concat();
    let expected: BTreeSet<&String> = had.keys().chain(&theirs).collect();
    ensure!(environments == expected, "{environments:?} and not {expected:?}");

    // Some leave, others are killed, and each program ends what the other made.
    drop(forks.stdin.take());
    ended(&mut forks)?;
    drop(ours);
    peer.genv(&["envs", "ps"])?;
    change(&mut store, |state| {
        for eid in eids("their-editor", 0..EDITORS) {
            state.leave(&eid, &MemberId::Process(std::process::id()));
        }
    })?;
    let state = store.read()?;
    ensure!(state.environments.is_empty(), "{:?}", state.environments);
    ensure!(state.devices.iter().all(|it| it.attachments.is_empty()), "{:?}", state.devices);
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
    let mut child = Running::spawn(command.args(["-c", SDK]).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut input = child.stdin.take().context("no stdin")?;
    let output = Lines::of(child.stdout.take().context("no stdout")?);
    let mut next = |go_on: bool| -> Result<String> {
        if go_on {
            input.write_all(b"\n")?;
        }
        output.next_line()
    };
    let pid = child.id();
    ensure!(next(false)? == format!("{pid} 0"));
    let state = store.read()?;
    ensure!(state.environments[0].eid == "sdk" && state.environments[0].pids().eq([pid]));
    change(&mut store, |state| -> Result<(), Refusal> {
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

const WITHIN: &str = r#"python3 -c "
import genv.sdk as s
print(s.active(), s.eid(), list(s.attached()), s.configuration())
print(list(s.attach(gpus=3)), list(s.detach(1)))
with s.lock(): print('locked')
""#;

#[test]
fn its_python_sdk_works_within_an_environment_of_ours() -> Result<()> {
    let (_simulation, peer, _store) = peer(4)?;
    // Its own python3, with our variables.
    let python = peer.command("python3");
    let path = python.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, value)| value).context("no PATH")?;
    let mut bash = peer.our_shell()?;
    bash.run("genv activate --id e1 --name 'my env' --gpus 2 --gpu-memory 4g")?;
    let printed = bash.run(&format!("PATH={}:$PATH {WITHIN}", path.to_string_lossy()))?;
    let mut lines = printed.lines();
    let first = lines.next().unwrap_or_default();
    let has_all = ["'my env'", "'4g'", "gpus=2"].iter().all(|part| first.contains(part));
    ensure!(first.starts_with("True e1 [0, 1] ") && has_all, "{printed}");
    ensure!(lines.eq(["[0, 1, 2] [0, 2]", "locked"]), "{printed}");
    ensure!(bash.run("genv attach --refresh; echo $CUDA_VISIBLE_DEVICES")? == "0,2\n");
    Ok(())
}
