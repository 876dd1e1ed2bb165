//! Processes of other users, and what an ordinary user may not read: only root can make both.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::proc::{Claim, MissingEvidence, ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource};
use genv_core::state::{EnvironmentState, State, StateDirectory, StateSource};
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::sleeper_of;
use genv_tests::process::Sleeper;
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;

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

/// Runs on a thread of its own, as a user who may do nothing special.
fn as_stranger<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    apart(|| {
        become_stranger();
        run()
    })
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
        username: None,
        created_timestamp_seconds: None,
        name: None,
        gpus: None,
        gpu_memory: None,
        pids: vec![member],
        kernel_ids: Vec::new(),
    };
    State { installed: true, environments: vec![environment], ..State::default() }
}

fn answer(reader: &mut ProcReader, state: &State, pid: u32) -> String {
    let members = &state.environments[0].pids;
    let table = reader.read(&request(&[pid], members));
    let environments = live_environments(state, &table);
    format!("{:?}", Attributor::new(state, &environments, true, &table).attribute(pid))
}

#[test]
fn a_claim_counts_for_the_environments_own_user() {
    require_root();
    let member = process_of(STRANGER);
    let other = process_of(STRANGER + 1);
    let state = state(member.pid());
    let mut reader = ProcReader::new();
    let own = process_of(STRANGER);
    assert_eq!(answer(&mut reader, &state, own.pid()), r#"Environment { eid: "E" }"#);
    assert_eq!(answer(&mut reader, &state, other.pid()), r#"Outside { reason: "other_users_environment" }"#);
    assert_eq!(reader.username(STRANGER), "uid:54321");
}

#[test]
fn a_record_makes_no_member_of_another_users_process() {
    require_root();
    let other = sleeper_of(STRANGER + 1, &[("A", "1")]).unwrap();
    let below = ChangedUser::start(STRANGER + 1, STRANGER, &[("A", "1")]).unwrap();
    let outside = r#"Outside { reason: "no_claim" }"#;
    let mut reader = ProcReader::new();
    let mut lists = |listed: u32, uid: u32, asked: u32| {
        let mut state = state(listed);
        state.environments[0].uid = uid;
        let table = reader.read(&request(&[asked], &[listed]));
        let live = live_environments(&state, &table);
        assert_eq!(live.len(), 1, "what is disputed does not end");
        answer(&mut reader, &state, asked)
    };
    for uid in [STRANGER, 0] {
        assert_eq!(lists(1, uid, other.pid()), outside);
        assert_eq!(lists(1, uid, below.child()), outside);
    }
    assert_eq!(lists(other.pid(), STRANGER, other.pid()), outside);
    assert_eq!(lists(below.pid(), STRANGER, below.child()), outside);
    let own = r#"Environment { eid: "E" }"#;
    assert_eq!(lists(other.pid(), STRANGER + 1, other.pid()), own);
}

#[test]
fn a_record_that_names_another_user_makes_those_who_claim_it_unknown() {
    require_root();
    // It was another user's before this user wrote its own uid into it.
    let below = ChangedUser::start(STRANGER + 1, STRANGER + 1, &[("GENV_ENVIRONMENT_ID", "E")]);
    let below = below.unwrap();
    let state = state(below.pid());
    let mut reader = ProcReader::new();
    for pid in [below.pid(), below.child()] {
        assert_eq!(answer(&mut reader, &state, pid), r#"Unknown { reason: "membership_contradicted" }"#);
    }
}

#[test]
fn a_process_below_a_member_that_runs_as_another_user_is_unknown() {
    require_root();
    let mut reader = ProcReader::new();
    for environment in [("A", "1"), ("GENV_ENVIRONMENT_ID", "E"), ("GENV_ENVIRONMENT_ID", "no")] {
        for user in [0, STRANGER + 1] {
            let below = ChangedUser::start(STRANGER, user, &[environment]).unwrap();
            // From memory, too.
            for _ in 0..2 {
                assert_eq!(
                    answer(&mut reader, &state(below.pid()), below.child()),
                    r#"Unknown { reason: "user_changed" }"#
                );
            }
        }
    }
    let same = ChangedUser::start(STRANGER, STRANGER, &[("A", "1")]).unwrap();
    assert_eq!(answer(&mut reader, &state(same.pid()), same.child()), r#"Environment { eid: "E" }"#);
}

#[test]
fn a_process_with_the_rights_of_another_user_is_unknown() {
    require_root();
    let mut reader = ProcReader::new();
    for environment in [("A", "1"), ("GENV_ENVIRONMENT_ID", "E")] {
        for (effective, real) in [(0, STRANGER), (STRANGER, 0), (STRANGER + 1, STRANGER)] {
            let setuid = ChangedUser::with_real_user(STRANGER, effective, real, &[environment]);
            let setuid = setuid.unwrap();
            for member in [setuid.pid(), setuid.child(), 1] {
                assert_eq!(
                    answer(&mut reader, &state(member), setuid.child()),
                    r#"Unknown { reason: "users_differ" }"#
                );
            }
        }
    }
}

/// Ends with the value, having its input closed.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_changes_its_user_is_seen_to() {
    require_root();
    let script = "$| = 1; print \"root\\n\"; <STDIN>; $> = 54321; print \"stranger\\n\"; <STDIN>; \
                  $> = 0; print \"root\\n\"; <STDIN>";
    let started = Command::new("perl").args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = Script(started.expect("cannot start perl: install the package perl"));
    let mut output = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let mut reader = ProcReader::new();
    for uid in [0, STRANGER, 0] {
        output.next().unwrap().unwrap();
        assert_eq!(facts(&mut reader, process.0.id()).uid, Some(uid));
        // From memory, too.
        assert_eq!(facts(&mut reader, process.0.id()).uid, Some(uid));
        process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

#[test]
fn an_environ_that_may_not_be_read_makes_a_process_unknown() {
    require_root();
    let process = process_of(STRANGER + 1);
    let member = process_of(STRANGER);
    let state = state(member.pid());
    let (facts, answer) = as_stranger(|| {
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
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
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
                assert_eq!(live_environments(&state, &table).len(), 1);
                assert_eq!(answer(&mut reader, &state, process.pid()), r#"Unknown { reason: "unreadable" }"#);
                assert_eq!(answer(&mut reader, &state, own.pid()), r#"Environment { eid: "E" }"#);
            });
            thread.join().unwrap();
        });
    }
}

#[test]
fn state_that_may_not_be_read_is_an_error_that_says_so() {
    require_root();
    let folder = TempDir::new().unwrap();
    let directory = folder.path().join("genv");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("envs.json"), r#"{"envs": []}"#).unwrap();
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(folder.path(), 0o755);
    let error = || {
        as_stranger(|| {
            let error = StateDirectory::new(&directory).read().unwrap_err();
            error.to_string()
        })
        .replace(&directory.display().to_string(), "DIR")
    };
    let remedy = "let everybody read it, as genv does (directory 0777, files 0666), or run as a user who may";

    mode(&directory.join("envs.json"), 0o600);
    assert_eq!(error(), format!("cannot read DIR/envs.json: Permission denied (os error 13): {remedy}"));
    mode(&directory, 0o700);
    assert_eq!(error(), format!("cannot read DIR/envs.json: Permission denied (os error 13): {remedy}"));
    mode(folder.path(), 0o700);
    assert_eq!(error(), format!("cannot open the state directory DIR: Permission denied (os error 13): {remedy}"));
}
