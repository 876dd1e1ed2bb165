//! Two hundred who want devices at once, of both kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use genv_core::model::MemoryAmount;
use genv_tests::peer::Peer;
use serde_json::Value;

use crate::cli::lab::{file, lab, peer_reads};

const DEVICES: u32 = 60;
/// Of each way to ask for a device so many.
const EACH: usize = 50;
/// So many of each way start at once: two cores have work for minutes with all of them.
const WAVE: usize = 10;

/// A command of ours gives up where others hold the lock for long, as they do on a busy machine, and has changed nothing then.
const AGAIN: &str = "again() { while \"$@\"; code=$?; [ $code = 6 ]; do :; done; return $code; }";

/// Programs forked from one Python, each with an environment of its own until its input ends.
const FORKS: &str = r#"
import os, sys
import genv.sdk
from genv.entities import Env

for number, eid in enumerate(sys.argv[1:]):
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
"#;

/// Of what was told: which environment has which device; none: it was refused one.
type Told = BTreeMap<String, Option<u64>>;

/// Programs that end with the value.
#[derive(Default)]
struct Crowd {
    children: Vec<Child>,
    told: Told,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(command: &mut Command) -> Result<Child> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command.stderr(Stdio::null()).spawn()?)
}

fn eids(way: &str, wave: usize) -> impl Iterator<Item = (usize, String)> {
    (wave * WAVE..(wave + 1) * WAVE).map(move |number| (number, format!("{way}-{number}")))
}

impl Crowd {
    /// The next few of each way, which start together.
    fn wave(&mut self, peer: &Peer, wave: usize) -> Result<()> {
        // Ours: a command in an environment of its own, which lasts until its input ends.
        let mut jobs = Vec::new();
        for (number, eid) in eids("our-job", wave) {
            let memory = if number % 2 == 1 { "--gpu-memory=5gi" } else { "" };
            let line = format!(
                "{AGAIN}; again genv exec --no-load --gpus=1 --eid {eid} {memory} -- sh -c 'echo $CUDA_VISIBLE_DEVICES; read line'"
            );
            jobs.push((eid, spawn(peer.our_command("sh")?.args(["-c", &line]))?));
        }
        // Both: two calls, as an editor makes them.
        let mut editors = Vec::new();
        for (way, ours) in [("our-editor", true), ("their-editor", false)] {
            for (_, eid) in eids(way, wave) {
                let me = std::process::id();
                let line = format!(
                    "{AGAIN}; again genv envs activate --eid {eid} --uid 0 --pid {me} && again genv devices attach --eid {eid} --count 1"
                );
                let mut command = if ours { peer.our_command("sh")? } else { peer.command("sh") };
                editors.push((eid, spawn(command.args(["-c", &line]))?));
            }
        }
        let mut python = peer.command("python3");
        python.args(["-c", FORKS]);
        let mut forks = spawn(python.args(eids("their-sdk", wave).map(|(_, eid)| eid)))?;

        let mut lines = BufReader::new(forks.stdout.take().context("no stdout")?).lines();
        self.children.push(forks);
        for (eid, mut child) in jobs {
            let mut line = String::new();
            let output = child.stdout.as_mut().context("no stdout")?;
            BufReader::new(output).read_line(&mut line)?;
            let refused = line.is_empty();
            if refused {
                let code = child.wait()?.code();
                ensure!(code == Some(4), "{eid}: {code:?}");
            }
            self.children.push(child);
            self.hear(eid, line.trim(), refused)?;
        }
        for (eid, mut child) in editors {
            let mut line = String::new();
            let mut output = child.stdout.take().context("no stdout")?;
            output.read_to_string(&mut line)?;
            let code = child.wait()?.code().context("a signal")?;
            let refused = code == if eid.starts_with("our") { 4 } else { 1 };
            ensure!(refused || code == 0, "{eid}: {code}");
            self.hear(eid, line.trim(), refused)?;
        }
        for _ in 0..WAVE {
            let line = lines.next().context("one of its forks ended")??;
            let (eid, device) = line.split_once(' ').context("no device")?;
            self.hear(eid.to_owned(), device, device == "none")?;
        }
        Ok(())
    }

    fn hear(&mut self, eid: String, device: &str, refused: bool) -> Result<()> {
        let device = if refused { None } else { Some(device.parse().context(eid.clone())?) };
        self.told.insert(eid, device);
        Ok(())
    }
}

/// Which environment has which device, by devices.json; no device is promised more than it has.
fn attachments(devices: &Value) -> Result<BTreeMap<String, u64>> {
    let mut attachments = BTreeMap::new();
    let bytes = |amount: &Value| -> Result<u64> {
        let text = amount.as_str().context("no amount")?;
        Ok(MemoryAmount::from_file(text).context("no amount")?.bytes())
    };
    for device in devices["devices"].as_array().context("no devices")? {
        let index = device["index"].as_u64().context("no index")?;
        let total = bytes(&device["total_memory"])?;
        let mut claimed = 0;
        for attachment in device["attachments"].as_array().context("no attachments")? {
            let amount = &attachment["gpu_memory"];
            claimed += if amount.is_null() { total } else { bytes(amount)? };
            let eid = attachment["eid"].as_str().context("no eid")?;
            let twice = attachments.insert(eid.to_owned(), index);
            ensure!(twice.is_none(), "{eid} asked for one device, and has two");
        }
        ensure!(claimed <= total, "device {index} was given to too many: {device}");
    }
    Ok(attachments)
}

fn environments(envs: &Value) -> Result<BTreeSet<String>> {
    let envs = envs["envs"].as_array().context("no envs")?;
    let eids = envs.iter().filter_map(|it| it["eid"].as_str());
    Ok(eids.map(str::to_owned).collect())
}

/// Looks at the files again and again while nobody leaves: whatever somebody has written stays. Returns how often
/// it saw something new.
fn watch(peer: &Peer, done: &AtomicBool) -> Result<usize> {
    let mut known = (BTreeSet::new(), BTreeMap::new());
    let mut changes = 0;
    while !done.load(Ordering::Relaxed) {
        // genv 1.4.3 writes in place: what it has not finished is no JSON.
        let (Ok(envs), Ok(devices)) = (file(peer, "envs.json"), file(peer, "devices.json")) else {
            continue;
        };
        let found = (environments(&envs)?, attachments(&devices)?);
        ensure!(found.0.is_superset(&known.0), "lost: {:?}", &known.0 - &found.0);
        let mut kept = known.1.iter().filter(|(eid, device)| found.1.get(*eid) != Some(*device));
        ensure!(kept.next().is_none(), "{:?} became {:?}", known.1, found.1);
        changes += usize::from(found != known);
        known = found;
    }
    Ok(changes)
}

#[test]
fn two_hundred_of_both_lose_no_update_and_no_device_is_given_twice() -> Result<()> {
    let (_simulation, peer) = lab(DEVICES)?;
    peer.genv(&["devices", "ps"])?;
    peer.genv(&["envs", "ps"])?;
    let mut crowd = Crowd::default();
    let done = AtomicBool::new(false);
    let changes = thread::scope(|scope| -> Result<usize> {
        let watcher = scope.spawn(|| watch(&peer, &done));
        let waves = (0..EACH / WAVE).try_for_each(|wave| crowd.wave(&peer, wave));
        done.store(true, Ordering::Relaxed);
        let watched = watcher.join().map_err(|_| anyhow::anyhow!("a panic"))?;
        waves?;
        watched
    })?;
    ensure!(changes > EACH, "only {changes} changes were seen");
    ensure!(crowd.told.len() == 4 * EACH);

    peer_reads(&peer)?;
    let had: BTreeMap<String, u64> =
        crowd.told.iter().filter_map(|(eid, device)| Some((eid.clone(), (*device)?))).collect();
    let devices = file(&peer, "devices.json")?;
    ensure!(attachments(&devices)? == had);
    // There were not enough: each is in use, and every way had some.
    let used: BTreeSet<u64> = had.values().copied().collect();
    ensure!(used == (0..u64::from(DEVICES)).collect());
    for way in ["our-job", "our-editor", "their-editor", "their-sdk"] {
        ensure!(had.keys().any(|eid| eid.starts_with(way)), "{way}");
    }
    // Of our commands nothing is left if there was no device; all others have their environment.
    let there = |eid: &&String| !eid.starts_with("our-job") || had.contains_key(*eid);
    let expected: BTreeSet<String> = crowd.told.keys().filter(there).cloned().collect();
    ensure!(environments(&file(&peer, "envs.json")?)? == expected);

    // All end; the one of both that looks next clears up, and those of this process leave by the other.
    for child in &mut crowd.children {
        drop(child.stdin.take());
        child.wait()?;
    }
    peer.genv(&["envs", "ps"])?;
    peer.our_genv(&["envs", "deactivate", "--pid", &std::process::id().to_string()])?;
    ensure!(environments(&file(&peer, "envs.json")?)?.is_empty());
    ensure!(attachments(&file(&peer, "devices.json")?)?.is_empty());
    Ok(())
}
