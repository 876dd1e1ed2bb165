//! What changed from one snapshot to the next.

use std::collections::HashSet;

use anyhow::{Result, bail, ensure};
use genv_remote::protocol::Reply;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::program;
use serde_json::json;

use super::serving::{Serving, machine};

/// Two devices whose processes and environments come and go.
const BUSY: &str = "
version: 1
users: {ada: 1001, bob: 1002}
hosts:
  - devices: [{count: 2}]
    environments:
      - {eid: a, user: ada, devices: [0], during: {every: 2s, from: 0s, until: 1s}}
      - {eid: b, user: bob, devices: [0, 1], gpu_memory: 1gi}
      - {eid: c, user: ada, devices: [1], during: {every: 3s, from: 1s, until: 3s}}
    processes:
      - {pid: 101, user: ada, environment: a, devices: [{index: 0, memory: 1gi, utilization: 0.2}], during: {every: 2s, from: 0s, until: 1s}}
      - {pid: 102, user: bob, environment: b, devices: [{index: 0, utilization: {wave: {period: 1s, low: 0, high: 0.4}}}, {index: 1}]}
      - {pid: 103, user: bob, environment: b, devices: [{index: 1, memory: 2gi, utilization: 0.1}]}
      - {pid: 104, user: ada, devices: [{index: 1}], during: {every: 700ms, from: 0s, until: 300ms}}
      - {pid: 105, user: bob, devices: [{index: 0}]}
";

#[test]
fn changes_make_what_a_whole_snapshot_says() -> Result<()> {
    let simulation = Simulation::new(BUSY);
    let folder = tempfile::tempdir()?;
    let mut command = machine(&program("genv")?, &folder);
    command.env_remove("GENV_DEVICES");
    command.env("GENV_SCENARIO", simulation.scenario());
    let mut serving = Serving::of(command, folder)?;
    serving.ask(json!({"request": "follow", "interval_seconds": 0.1, "changes": true}))?;
    let mut snapshot = serving.snapshot()?;
    let (mut same, mut sets) = (0, HashSet::new());
    while same < 5 {
        for _ in 0..8 {
            let Reply::Changes { changes } = serving.reply()? else {
                bail!("it does not tell what changed");
            };
            snapshot = changes.apply(&snapshot)?;
            let pids = snapshot.processes.iter().map(|it| it.pid);
            sets.insert(pids.collect::<Vec<_>>());
        }
        // One that is asked for is whole. It is what was told last, unless a newer one came in its place.
        serving.ask(json!({"request": "once"}))?;
        snapshot = loop {
            match serving.reply()? {
                Reply::Snapshot { snapshot: whole } => {
                    if whole.timestamp_seconds == snapshot.timestamp_seconds {
                        assert_eq!(*whole, snapshot);
                        same += 1;
                    }
                    break *whole;
                }
                Reply::Changes { changes } => snapshot = changes.apply(&snapshot)?,
                other => bail!("{other:?}"),
            }
        };
        ensure!(snapshot.environments.iter().any(|it| it.eid == "b"));
    }
    ensure!(sets.len() > 2, "nothing came and went: {sets:?}");
    serving.input.take();
    assert_eq!(serving.end()?, "");
    Ok(())
}
