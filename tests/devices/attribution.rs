//! Real processes, read from the running kernel, each with the evidence that it has.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::model::Attribution;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource};
use genv_core::state::{EditableState, MemberId, StateDirectory, StateSource, StateStore, StoreError};
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};
use tempfile::TempDir;

const EID: &str = "attribution-test";

/// A state directory with one environment of this user, and a reader of the running kernel.
struct Machine {
    directory: TempDir,
    reader: ProcReader,
    members: Vec<u32>,
}

impl Machine {
    fn new(members: &[u32]) -> Self {
        let directory = TempDir::new().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let environment = |eid: &str, pids: &[u32]| Environment {
            eid: eid.to_owned(),
            uid,
            pids: pids.to_vec(),
            devices: Vec::new(),
            gpu_memory: None,
        };
        state::write(directory.path(), 0, &[environment(EID, members), environment("other", &[])]).unwrap();
        // The other one lives by its kernel, whatever becomes of the members.
        let with_kernel = |state: &mut Value| {
            state["environments"][1]["kernel_ids"] = json!(["k"]);
            Ok(())
        };
        state::edit(directory.path(), with_kernel).unwrap();
        Self { directory, reader: ProcReader::new(), members: members.to_vec() }
    }

    /// An environment whose member a command of this user's recorded.
    fn joined_by(member: u32) -> Self {
        let directory = TempDir::new().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let activate =
            |state: &mut EditableState| Ok::<_, StoreError>(state.activate(EID, uid, None, &MemberId::Process(member)));
        StateStore::new(directory.path()).update(activate).unwrap();
        Self { directory, reader: ProcReader::new(), members: vec![member] }
    }

    /// The answer in one line: `in EID`, `outside REASON` or `unknown REASON`.
    fn answer(&mut self, pid: u32) -> String {
        let state = StateDirectory::new(self.directory.path()).read().unwrap();
        let table = self.reader.read(&ProcessRequest { processes: vec![pid], members: self.members.clone() });
        let environments = live_environments(&state, &table);
        match Attributor::new(&state, &environments, true, &table).attribute(pid) {
            Attribution::Environment { eid } => format!("in {eid}"),
            Attribution::Outside { reason } => format!("outside {reason}"),
            Attribution::Unknown { reason } => format!("unknown {reason}"),
        }
    }
}

/// Starts a process, and waits for the kernel to give it its environ: the last of what exec changes, and
/// later than the parent is told.
fn sleeper(name: &str, value: &str) -> Sleeper {
    let mut command = Command::new("/bin/sleep");
    let process = Sleeper::spawn(command.env_clear().env(name, value).arg("1000000")).unwrap();
    let environ = format!("/proc/{}/environ", process.pid());
    while std::fs::read(&environ).unwrap().is_empty() {
        std::thread::yield_now();
    }
    process
}

#[test]
fn a_title_written_over_the_environ_makes_a_process_unknown() {
    let title = r#"$| = 1; $0 = "ray::IDLE" x 1000; print "titled\n"; <STDIN>"#;
    let mut command = Command::new("perl");
    command.env_clear().env("GENV_ENVIRONMENT_ID", EID).env("PATH", "/usr/bin:/bin").args(["-e", title]);
    // It ends with its input, also where this test fails.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut titled = command.spawn().expect("cannot start perl: install the package perl");
    let mut line = String::new();
    BufReader::new(titled.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "titled\n");
    assert_eq!(Machine::new(&[]).answer(titled.id()), "unknown environ_overwritten");
    // A member needs no environ to be one.
    assert_eq!(Machine::joined_by(titled.id()).answer(titled.id()), format!("in {EID}"));
    drop(titled.stdin.take());
    titled.wait().unwrap();
}

#[test]
fn a_zombie_of_the_kernel_is_unknown() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    assert_eq!(Machine::new(&[]).answer(child.id()), "unknown zombie");
    child.wait().unwrap();
}

#[test]
fn a_process_that_ends_while_it_is_read_is_never_outside() {
    let member = sleeper("A", "1");
    let mut machine = Machine::new(&[member.pid()]);
    let sleepers: Vec<Sleeper> = (0..40).map(|_| sleeper("GENV_ENVIRONMENT_ID", EID)).collect();
    let pids: Vec<u32> = sleepers.iter().map(Sleeper::pid).collect();
    let expected = |answer: &str| answer == format!("in {EID}") || answer.starts_with("unknown ");
    std::thread::scope(|scope| {
        let reaper = scope.spawn(|| drop(sleepers));
        while !reaper.is_finished() {
            for &pid in &pids {
                let answer = machine.answer(pid);
                assert!(expected(&answer), "{answer}");
            }
        }
    });
    for pid in pids {
        assert_eq!(machine.answer(pid), "unknown vanished");
    }
}
