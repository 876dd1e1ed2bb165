//! A machine on which both are installed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use serde_json::Value;

/// A machine with so many devices of 16 GiB, and a state directory that both use.
pub(crate) fn lab(devices: u32) -> Result<(Simulation, Peer)> {
    let simulation = Simulation::new(&format!("version: 1\nhosts:\n- devices: [{{count: {devices}, memory: 16gi}}]\n"));
    let peer = Peer::new(&simulation)?;
    Ok((simulation, peer))
}

/// A file of the state, as it is.
pub(crate) fn file(peer: &Peer, name: &str) -> Result<Value> {
    let path = peer.state_directory().join(name);
    let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&content)?)
}

/// Sees to it that genv 1.4.3 reads both files, finds in them what they say, and leaves or writes them as they are.
pub(crate) fn peer_reads(peer: &Peer) -> Result<()> {
    let names = ["envs.json", "devices.json"];
    let content = || -> Result<Vec<String>> {
        let texts = names.map(|name| std::fs::read_to_string(peer.state_directory().join(name)));
        Ok(texts.into_iter().collect::<Result<_, _>>()?)
    };
    let before = content()?;
    let snapshot: Value = serde_json::from_str(&peer.genv(&["usage", "snapshot"])?)?;
    for (name, key) in names.into_iter().zip(["envs", "devices"]) {
        let written = file(peer, name)?;
        ensure!(snapshot[key] == written, "genv 1.4.3 reads {} as {}", written, snapshot[key]);
    }
    ensure!(content()? == before, "genv 1.4.3 writes it in another way");
    Ok(())
}

/// Who holds each device that somebody holds, by devices.json.
pub(crate) fn holders(peer: &Peer) -> Result<BTreeMap<u64, Vec<String>>> {
    let devices = file(peer, "devices.json")?;
    let devices = devices["devices"].as_array().context("no devices")?;
    let mut holders = BTreeMap::new();
    for device in devices {
        let attachments = device["attachments"].as_array().context("no attachments")?;
        let eids = attachments.iter().filter_map(|it| it["eid"].as_str());
        let eids: Vec<String> = eids.map(str::to_owned).collect();
        if !eids.is_empty() {
            holders.insert(device["index"].as_u64().context("no index")?, eids);
        }
    }
    Ok(holders)
}

/// The pids of an environment; none, if it is not there.
pub(crate) fn members(peer: &Peer, eid: &str) -> Result<Option<Vec<u64>>> {
    let environments = file(peer, "envs.json")?;
    let environments = environments["envs"].as_array().context("no envs")?;
    let Some(environment) = environments.iter().find(|it| it["eid"] == eid) else {
        return Ok(None);
    };
    let pids = environment["pids"].as_array().context("no pids")?;
    Ok(Some(pids.iter().filter_map(Value::as_u64).collect()))
}
