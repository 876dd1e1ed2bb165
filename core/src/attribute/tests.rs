use serde::Deserialize;

use super::attributor::unknown;
use super::*;
use crate::model::{Attribution, Member};
use crate::proc::{Claim, Lineage, MissingEvidence, ProcessFacts, ProcessRead, ProcessTable};
use crate::state::{EnvironmentState, MemberState, State};

/// One row of the table of cases.
///
/// The world of all rows: pid 1 is init, pid 2 a login that is no member. Environment E is user 1000's, its member is
/// pid 100. Environment F is user 2000's, its member is pid 200. Pid 300 is named as a member of E too, but its process
/// started after the state was written; so is pid 500, whose user cannot be read. Environment N is user 1000's too, its
/// member is pid 110, and its creation is at second 5,000. Environment R is root's, its members are pids 1 and 400. The
/// record of environment V names user 2000, and lists pid 1 and pid 60, which is user 1000's. Environment K is user
/// 1000's, and no kernel of K was found; neither was a kernel of E, which its member keeps alive. Pid 50 is a shell
/// that is no member. The process in question is pid 999.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    /// `vanished`, `unreadable`, `never` for a process that is not in the table, or absent for one that is present.
    #[serde(default)]
    read: Option<String>,
    /// The eid claimed; absent if the environ names none.
    #[serde(default)]
    claim: Option<String>,
    /// The defect of the environ, by its reason.
    #[serde(default)]
    environ: Option<String>,
    #[serde(default = "user_of_e")]
    uid: Option<u32>,
    /// Absent: as `uid`.
    #[serde(default)]
    real_uid: Option<u32>,
    #[serde(default)]
    container: bool,
    #[serde(default)]
    container_owner: Option<u32>,
    /// Its ancestors, nearest first; 0 breaks the chain, -1 is a parent younger than its child.
    ancestors: Vec<i64>,
    /// The environment that lists the process itself as its member.
    #[serde(default)]
    member_of: Option<String>,
    /// The second of its start; absent: 30,000.
    #[serde(default)]
    started: Option<u32>,
    #[serde(default)]
    stale: bool,
    /// `in EID`, `outside REASON` or `unknown REASON`.
    expect: String,
}

#[allow(clippy::unnecessary_wraps, reason = "serde's default has the field's type")]
fn user_of_e() -> Option<u32> {
    Some(1000)
}

const PID: u32 = 999;
/// A parent that the table lacks.
const BROKEN: u32 = 77;
const WRITTEN_SECONDS: f64 = 10_000.0;

fn environment(eid: &str, uid: u32, pids: &[u32]) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        uid,
        members: pids.iter().map(|pid| MemberState::from(*pid)).collect(),
        ..EnvironmentState::default()
    }
}

/// The users of the world's processes; `None` where that cannot be read.
fn user_of(pid: u32) -> Option<u32> {
    match pid {
        1 | 2 | 400 => Some(0),
        90 | 200 => Some(2000),
        500 => None,
        _ => Some(1000),
    }
}

fn started(pid: u32, seconds: u32, parent: u32) -> Lineage {
    Lineage {
        start_time_ticks: u64::from(seconds) * 100,
        start_timestamp_seconds: f64::from(seconds),
        parent,
        uid: user_of(pid),
    }
}

fn facts(case: &Case) -> ProcessFacts {
    let missing = |reason: &str| match reason {
        reason::ENVIRON_UNREADABLE => MissingEvidence::EnvironUnreadable,
        reason::ENVIRON_EMPTY => MissingEvidence::EnvironEmpty,
        reason::ENVIRON_OVERWRITTEN => MissingEvidence::EnvironOverwritten,
        reason::ZOMBIE => MissingEvidence::Zombie,
        other => panic!("{other} is no defect of an environ"),
    };
    ProcessFacts {
        start_time_ticks: 900_000,
        uid: case.uid,
        real_uid: case.real_uid.or(case.uid),
        comm: "python".to_owned(),
        container_id: case.container.then(|| "0123456789ab".to_owned()),
        container_owner: case.container_owner,
        claim: match (&case.claim, &case.environ) {
            (Some(eid), None) => Claim::Named(eid.clone()),
            (None, Some(reason)) => Claim::Missing(missing(reason)),
            (None, None) => Claim::Absent,
            (Some(_), Some(_)) => panic!("{}: a claim needs an environ", case.case),
        },
    }
}

fn table(case: &Case) -> ProcessTable {
    let mut table = ProcessTable::default();
    let present = match case.read.as_deref() {
        Some("vanished" | "never") => ProcessRead::Vanished,
        Some("unreadable") => ProcessRead::Unreadable,
        Some(other) => panic!("{other} is no outcome of reading"),
        None => ProcessRead::Present(facts(case)),
    };
    // Seconds at which each pid of the world started; a member started before the state was written.
    let start = |pid: u32| match pid {
        PID if case.started.is_some() => case.started.unwrap_or_default(),
        PID if case.member_of.is_some() => 9_000,
        PID => 30_000,
        50 => 25_000,
        300 => 20_000,
        pid => pid,
    };
    let mut child = (PID, start(PID));
    if matches!(present, ProcessRead::Present(_)) {
        for &ancestor in &case.ancestors {
            let (parent, start) = match ancestor {
                0 => (BROKEN, 0),
                -1 => (100, child.1 + 1),
                pid => (u32::try_from(pid).unwrap(), start(u32::try_from(pid).unwrap())),
            };
            table.lineage.insert(child.0, started(child.0, child.1, parent));
            child = (parent, start);
        }
        if child.0 != BROKEN {
            table.lineage.insert(child.0, started(child.0, child.1, 0));
        }
    }
    for member in [100, 110, 200, 60, 400, 500, 1] {
        let parent = u32::from(member != 1);
        let lineage = started(member, member, parent);
        table.lineage.entry(member).or_insert(lineage);
    }
    if let Some(lineage) = table.lineage.get_mut(&PID) {
        lineage.uid = case.uid;
    }
    if case.read.as_deref() != Some("never") {
        table.processes.insert(PID, present);
    }
    table
}

#[test]
fn every_case_of_the_table_gets_its_answer() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../tests/fixtures/attribution-cases.json")).unwrap();
    for case in &cases {
        let mut state = State {
            installed: true,
            written_timestamp_seconds: Some(WRITTEN_SECONDS),
            environments: vec![
                environment("E", 1000, &[100, 300, 500]),
                environment("F", 2000, &[200]),
                EnvironmentState { created_timestamp_seconds: Some(5_000.0), ..environment("N", 1000, &[110]) },
                environment("R", 0, &[1, 400]),
                environment("V", 2000, &[60, 1]),
                environment("dead", 1000, &[]),
            ],
            kernels_not_found: ["E", "K"].map(|eid| (eid.to_owned(), 1000)).into(),
            ..State::default()
        };
        if let Some(eid) = &case.member_of {
            let listed = state.environments.iter_mut().find(|e| e.eid == *eid);
            listed.unwrap().members.push(MemberState::from(PID));
        }
        let table = table(case);
        let environments = live_environments(&state, &table);
        let attributor = Attributor::new(&state, &environments, !case.stale, &table);
        let attribution = attributor.attribute(PID);
        if case.environ.is_none() {
            let is_outside = case.expect.starts_with("outside");
            assert_eq!(attributor.is_without(PID, |_| true), is_outside, "{}", case.case);
        }
        let answer = match attribution {
            Attribution::Environment { eid } => format!("in {eid}"),
            Attribution::Outside { reason } => format!("outside {reason}"),
            Attribution::Unknown { reason } => format!("unknown {reason}"),
        };
        assert_eq!(answer, case.expect, "{}", case.case);
    }
}

/// A process whose environ cannot be read.
fn unread(uid: u32, ancestors: &[i64]) -> Case {
    Case {
        case: "unread".to_owned(),
        read: None,
        claim: None,
        environ: Some(reason::ENVIRON_UNREADABLE.to_owned()),
        uid: Some(uid),
        real_uid: None,
        container: false,
        container_owner: None,
        ancestors: ancestors.to_vec(),
        member_of: None,
        started: None,
        stale: false,
        expect: String::new(),
    }
}

#[test]
fn an_unreadable_process_is_outside_if_its_user_has_no_environment_to_claim() {
    let is_outside = |case: &Case, change: &dyn Fn(&mut State)| {
        let mut state = State {
            written_timestamp_seconds: Some(WRITTEN_SECONDS),
            environments: vec![environment("E", 1000, &[100])],
            ..State::default()
        };
        change(&mut state);
        let table = table(case);
        let live = live_environments(&state, &table);
        Attributor::new(&state, &live, !case.stale, &table).is_without(PID, |_| true)
    };
    let as_it_is = |_: &mut State| {};
    let of_carol = || unread(3000, &[50, 1]);
    assert!(is_outside(&of_carol(), &as_it_is));
    let stale = Case { stale: true, ..of_carol() };
    let contained = Case { container: true, ..of_carol() };
    let vanished = Case { read: Some("vanished".to_owned()), ..of_carol() };
    for case in [unread(1000, &[50, 1]), unread(3000, &[100, 1]), unread(3000, &[50, 0]), stale, contained, vanished] {
        assert!(!is_outside(&case, &as_it_is), "{:?}", case.ancestors);
    }
    // A spawner of root may have started the process.
    let spawned = |state: &mut State| state.environments.push(environment("R", 0, &[1]));
    assert!(!is_outside(&of_carol(), &spawned));
    // Kernels may keep an environment of carol alive, and an unreadable record may belong to her.
    let kernels = |state: &mut State| state.kernels_not_found = [("K".to_owned(), 3000)].into();
    assert!(!is_outside(&of_carol(), &kernels));
    let damaged = |state: &mut State| state.incomplete = true;
    assert!(!is_outside(&of_carol(), &damaged));
}

fn eids(environments: &[LiveEnvironment<'_>]) -> Vec<String> {
    let eid = |live: &LiveEnvironment<'_>| live.environment.eid.clone();
    environments.iter().map(eid).collect()
}

#[test]
fn an_environment_lives_by_a_member_of_its_own_time_a_kernel_or_a_hidden_member() {
    let mut state = State {
        written_timestamp_seconds: Some(WRITTEN_SECONDS),
        environments: vec![
            environment("member", 1000, &[10, 11]),
            environment("dead", 1, &[20]),
            environment("reused", 1000, &[30]),
            environment("kernel", 1, &[]),
            environment("hidden", 1, &[40]),
            // Another user's process: the record is disputed, and what is disputed does not end.
            environment("disputed", 2000, &[10]),
        ],
        ..State::default()
    };
    state.environments[3].kernel_ids = vec!["0123-abcd".to_owned()];
    let mut table = ProcessTable::default();
    table.lineage.insert(10, started(10, 9_999, 1));
    table.lineage.insert(30, started(30, 10_003, 1));
    table.hidden.insert(40);

    let live = live_environments(&state, &table);
    assert_eq!(eids(&live), ["member", "kernel", "hidden", "disputed"]);
    let member = Member { pid: 10, start_time_ticks: 999_900 };
    assert_eq!(live[0].members, [member]);
    assert_eq!(live[0].oldest_member_started_timestamp_seconds, Some(9_999.0));

    state.written_timestamp_seconds = None;
    assert_eq!(eids(&live_environments(&state, &table)), ["member", "reused", "kernel", "hidden", "disputed"]);
}

#[test]
fn a_loop_of_parents_ends_as_a_broken_chain() {
    let looped = Case { environ: None, ..unread(1000, &[1]) };
    let mut table = table(&looped);
    table.lineage.insert(PID, started(PID, 5, 998));
    table.lineage.insert(998, started(998, 5, PID));
    let attribution = Attributor::new(&State::default(), &[], true, &table).attribute(PID);
    assert_eq!(attribution, unknown(reason::ANCESTOR_UNREADABLE));
}
