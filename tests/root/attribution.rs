//! Processes of other users, and what an ordinary user may not read: only root can make both.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::proc::{Claim, MissingEvidence, ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource};
use genv_core::state::{EnvironmentState, State};
use genv_tests::enforcer::sleeper_of;
use genv_tests::process::{Running, Sleeper};
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user without a name on any machine, and without any right.
const STRANGER: u32 = FIRST_UID;

/// A process of a user that claims the environment `E`.
fn process_of(uid: u32) -> Sleeper {
    sleeper_of(uid, &[("GENV_ENVIRONMENT_ID", "E")]).unwrap()
}

/// Takes all rights from this thread alone.
fn become_stranger() {
    let (group, user) = (Gid::from_raw(STRANGER), Uid::from_raw(STRANGER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
}

fn request(processes: &[u32], members: &[u32]) -> ProcessRequest {
    ProcessRequest { processes: processes.to_vec(), members: members.to_vec() }
}

fn facts(reader: &mut ProcReader, pid: u32) -> ProcessFacts {
    let mut table = reader.read(&request(&[pid], &[]));
    match table.processes.remove(&pid) {
        Some(ProcessRead::Present(facts)) => facts,
        other => panic!("{pid} is {other:?}"),
    }
}

fn state(member: u32) -> State {
    let environment = EnvironmentState {
        eid: "E".to_owned(),
        uid: STRANGER,
        members: vec![member.into()],
        ..EnvironmentState::default()
    };
    State { installed: true, environments: vec![environment], ..State::default() }
}

fn answer(reader: &mut ProcReader, state: &State, pid: u32) -> String {
    let members: Vec<u32> = state.environments[0].pids().collect();
    let table = reader.read(&request(&[pid], &members));
    let environments = live_environments(state, &table);
    format!("{:?}", Attributor::new(state, &environments, true, &table).attribute(pid))
}

#[test]
fn a_process_that_changes_its_user_is_seen_to() {
    require_root();
    let script = "$| = 1; print \"root\\n\"; <STDIN>; $> = 54321; print \"stranger\\n\"; <STDIN>; \
                  $> = 0; print \"root\\n\"; <STDIN>";
    let mut perl = Command::new("perl");
    let perl = perl.args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Running::spawn(perl).expect("cannot start perl: install the package perl");
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut reader = ProcReader::new();
    for uid in [0, STRANGER, 0] {
        output.next().unwrap().unwrap();
        assert_eq!(facts(&mut reader, process.id()).uid, Some(uid));
        // From memory, too.
        assert_eq!(facts(&mut reader, process.id()).uid, Some(uid));
        process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

#[test]
fn an_environ_that_may_not_be_read_makes_a_process_unknown() {
    require_root();
    let process = process_of(STRANGER + 1);
    let member = process_of(STRANGER);
    let state = state(member.pid());
    let (facts, answer) = apart(|| {
        become_stranger();
        let mut reader = ProcReader::new();
        let facts = facts(&mut reader, process.pid());
        (facts, answer(&mut reader, &state, process.pid()))
    });
    assert_eq!(facts.claim, Claim::Missing(MissingEvidence::EnvironUnreadable));
    assert_eq!(facts.uid, Some(STRANGER + 1));
    assert_eq!(facts.comm, "sleep");
    assert_eq!(answer, r#"Unknown { reason: "environ_unreadable" }"#);
}

#[test]
fn processes_hidden_by_hidepid_are_unreadable_and_alive() {
    require_root();
    for hidepid in ["hidepid=1", "hidepid=2"] {
        let process = process_of(STRANGER + 1);
        let own = process_of(STRANGER);
        let member = process_of(STRANGER + 1);
        let gone = process_of(STRANGER + 1);
        let gone_pid = gone.pid();
        drop(gone);
        let state = state(member.pid());
        apart(|| {
            own_mounts();
            let options = std::ffi::CString::new(hidepid).unwrap();
            mount("proc", "/proc", "proc", MountFlags::empty(), options.as_c_str()).unwrap();
            become_stranger();

            let mut reader = ProcReader::new();
            let pids = [process.pid(), own.pid(), gone_pid];
            let table = reader.read(&request(&pids, &[member.pid(), gone_pid]));
            assert_eq!(table.processes[&process.pid()], ProcessRead::Unreadable);
            assert_eq!(table.processes[&gone_pid], ProcessRead::Vanished);
            assert!(matches!(table.processes[&own.pid()], ProcessRead::Present(_)));
            assert!(table.hidden.contains(&member.pid()), "{table:?}");
            assert!(!table.hidden.contains(&gone_pid));
            assert!(table.withheld[0].error.contains("hidepid"), "{table:?}");
            assert_eq!(live_environments(&state, &table).len(), 1);
            assert_eq!(answer(&mut reader, &state, process.pid()), r#"Unknown { reason: "unreadable" }"#);
            assert_eq!(answer(&mut reader, &state, own.pid()), r#"Environment { eid: "E" }"#);
        });
    }
}
