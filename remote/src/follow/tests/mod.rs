//! Many hosts, played by channels, in a time that passes as soon as everybody waits.

mod changes;
mod growth;

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

/// What a host does, one connection after the other; it stays with the last.
#[derive(Clone, Debug)]
enum Act {
    /// Nobody answers, ever.
    Silence,
    /// It refuses.
    Refuse(FailureKind),
    /// It delivers so many snapshots, one each interval, and then hangs, or ends the session.
    Deliver { snapshots: u64, hangs: bool },
    /// It delivers, and does not read.
    Deaf,
    /// It delivers so many snapshots, from the second on as what changed.
    Change { snapshots: u64 },
    /// It sends changes of a snapshot that it did not send: of none, or of another one.
    Mistake { after: u64 },
}

const WELL: Act = Act::Deliver { snapshots: u64::MAX, hangs: false };

#[derive(Debug, Default)]
struct Stage {
    acts: HashMap<String, Vec<Act>>,
    dialled: HashMap<String, Vec<Instant>>,
    open: HashMap<String, usize>,
}

#[derive(Clone, Default)]
struct Play(Arc<Mutex<Stage>>);

struct Line {
    name: String,
    act: Act,
    delivered: u64,
    due: Instant,
    replies: VecDeque<Reply>,
    play: Play,
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut stage = self.play.0.lock().unwrap();
        *stage.open.get_mut(&self.name).unwrap() -= 1;
    }
}

impl Dial for Play {
    type Link = Line;

    async fn dial(&self, host: &HostEntry) -> Result<Line, HostFailure> {
        let name = host.name.clone();
        let act = {
            let mut stage = self.0.lock().unwrap();
            let dialled = stage.dialled.entry(name.clone()).or_default();
            dialled.push(Instant::now());
            let acts = stage.acts.get_mut(&name).unwrap();
            if acts.len() > 1 { acts.remove(0) } else { acts[0].clone() }
        };
        match act {
            Act::Silence => pending().await,
            Act::Refuse(kind) => Err(HostFailure::new(kind, "no")),
            act => {
                *self.0.lock().unwrap().open.entry(name.clone()).or_default() += 1;
                Ok(Line {
                    name,
                    act,
                    delivered: 0,
                    due: Instant::now() + SECOND / 10,
                    replies: VecDeque::new(),
                    play: self.clone(),
                })
            }
        }
    }
}

impl Link for Line {
    fn answers_with(&self) -> Answers {
        Answers::Genv
    }

    async fn next(&mut self) -> Result<Reply, HostFailure> {
        if let Some(reply) = self.replies.pop_front() {
            return Ok(reply);
        }
        let (most, hangs) = match self.act {
            Act::Deliver { snapshots, hangs } => (snapshots, hangs),
            Act::Change { snapshots } => (snapshots, false),
            _ => (u64::MAX, false),
        };
        if self.delivered >= most {
            if hangs {
                pending::<()>().await;
            }
            return Err(HostFailure::new(FailureKind::Disconnected, "the session ended"));
        }
        sleep_until(self.due).await;
        self.due += INTERVAL;
        self.delivered += 1;
        let now = snapshot(self.delivered);
        Ok(match self.act {
            Act::Change { .. } if self.delivered > 1 => changes::between(&snapshot(self.delivered - 1), &now),
            Act::Mistake { after } if self.delivered > after => changes::between(&snapshot(9), &snapshot(9)),
            _ => Reply::Snapshot { snapshot: Box::new(now) },
        })
    }

    async fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
        if matches!(self.act, Act::Deaf) && !matches!(request, Request::Follow { .. }) {
            return pending().await;
        }
        if let Request::Follow { changes, .. } = request {
            assert!(changes);
        }
        if let Request::Enforce { id, intents } = request {
            if intents["do"] == "cannot" {
                return Err(HostFailure::new(FailureKind::Unsupported, "it only tells"));
            }
            self.replies.push_back(match intents["do"].as_str() {
                Some("refuse") => Reply::Error { id: Some(*id), message: "it may\nnot".to_owned() },
                _ => Reply::Enforced { id: *id, outcomes: json!({"of": intents}) },
            });
        }
        Ok(())
    }
}

/// With as many environments as its number, all but the last of which stay for ever.
fn snapshot(number: u64) -> Snapshot {
    let environment = |eid| {
        let environment = json!({"eid": format!("{eid}"), "username": "ada", "gpus": number.min(eid + 1)});
        serde_json::from_value(environment).unwrap()
    };
    Snapshot {
        environments: (1..=number).map(environment).collect(),
        hostname: "what it calls itself".to_owned(),
        timestamp_seconds: number as f64,
        interval_seconds: 10.0,
        installed: true,
        ..Snapshot::default()
    }
}

fn play(acts: &[(&str, &[Act])]) -> Play {
    let play = Play::default();
    play.0.lock().unwrap().acts = acts.iter().map(|(name, acts)| ((*name).to_owned(), acts.to_vec())).collect();
    play
}

fn options() -> FollowOptions {
    FollowOptions {
        interval: INTERVAL,
        // Between two publications.
        max_age: SECOND * 35,
        connect_timeout: SECOND * 5 / 2,
        concurrency: 4,
    }
}

fn start(play: &Play, names: &str) -> (SnapshotStream, Fleet) {
    let hosts = HostList::parse_flag(names).unwrap();
    let (source, _) = HostSource::open(hosts, None).unwrap();
    follow(source, play.clone(), options())
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
async fn a_dead_host_delays_no_other() {
    let play =
        play(&[("silent", &[Act::Silence]), ("refuses", &[Act::Refuse(FailureKind::Unreachable)]), ("well", &[WELL])]);
    let began = Instant::now();
    let (mut stream, _fleet) = start(&play, "silent,refuses,well");
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
    // The first waits for what is silent, up to the time that connecting may take.
    let elapsed = began.elapsed();
    assert!(elapsed < INTERVAL * 30 && elapsed > INTERVAL * 29, "{elapsed:?}");
    let dialled = &play.0.lock().unwrap().dialled;
    // Each wait is the double of the last, and up to a quarter off.
    assert!((7..=12).contains(&dialled["refuses"].len()), "{dialled:?}");
    assert_eq!(dialled["well"].len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_hangs_is_withdrawn_with_the_reason_and_comes_back() {
    let hangs = Act::Deliver { snapshots: 2, hangs: true };
    let play = play(&[("a", &[hangs, Act::Silence, Act::Silence, WELL])]);
    let (mut stream, _fleet) = start(&play, "a");
    let mut seen = Vec::new();
    for _ in 0..14 {
        let publication = stream.next().await.unwrap();
        let a = host(&publication, "a");
        let age = a.snapshot.as_ref().map(|it| it.timestamp_seconds as u64);
        seen.push((a.up, age.is_some(), !error(a).is_empty()));
    }
    // Whatever is withdrawn has its reason.
    seen.dedup();
    assert_eq!(seen, [(true, true, false), (false, false, true), (true, true, false)]);
    let stage = play.0.lock().unwrap();
    assert_eq!((stage.dialled["a"].len(), stage.open["a"]), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn who_ends_each_session_is_heard_each_time_and_not_dialled_without_a_pause() {
    let ends = Act::Deliver { snapshots: 1, hangs: false };
    let play = play(&[("a", &[ends])]);
    let (mut stream, _fleet) = start(&play, "a");
    for _ in 0..20 {
        let publication = stream.next().await.unwrap();
        assert!(host(&publication, "a").snapshot.is_some());
    }
    let stage = play.0.lock().unwrap();
    let pauses = stage.dialled["a"].windows(2).map(|it| it[1] - it[0]);
    for pause in pauses {
        assert!(pause > SECOND * 3 / 4 && pause < SECOND * 2, "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_connected_anew() {
    let play = play(&[("a", &[Act::Deaf, WELL])]);
    let (mut stream, _fleet) = start(&play, "a");
    for _ in 0..8 {
        stream.next().await.unwrap();
    }
    let stage = play.0.lock().unwrap();
    assert_eq!((stage.dialled["a"].len(), stage.open["a"]), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_host_is_asked_to_act_and_answers_or_says_why_not() {
    let play = play(&[("a", &[WELL]), ("dead", &[Act::Refuse(FailureKind::HostKey)])]);
    let (mut stream, fleet) = start(&play, "a,dead");
    stream.next().await.unwrap();
    let (first, second) =
        tokio::join!(fleet.enforce("a", json!({"do": "1"})), fleet.enforce("a", json!({"do": "refuse"})));
    assert_eq!(first.unwrap(), json!({"of": {"do": "1"}}));
    let refused = second.unwrap_err();
    assert_eq!(
        (refused.failure.kind, refused.to_string().as_str(), refused.may_be_done),
        (FailureKind::Command, "it may not", false)
    );
    // Its session goes on.
    assert_eq!(play.0.lock().unwrap().dialled["a"].len(), 1);
    let dead = fleet.enforce("dead", json!(1)).await.unwrap_err();
    assert_eq!((dead.failure.kind, dead.may_be_done), (FailureKind::HostKey, false));
    let nobody = fleet.enforce("b", json!(1)).await.unwrap_err();
    assert_eq!((nobody.failure.kind, nobody.may_be_done), (FailureKind::Unresolved, false));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_asked_is_connected_anew_now_and_then_to_see_whether_it_can() {
    let play = play(&[("a", &[WELL])]);
    let (mut stream, fleet) = start(&play, "a");
    for (asked_after, dialled) in [(SECOND, 1), (SECOND * 200, 1), (SECOND * 60, 2), (SECOND, 2)] {
        let until = Instant::now() + asked_after;
        while Instant::now() < until {
            stream.next().await.unwrap();
        }
        let refused = fleet.enforce("a", json!({"do": "cannot"})).await;
        let refused = refused.unwrap_err();
        assert_eq!((refused.failure.kind, refused.may_be_done), (FailureKind::Unsupported, false));
        stream.next().await.unwrap();
        assert_eq!(play.0.lock().unwrap().dialled["a"].len(), dialled);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_hosts_connect_at_once_than_may() {
    let names: Vec<String> = (0..12).map(|number| format!("h{number}")).collect();
    let acts: Vec<(&str, &[Act])> = names.iter().map(|name| (name.as_str(), &[Act::Silence] as &[Act])).collect();
    let play = play(&acts);
    let (mut stream, _fleet) = start(&play, &names.join(","));
    let began = Instant::now();
    stream.next().await.unwrap();
    let stage = play.0.lock().unwrap();
    let in_first_seconds = stage.dialled.values().filter(|at| at[0] - began < SECOND * 5);
    assert_eq!(in_first_seconds.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_host_file_is_taken_over_when_it_changes_and_nonsense_changes_nothing() {
    let play = play(&[("a", &[WELL]), ("b", &[WELL]), ("c", &[WELL])]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "b\n").unwrap();
    let fixed = HostList::parse_flag("a").unwrap();
    let (source, all) = HostSource::open(fixed, Some(file.clone())).unwrap();
    assert_eq!(all.entries().len(), 2);
    let (mut stream, fleet) = follow(source, play.clone(), options());
    let mut names = async || {
        // What is being published may be of before.
        stream.next().await.unwrap();
        let publication = stream.next().await.unwrap();
        let names = publication.hosts.iter().map(|it| it.hostname.clone());
        names.collect::<Vec<_>>().join(",")
    };
    assert_eq!(names().await, "a,b");
    std::fs::write(&file, "c\n").unwrap();
    assert_eq!(names().await, "a,c");
    assert!(fleet.enforce("b", json!(1)).await.is_err());
    std::fs::write(&file, "!\n").unwrap();
    assert_eq!(names().await, "a,c");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(names().await, "a,c");
    std::fs::write(&file, "b\nc\n").unwrap();
    assert_eq!(names().await, "a,b,c");
    let stage = play.0.lock().unwrap();
    assert_eq!((stage.dialled["a"].len(), stage.dialled["c"].len()), (1, 1));
    assert_eq!((stage.dialled["b"].len(), stage.open["b"]), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_the_last_stream() {
    let play = play(&[("a", &[WELL])]);
    let (mut stream, fleet) = start(&play, "a");
    stream.next().await.unwrap();
    assert_eq!(play.0.lock().unwrap().open["a"], 1);
    drop(stream);
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(play.0.lock().unwrap().open["a"], 0);
    assert!(fleet.enforce("a", json!(1)).await.is_err());
}
