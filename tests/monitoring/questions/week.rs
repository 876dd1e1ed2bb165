//! A week of two hosts of which everything is known by hand.
//!
//! The hours count from Monday 00:00, and the week is asked about at 168:18, just after an hour was recorded: rules of hours are
//! evaluated at 17:35 past each, so that this week is from 0:17:35 to 168:17:35 (0.2931 h later than the calendar's).
//!
//! | GPU | W | |
//! |---|---|---|
//! | gpu01 0 | 200 | alice's all week; busy from 00:00 to 08:00 of each day: 56 h busy, 112 h idle, 33.6 kWh |
//! | gpu01 1 | 100 | bob's 10 of 40 GiB: a quarter of 168 h = 42 h idle; carol's 20 of 40 GiB: 84 h busy, and all of 16.8 kWh, since only she uses it |
//! | gpu01 2 | 50 | dave's, outside: 33:00 to 41:00 and 164:00 on, 8 + 4.2931 h, 0.6147 kWh; erin's 58:00 to 59:00, 1 h idle, 0.05 kWh; nobody's for 154.7069 h, 7.7353 kWh |
//! | gpu02 0 | 300 | erin's from 7:20 to 66:30, 59.1667 h, of which it cannot be told what she did, 17.75 kWh; nobody's for 7.0402 h, 2.1121 kWh |
//! | gpu02 1 | 25 | frank's to 66:30, without a process; lost from 26:00 to 29:00: 63.2069 h idle, 3 h unmeasured, 1.5802 kWh (what it drew while it was lost, the exporter could not learn: it began anew then) |
//!
//! gpu02 dies at 66:30. Its exporter began anew at 27:10, while the GPU was lost; that of gpu01 at 82:40. That of gpu01 tells
//! the same snapshot from 132:00 to 132:30. From 168:20, after the week, dave uses GPU 1 of gpu01, too.

use std::time::Duration;

use anyhow::Result;
use genv_simulator::Engine;
use genv_tests::history::{History, Trouble};

pub(crate) const A100: &str = "NVIDIA A100-SXM4-40GB";
pub(crate) const RTX: &str = "NVIDIA GeForce RTX 3090";

pub(crate) const THE_WEEK: f64 = 168.3;

pub(crate) const IDLE_HOURS: &[(&str, f64)] = &[("alice", 112.0), ("bob", 42.0), ("erin", 1.0), ("frank", 63.2069)];

pub(crate) const KWH: &[(&str, f64)] =
    &[("alice", 33.6), ("carol", 16.8), ("dave", 0.6147), ("erin", 17.8), ("frank", 1.5802)];

pub(crate) const KWH_OF_NOBODY: f64 = 7.7353 + 2.1121;

const WEEK: &str = r#"
version: 1
epoch: "2025-03-03T00:00:00Z"
users: {alice: 2001, bob: 2002, carol: 2003, dave: 2004, erin: 2005, frank: 2006}
hosts:
  - name: gpu01
    devices:
      - {name: NVIDIA A100-SXM4-40GB, memory: 40gi, power: 200, xid: [{xid: 31, at: 60h30m}]}
      - {name: NVIDIA A100-SXM4-40GB, memory: 40gi, power: 100, xid: [{xid: 43, at: 50h30m, every: 24h}]}
      - {name: NVIDIA A100-SXM4-40GB, memory: 40gi, power: 50, xid: [{xid: 13, at: 20h30m}]}
    environments:
      - {eid: "1", user: alice, name: training, devices: [0]}
      - {eid: "2", user: bob, name: parked, gpu_memory: 10gi, devices: [1]}
      - {eid: "3", user: carol, name: notebook, gpu_memory: 20gi, devices: [1]}
      - {eid: "4", user: erin, name: trial, devices: [2], during: {from: 58h, until: 59h}}
    processes:
      - {pid: 101, user: alice, environment: "1", devices: [{index: 0, memory: 30gi, utilization: {steps: [[8h, 0.9], [16h, 0]]}}]}
      - {pid: 301, user: carol, environment: "3", devices: [{index: 1, memory: 14gi, utilization: 0.5}]}
      - {pid: 302, user: carol, environment: "3", during: {from: 102h}, devices: [{index: 1, memory: 10gi, utilization: 0}]}
      - {pid: 401, user: dave, claim: none, during: {from: 33h, until: 41h}, devices: [{index: 2, memory: 5gi, utilization: 0.6}]}
      - {pid: 402, user: dave, claim: none, during: {from: 164h}, devices: [{index: 2, memory: 5gi, utilization: 0.6}]}
      - {pid: 403, user: dave, claim: none, during: {from: 168h20m}, devices: [{index: 1, memory: 1gi, utilization: 0.1}]}
  - name: gpu02
    devices:
      - {name: NVIDIA GeForce RTX 3090, memory: 24gi, power: 300, faults: [{not_supported: [process_utilization]}]}
      - {name: NVIDIA GeForce RTX 3090, memory: 24gi, power: 25, xid: [{xid: 79, at: 26h}], faults: [{lost: true, during: {from: 26h, until: 29h}}]}
    environments:
      - {eid: "1", user: erin, name: measuring, devices: [0], during: {from: 7h20m}}
      - {eid: "2", user: frank, name: waiting, devices: [1]}
    processes:
      - {pid: 501, user: erin, environment: "1", devices: [{index: 0, memory: 20gi, utilization: 0.8}]}
"#;

pub(crate) fn history() -> Result<History> {
    let engine = Engine::from_text("scenario.yaml", WEEK)?;
    let mut week = History::new(engine, time(168.5), Duration::from_secs(60))?;
    week.exporter_per_host = true;
    let trouble = |host: &str, from, until, frozen| Trouble { instance: format!("{host}:9820"), from, until, frozen };
    week.troubles = vec![
        // Two that begin anew between two scrapes, one that dies, and one that serves what it had.
        trouble("gpu02", minutes(27 * 60 + 10), minutes(27 * 60 + 10), false),
        trouble("gpu01", minutes(82 * 60 + 40), minutes(82 * 60 + 40), false),
        trouble("gpu02", minutes(66 * 60 + 30), time(1000.0), false),
        trouble("gpu01", minutes(132 * 60), minutes(132 * 60 + 30), true),
    ];
    Ok(week)
}

pub(crate) fn time(hours: f64) -> Duration {
    Duration::from_secs_f64(hours * 3600.0)
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}
