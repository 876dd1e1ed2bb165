//! Tests with simulated hosts and a paused clock.

mod changes;
mod growth;
mod start;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};

use genv_core::model::{HostSnapshot, Publication, Snapshot};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::*;
use crate::hosts::HostList;

const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(10);

/// The behaviour of a host during one connection. The last behaviour of a list repeats.
#[derive(Clone, Debug)]
enum Behaviour {
    /// The connection never succeeds or fails.
    NeverConnects,
    /// The connection fails.
    Refuse(FailureKind),
    /// The host delivers this many snapshots, one each interval, and then hangs or ends the session.
    Deliver { snapshots: u64, hangs: bool },
    /// The host delivers snapshots, and does not read requests.
    NeverReads,
    /// The host delivers this many snapshots, all but the first as changes.
    Change { snapshots: u64 },
    /// The host sends changes that do not fit the last snapshot.
    InvalidChanges { after: u64 },
}

const DELIVERS: Behaviour = Behaviour::Deliver { snapshots: u64::MAX, hangs: false };

#[derive(Debug, Default)]
struct LabState {
    behaviours: HashMap<String, Vec<Behaviour>>,
    dialled: HashMap<String, Vec<Instant>>,
    open: HashMap<String, usize>,
}

#[derive(Clone, Default)]
struct Lab(Arc<Mutex<LabState>>);

struct LabLink {
    name: String,
    behaviour: Behaviour,
    delivered: u64,
    due: Instant,
    replies: VecDeque<Reply>,
    lab: Lab,
}

impl Drop for LabLink {
    fn drop(&mut self) {
        let mut state = self.lab.0.lock().unwrap();
        *state.open.get_mut(&self.name).unwrap() -= 1;
    }
}

impl Dial for Lab {
    type Link = LabLink;

    async fn dial(&self, host: &HostEntry) -> Result<LabLink, HostFailure> {
        let name = host.name.clone();
        let behaviour = {
            let mut state = self.0.lock().unwrap();
            let dialled = state.dialled.entry(name.clone()).or_default();
            dialled.push(Instant::now());
            let behaviours = state.behaviours.get_mut(&name).unwrap();
            if behaviours.len() > 1 { behaviours.remove(0) } else { behaviours[0].clone() }
        };
        match behaviour {
            Behaviour::NeverConnects => pending().await,
            Behaviour::Refuse(kind) => Err(HostFailure::new(kind, "no")),
            behaviour => {
                *self.0.lock().unwrap().open.entry(name.clone()).or_default() += 1;
                Ok(LabLink {
                    name,
                    behaviour,
                    delivered: 0,
                    due: Instant::now() + SECOND / 10,
                    replies: VecDeque::new(),
                    lab: self.clone(),
                })
            }
        }
    }
}

impl Link for LabLink {
    fn program(&self) -> HostProgram {
        HostProgram::Genv
    }

    async fn next(&mut self) -> Result<Reply, HostFailure> {
        if let Some(reply) = self.replies.pop_front() {
            return Ok(reply);
        }
        let (max, hangs) = match self.behaviour {
            Behaviour::Deliver { snapshots, hangs } => (snapshots, hangs),
            Behaviour::Change { snapshots } => (snapshots, false),
            _ => (u64::MAX, false),
        };
        if self.delivered >= max {
            if hangs {
                pending::<()>().await;
            }
            return Err(HostFailure::new(FailureKind::Disconnected, "the session ended"));
        }
        sleep_until(self.due).await;
        self.due += INTERVAL;
        self.delivered += 1;
        let now = snapshot(self.delivered);
        Ok(match self.behaviour {
            Behaviour::Change { .. } if self.delivered > 1 => changes::between(&snapshot(self.delivered - 1), &now),
            Behaviour::InvalidChanges { after } if self.delivered > after => {
                changes::between(&snapshot(9), &snapshot(8))
            }
            _ => Reply::Snapshot { snapshot: Box::new(now) },
        })
    }

    async fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
        if matches!(self.behaviour, Behaviour::NeverReads) && !matches!(request, Request::Follow { .. }) {
            return pending().await;
        }
        if let Request::Follow { changed_fields, .. } = request {
            assert!(changed_fields);
        }
        if let Request::Enforce { id, intents } = request {
            if intents["do"] == "cannot" {
                return Err(HostFailure::new(FailureKind::Unsupported, "it only sends snapshots"));
            }
            self.replies.push_back(match intents["do"].as_str() {
                Some("refuse") => Reply::Error { id: Some(*id), message: "it may\nnot".to_owned() },
                _ => Reply::Enforced { id: *id, outcomes: json!({"of": intents}) },
            });
        }
        Ok(())
    }
}

/// A snapshot with `number` environments. Later snapshots have the same environments except the last one.
fn snapshot(number: u64) -> Snapshot {
    let environment = |eid| {
        let environment = json!({"eid": format!("{eid}"), "username": "ada", "gpus": number.min(eid + 1)});
        serde_json::from_value(environment).unwrap()
    };
    Snapshot {
        environments: (1..=number).map(environment).collect(),
        hostname: "name on the host".to_owned(),
        timestamp_seconds: number as f64,
        interval_seconds: 10.0,
        installed: true,
        ..Snapshot::default()
    }
}

fn lab(behaviours: &[(&str, &[Behaviour])]) -> Lab {
    let lab = Lab::default();
    lab.0.lock().unwrap().behaviours =
        behaviours.iter().map(|(name, behaviours)| ((*name).to_owned(), behaviours.to_vec())).collect();
    lab
}

fn options() -> FollowOptions {
    FollowOptions {
        interval: INTERVAL,
        // A time between two publications.
        max_age: SECOND * 35,
        connect_timeout: SECOND * 5 / 2,
        concurrency: 4,
    }
}

fn start(lab: &Lab, names: &str) -> (SnapshotStream, Fleet) {
    let hosts = HostList::parse_flag(names).unwrap();
    let (source, _) = HostSource::open(hosts, None).unwrap();
    follow(source, lab.clone(), options())
}

fn host<'a>(publication: &'a Publication, name: &str) -> &'a HostSnapshot {
    let mut hosts = publication.hosts.iter();
    hosts.find(|host| host.hostname == name).unwrap()
}

fn error(host: &HostSnapshot) -> &str {
    let ssh = host.ssh.as_ref().unwrap();
    ssh.error.as_deref().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_down_delays_no_other_host() {
    let lab = lab(&[
        ("silent", &[Behaviour::NeverConnects]),
        ("refuses", &[Behaviour::Refuse(FailureKind::Unreachable)]),
        ("well", &[DELIVERS]),
    ]);
    let started = Instant::now();
    let (mut stream, _fleet) = start(&lab, "silent,refuses,well");
    for cycle in 1..=30 {
        let publication = stream.next().await.unwrap();
        assert_eq!(publication.sequence, cycle);
        let names: Vec<_> = publication.hosts.iter().map(|it| it.hostname.as_str()).collect();
        assert_eq!(names, ["silent", "refuses", "well"]);
        let well = host(&publication, "well");
        let snapshot = well.snapshot.as_ref().unwrap();
        assert!(well.up && snapshot.hostname == "well", "{well:?}");
        assert!(snapshot.timestamp_seconds + 1.0 >= cycle as f64, "{snapshot:?}");
        assert!(!host(&publication, "silent").up && !host(&publication, "refuses").up);
        assert_eq!(error(host(&publication, "refuses")), "no");
    }
    // The first publication waits for the silent host until its connection times out.
    let elapsed = started.elapsed();
    assert!(elapsed < INTERVAL * 30 && elapsed > INTERVAL * 29, "{elapsed:?}");
    let dialled = &lab.0.lock().unwrap().dialled;
    // Each wait is double the last one, plus or minus a quarter.
    assert!((7..=12).contains(&dialled["refuses"].len()), "{dialled:?}");
    assert_eq!(dialled["well"].len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_of_a_host_that_hangs_is_withdrawn_with_the_reason() {
    let hangs = Behaviour::Deliver { snapshots: 2, hangs: true };
    let lab = lab(&[("a", &[hangs, Behaviour::NeverConnects, Behaviour::NeverConnects, DELIVERS])]);
    let (mut stream, _fleet) = start(&lab, "a");
    let mut seen = Vec::new();
    for _ in 0..14 {
        let publication = stream.next().await.unwrap();
        let a = host(&publication, "a");
        let age = a.snapshot.as_ref().map(|it| it.timestamp_seconds as u64);
        seen.push((a.up, age.is_some(), !error(a).is_empty()));
    }
    // A withdrawn snapshot always has a reason.
    seen.dedup();
    assert_eq!(seen, [(true, true, false), (false, false, true), (true, true, false)]);
    let state = lab.0.lock().unwrap();
    assert_eq!((state.dialled["a"].len(), state.open["a"]), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ends_each_session_is_connected_again_after_a_pause() {
    let ends = Behaviour::Deliver { snapshots: 1, hangs: false };
    let lab = lab(&[("a", &[ends])]);
    let (mut stream, _fleet) = start(&lab, "a");
    for _ in 0..20 {
        let publication = stream.next().await.unwrap();
        assert!(host(&publication, "a").snapshot.is_some());
    }
    let state = lab.0.lock().unwrap();
    let pauses = state.dialled["a"].windows(2).map(|it| it[1] - it[0]);
    for pause in pauses {
        assert!(pause > SECOND * 3 / 4 && pause < SECOND * 2, "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_read_requests_is_connected_again() {
    let lab = lab(&[("a", &[Behaviour::NeverReads, DELIVERS])]);
    let (mut stream, _fleet) = start(&lab, "a");
    for _ in 0..8 {
        stream.next().await.unwrap();
    }
    let state = lab.0.lock().unwrap();
    assert_eq!((state.dialled["a"].len(), state.open["a"]), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_step_request_gets_outcomes_or_the_reason_of_the_refusal() {
    let lab = lab(&[("a", &[DELIVERS]), ("dead", &[Behaviour::Refuse(FailureKind::HostKey)])]);
    let (mut stream, fleet) = start(&lab, "a,dead");
    stream.next().await.unwrap();
    let (first, second) =
        tokio::join!(fleet.enforce("a", json!({"do": "1"})), fleet.enforce("a", json!({"do": "refuse"})));
    assert_eq!(first.unwrap(), json!({"of": {"do": "1"}}));
    let refused = second.unwrap_err();
    assert_eq!(
        (refused.failure.kind, refused.to_string().as_str(), refused.may_be_done),
        (FailureKind::Command, "it may not", false)
    );
    // The session of a host that refused a request continues.
    assert_eq!(lab.0.lock().unwrap().dialled["a"].len(), 1);
    let dead = fleet.enforce("dead", json!(1)).await.unwrap_err();
    assert_eq!((dead.failure.kind, dead.may_be_done), (FailureKind::HostKey, false));
    let unknown = fleet.enforce("b", json!(1)).await.unwrap_err();
    assert_eq!((unknown.failure.kind, unknown.may_be_done), (FailureKind::Unresolved, false));
}

#[tokio::test(start_paused = true)]
async fn a_session_without_support_for_steps_is_opened_anew_after_some_minutes() {
    let lab = lab(&[("a", &[DELIVERS])]);
    let (mut stream, fleet) = start(&lab, "a");
    for (asked_after, dialled) in [(SECOND, 1), (SECOND * 200, 1), (SECOND * 60, 2), (SECOND, 2)] {
        let until = Instant::now() + asked_after;
        while Instant::now() < until {
            stream.next().await.unwrap();
        }
        let refused = fleet.enforce("a", json!({"do": "cannot"})).await;
        let refused = refused.unwrap_err();
        assert_eq!((refused.failure.kind, refused.may_be_done), (FailureKind::Unsupported, false));
        stream.next().await.unwrap();
        assert_eq!(lab.0.lock().unwrap().dialled["a"].len(), dialled);
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_hosts_that_connect_at_once_is_limited() {
    let names: Vec<String> = (0..12).map(|number| format!("h{number}")).collect();
    let behaviours: Vec<(&str, &[Behaviour])> =
        names.iter().map(|name| (name.as_str(), &[Behaviour::NeverConnects] as &[Behaviour])).collect();
    let lab = lab(&behaviours);
    let (mut stream, _fleet) = start(&lab, &names.join(","));
    let started = Instant::now();
    stream.next().await.unwrap();
    let state = lab.0.lock().unwrap();
    let in_first_seconds = state.dialled.values().filter(|at| at[0] - started < SECOND * 5);
    assert_eq!(in_first_seconds.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_host_file_take_effect_and_an_invalid_file_changes_nothing() {
    let lab = lab(&[("a", &[DELIVERS]), ("b", &[DELIVERS]), ("c", &[DELIVERS])]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "b\n").unwrap();
    let fixed = HostList::parse_flag("a").unwrap();
    let (source, all) = HostSource::open(fixed, Some(file.clone())).unwrap();
    assert_eq!(all.entries().len(), 2);
    let (mut stream, fleet) = follow(source, lab.clone(), options());
    let mut names = async || {
        // The next publication may precede the change.
        stream.next().await.unwrap();
        let publication = stream.next().await.unwrap();
        let names = publication.hosts.iter().map(|it| it.hostname.clone());
        names.collect::<Vec<_>>().join(",")
    };
    // A file settles by the clock of the machine.
    let settle = || std::thread::sleep(Duration::from_millis(200));
    let given_up = std::time::Instant::now() + SECOND * 120;
    let waits = || {
        assert!(std::time::Instant::now() < given_up, "waited in vain for another list of hosts");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(names().await, "a,b");
    std::fs::write(&file, "c\n").unwrap();
    while names().await != "a,c" {
        waits();
    }
    assert!(fleet.enforce("b", json!(1)).await.is_err());
    std::fs::write(&file, "!\n").unwrap();
    settle();
    assert_eq!(names().await, "a,c");
    std::fs::remove_file(&file).unwrap();
    settle();
    assert_eq!(names().await, "a,c");
    let begun = std::time::Instant::now();
    let mut slices = std::fs::File::create(&file).unwrap();
    std::io::Write::write_all(&mut slices, b"b\n").unwrap();
    settle();
    let found = names().await;
    // Where the kernel's event is late by a second, the file looks settled.
    assert!(found == "a,c" || begun.elapsed() >= SECOND, "the file is being written: {found}");
    std::io::Write::write_all(&mut slices, b"c\n").unwrap();
    drop(slices);
    while names().await != "a,b,c" {
        waits();
    }
    let state = lab.0.lock().unwrap();
    assert_eq!((state.dialled["a"].len(), state.dialled["c"].len()), (1, 1));
    assert_eq!((state.dialled["b"].len(), state.open["b"]), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_the_last_stream() {
    let lab = lab(&[("a", &[DELIVERS])]);
    let (mut stream, fleet) = start(&lab, "a");
    stream.next().await.unwrap();
    assert_eq!(lab.0.lock().unwrap().open["a"], 1);
    drop(stream);
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(lab.0.lock().unwrap().open["a"], 0);
    assert!(fleet.enforce("a", json!(1)).await.is_err());
}
