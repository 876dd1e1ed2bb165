//! Real processes, read from the running kernel, each with the evidence that it has.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use genv_core::attribute::{Attributor, live_environments};
use genv_core::model::Attribution;
use genv_core::proc::{Claim, ProcReader, ProcessRead, ProcessRequest, ProcessSource, ProcessTable};
use genv_core::state::{StateDirectory, StateSource};
use genv_tests::process::Sleeper;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::json;
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
        let envs = json!({"envs": [
            {"eid": EID, "uid": uid, "creation": "20/11/2026 11:40:56", "username": "somebody",
             "config": {"name": null, "gpu_memory": null, "gpus": null}, "pids": members, "kernel_ids": []},
            // Lives by its kernel, whatever becomes of the members.
            {"eid": "other", "uid": uid, "creation": "20/11/2026 11:40:56", "username": "somebody",
             "config": {"name": null, "gpu_memory": null, "gpus": null}, "pids": [], "kernel_ids": ["k"]},
        ]});
        std::fs::write(directory.path().join("envs.json"), envs.to_string()).unwrap();
        Self { directory, reader: ProcReader::new(), members: members.to_vec() }
    }

    fn table(&mut self, pid: u32) -> ProcessTable {
        self.reader.read(&ProcessRequest { processes: vec![pid], members: self.members.clone() })
    }

    /// The answer in one line: `in EID`, `outside REASON` or `unknown REASON`.
    fn answer(&mut self, pid: u32) -> String {
        let state = StateDirectory::new(self.directory.path()).read().unwrap();
        let table = self.table(pid);
        let environments = live_environments(&state, &table);
        match Attributor::new(&state, &environments, true, &table).attribute(pid) {
            Attribution::Environment { eid } => format!("in {eid}"),
            Attribution::Outside { reason } => format!("outside {reason}"),
            Attribution::Unknown { reason } => format!("unknown {reason}"),
        }
    }

    fn comm(&mut self, pid: u32) -> String {
        match self.table(pid).processes.remove(&pid) {
            Some(ProcessRead::Present(facts)) => facts.comm,
            other => panic!("{pid} is {other:?}"),
        }
    }
}

/// Starts a process, and waits for the kernel to give it its environ: the last of what exec changes, and
/// later than the parent is told.
fn start(command: &mut Command) -> Sleeper {
    let process = Sleeper::spawn(command).unwrap();
    let environ = format!("/proc/{}/environ", process.pid());
    while std::fs::read(&environ).unwrap().is_empty() {
        std::thread::yield_now();
    }
    process
}

fn sleeper(name: &OsStr, value: &OsStr) -> Sleeper {
    let mut command = Command::new("/bin/sleep");
    start(command.env_clear().env(name, value).arg("1000000"))
}

fn claiming(eid: &str) -> Sleeper {
    sleeper(OsStr::new("GENV_ENVIRONMENT_ID"), OsStr::new(eid))
}

/// A program that talks with the test by its standard input and output, and ends with the value.
struct Script {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Script {
    fn start(program: &str, script: &str, environment: &[(&str, &str)]) -> Self {
        let option = if program == "perl" { "-e" } else { "-c" };
        let mut command = Command::new(program);
        command.env_clear().envs(environment.iter().copied());
        command.env("PATH", "/usr/bin:/bin");
        let started = command.args([option, script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            started.unwrap_or_else(|error| panic!("cannot start {program}: {error}. Install the package {program}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn say(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // What it started reads the same input, and ends with it.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_credible_claim_puts_a_process_into_its_environment() {
    let member = sleeper(OsStr::new("A"), OsStr::new("1"));
    let mut machine = Machine::new(&[member.pid()]);
    assert_eq!(machine.answer(claiming(EID).pid()), format!("in {EID}"));
    assert_eq!(machine.answer(claiming("nosuch").pid()), "outside no_such_environment");
    assert_eq!(machine.answer(claiming("").pid()), "outside no_such_environment");
}

#[test]
fn bytes_that_are_not_utf8_are_read_past() {
    let member = sleeper(OsStr::new("A"), OsStr::new("1"));
    let mut machine = Machine::new(&[member.pid()]);
    let mut command = Command::new("/bin/sleep");
    command
        .env_clear()
        .env("AAA", OsStr::from_bytes(b"\xff\xfe"))
        .env("GENV_ENVIRONMENT_ID", EID)
        .env(OsStr::from_bytes(b"ZZZ\xff"), "1");
    let process = start(command.arg("1000000"));
    assert_eq!(machine.answer(process.pid()), format!("in {EID}"));

    let broken = sleeper(OsStr::new("GENV_ENVIRONMENT_ID"), OsStr::from_bytes(b"\xff"));
    assert_eq!(machine.answer(broken.pid()), "outside no_such_environment");
}

#[test]
fn silence_is_outside_and_a_lack_of_evidence_is_unknown() {
    let mut machine = Machine::new(&[]);
    let silent = sleeper(OsStr::new("A"), OsStr::new("1"));
    assert_eq!(machine.answer(silent.pid()), "outside no_claim");

    let mut command = Command::new("/bin/sleep");
    let empty = Sleeper::spawn(command.env_clear().arg("1000000")).unwrap();
    assert_eq!(machine.answer(empty.pid()), "unknown environ_empty");
}

#[test]
fn a_title_written_over_the_environ_makes_a_process_unknown() {
    let title = r#"$| = 1; $0 = "ray::IDLE" x 1000; print "titled\n"; <STDIN>"#;
    let mut titled = Script::start("perl", title, &[("GENV_ENVIRONMENT_ID", EID)]);
    assert_eq!(titled.line(), "titled");
    assert_eq!(Machine::new(&[]).answer(titled.pid()), "unknown environ_overwritten");
    // A member needs no environ to be one.
    assert_eq!(Machine::new(&[titled.pid()]).answer(titled.pid()), format!("in {EID}"));
}

#[test]
fn members_and_what_descends_from_them_are_in() {
    // The pipe that ends them all is kept as 3: what runs in the background has no standard input.
    let script = "exec 3<&0; sh -c 'cat <&3 & echo $!; wait' & wait";
    let mut member = Script::start("sh", script, &[]);
    let grandchild: u32 = member.line().parse().unwrap();
    let mut machine = Machine::new(&[member.pid()]);
    assert_eq!(machine.answer(member.pid()), format!("in {EID}"));
    assert_eq!(machine.answer(grandchild), format!("in {EID}"));
    assert_eq!(Machine::new(&[]).answer(grandchild), "outside no_claim");
}

#[test]
fn an_ancestor_that_ends_gives_its_descendants_another_line() {
    // Four generations; the second is ended.
    let script = "exec 3<&0; sh -c 'echo $$; sh -c \"echo \\$\\$; cat <&3 & echo \\$!; wait\" & wait' & \
                  wait; echo ended; wait";
    let mut first = Script::start("sh", script, &[]);
    let pids: Vec<u32> = (0..3).map(|_| first.line().parse().unwrap()).collect();
    let [second, third, fourth] = pids[..] else { panic!("{pids:?}") };
    let mut machine = Machine::new(&[first.pid()]);
    for _ in 0..3 {
        let lineage = machine.table(fourth).lineage;
        assert_eq!(lineage[&fourth].parent, third);
        assert_eq!(lineage[&third].parent, second);
        assert_eq!(lineage[&second].parent, first.pid());
        assert_eq!(machine.answer(fourth), format!("in {EID}"));
    }
    genv_tests::process::signal(second, rustix::process::Signal::KILL).unwrap();
    // The kernel finds new parents before it tells the old one's parent.
    assert_eq!(first.line(), "ended");
    for _ in 0..3 {
        let lineage = machine.table(fourth).lineage;
        assert_eq!(lineage[&fourth].parent, third);
        let adoptive = lineage[&third].parent;
        assert_ne!(adoptive, second);
        assert!(lineage.contains_key(&adoptive));
        assert!(!lineage.contains_key(&second));
        assert_eq!(machine.answer(fourth), "outside no_claim");
    }
}

#[test]
fn a_pid_that_was_reused_after_the_file_was_written_is_no_member() {
    let reused = sleeper(OsStr::new("A"), OsStr::new("1"));
    let mut machine = Machine::new(&[reused.pid()]);
    assert_eq!(machine.answer(reused.pid()), format!("in {EID}"));

    let envs = machine.directory.path().join("envs.json");
    let envs = std::fs::File::options().append(true).open(envs).unwrap();
    envs.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    assert_eq!(machine.answer(reused.pid()), "outside no_claim");
}

#[test]
fn a_zombie_is_unknown_and_what_is_gone_has_vanished() {
    let mut machine = Machine::new(&[]);
    let mut child = Command::new("true").env("GENV_ENVIRONMENT_ID", EID).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let leave = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), leave).unwrap();
    assert_eq!(machine.answer(child.id()), "unknown zombie");
    child.wait().unwrap();
    assert_eq!(machine.answer(child.id()), "unknown vanished");
}

#[test]
fn a_process_that_ends_while_it_is_read_is_never_outside() {
    let member = sleeper(OsStr::new("A"), OsStr::new("1"));
    let mut machine = Machine::new(&[member.pid()]);
    let sleepers: Vec<Sleeper> = (0..40).map(|_| claiming(EID)).collect();
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

#[test]
fn exec_keeps_pid_and_start_and_changes_the_claim() {
    let script = "echo started; read line; exec env GENV_ENVIRONMENT_ID=other sleep 1000000";
    let mut process = Script::start("sh", script, &[("GENV_ENVIRONMENT_ID", EID)]);
    assert_eq!(process.line(), "started");
    let member = sleeper(OsStr::new("A"), OsStr::new("1"));
    let mut machine = Machine::new(&[member.pid()]);
    assert_eq!(machine.answer(process.pid()), format!("in {EID}"));
    let started = machine.table(process.pid()).lineage[&process.pid()].start_time_ticks;

    process.say();
    // Between the two programs there is a moment without any environ.
    while machine.comm(process.pid()) != "sleep" || machine.answer(process.pid()).starts_with("unknown ") {
        std::thread::yield_now();
    }
    assert_eq!(machine.answer(process.pid()), "in other");
    let table = machine.table(process.pid());
    assert_eq!(table.lineage[&process.pid()].start_time_ticks, started);
}

#[test]
fn names_made_to_mislead_are_read_as_they_are() {
    let directory = TempDir::new().unwrap();
    let mut machine = Machine::new(&[]);
    for (name, comm) in [
        (&b") R 1 1 (x"[..], ") R 1 1 (x"),
        (b"a\nUid:\t9 9", "a\nUid:\t9 9"),
        (b"\xff\xfe.sleep", "\u{fffd}\u{fffd}.sleep"),
        (b"0123456789abcdefgh", "0123456789abcde"),
    ] {
        let path = directory.path().join(Path::new(OsStr::from_bytes(name)));
        // Not a copy: one that another thread's child still has open for writing cannot be started.
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        let mut command = Command::new(&path);
        command.env_clear().env("A", "1").arg0("sleep").arg("1000000");
        let process = start(&mut command);
        assert_eq!(machine.comm(process.pid()), comm);
        let table = machine.table(process.pid());
        let ProcessRead::Present(facts) = &table.processes[&process.pid()] else { panic!("{table:?}") };
        assert_eq!(facts.uid, Some(rustix::process::geteuid().as_raw()));
    }
}

#[test]
fn a_claim_at_the_end_of_a_large_environ_is_found() {
    let mut command = Command::new("/bin/sleep");
    command.env_clear();
    let large = "x".repeat(100_000);
    for number in 0..8 {
        command.env(format!("A{number}"), &large);
    }
    command.env("GENV_ENVIRONMENT_ID", EID);
    let process = start(command.arg("1000000"));
    let table = Machine::new(&[]).table(process.pid());
    let ProcessRead::Present(facts) = &table.processes[&process.pid()] else { panic!("{table:?}") };
    assert_eq!(facts.claim, Claim::Named(EID.to_owned()));
}
