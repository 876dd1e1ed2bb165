mod audit;
mod breaker;
mod detach;
mod dispatched;
mod exempt;
mod report;
mod resume;
mod signals;
mod unkillable;
mod verification;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use genv_core::model::DeviceIndex;
use genv_core::proc::{ProcReader, ProcessRead, ProcessRequest, ProcessSource as _};
use genv_core::state::StateDirectory;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::plan::tests::lab::target;
use crate::plan::{AttachmentTarget, Key};

const STRANGER: u32 = 54_321;

/// How long anything may take to happen before a test is given up: much longer than it takes, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self::of(Command::new("sleep").arg("1000000"), &[("A", "1")])
    }

    fn claiming(eid: &str) -> Self {
        let command = &mut Command::new("sleep");
        // Without a state directory, commands of genv in other tests would take it for a job of theirs.
        let claim = [("GENV_ENVIRONMENT_ID", eid), ("GENV_TMPDIR", "/nonexistent")];
        Self::of(command.arg("1000000"), &claim)
    }

    /// Waits for the kernel to give it its environ.
    fn of(command: &mut Command, environment: &[(&str, &str)]) -> Self {
        command.env_clear().envs(environment.iter().copied());
        let victim = Self::spawn(command.env("PATH", "/usr/bin:/bin"));
        let environ = format!("/proc/{}/environ", victim.pid());
        until("it has an environ", || !fs::read(&environ).unwrap().is_empty());
        victim
    }

    fn spawn(command: &mut Command) -> Self {
        if rustix::process::geteuid().is_root() {
            command.uid(STRANGER).gid(STRANGER);
        }
        command.stdin(Stdio::null());
        loop {
            match command.spawn() {
                // What another test just started has not yet closed the file that this one wrote.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
                started => return Self(started.unwrap()),
            }
        }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn ended_by(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        until("it ends", || !self.runs());
        self.0.wait().unwrap().signal().unwrap_or_default()
    }

    fn target(&self) -> ProcessTarget {
        process(self.pid())
    }

    fn inside(&self) -> ProcessTarget {
        ProcessTarget { eid: Some("E".to_owned()), ..self.target() }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn process(pid: u32) -> ProcessTarget {
    let mut reader = ProcReader::new();
    let mut found = None;
    // A busy machine may not read it in time.
    until("the process is read", || {
        let mut table = reader.read(&ProcessRequest { processes: vec![pid], members: Vec::new() });
        found = table.processes.remove(&pid);
        matches!(found, Some(ProcessRead::Present(_)))
    });
    let Some(ProcessRead::Present(facts)) = found else { unreachable!() };
    let uid = facts.uid.unwrap();
    ProcessTarget {
        hostname: "here".to_owned(),
        start_time_ticks: facts.start_time_ticks,
        uid,
        comm: Some(facts.comm),
        ..target(&reader.username(uid), pid)
    }
}

fn clock(at: &Arc<Mutex<f64>>) -> impl Fn() -> f64 + Send + 'static {
    let at = Arc::clone(at);
    move || *at.lock().unwrap()
}

fn step(kind: StepKind) -> Step {
    let key =
        Key { rule: "rule".to_owned(), subject: Subject::User { username: "somebody".to_owned(), hostname: None } };
    Step { key, kind }
}

fn terminate(target: &ProcessTarget) -> Step {
    step(StepKind::Terminate(target.clone().into()))
}

fn kill(target: &ProcessTarget) -> Step {
    step(StepKind::Kill(target.clone().into()))
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Enforce,
        never: Never::default(),
        breaker: BreakerLimits { signals_per_minute: 20, share_of_users: 0.5, at_least_users: 3 },
    }
}

struct Stage {
    own: TempDir,
    genv: TempDir,
    gpu_use: Arc<Mutex<GpuUse>>,
    policy: Policy,
}

impl Stage {
    fn new(users: &[&Victim]) -> Self {
        let pids = users.iter().map(|victim| victim.pid());
        Self {
            own: tempfile::tempdir().unwrap(),
            genv: tempfile::tempdir().unwrap(),
            gpu_use: Arc::new(Mutex::new(pids.map(|pid| (pid, [0].into())).collect())),
            policy: policy(),
        }
    }

    /// A victim that uses GPU 0.
    fn of_victim() -> (Victim, Self) {
        let victim = Victim::new();
        let stage = Self::new(&[&victim]);
        (victim, stage)
    }

    fn executor(&self) -> Executor {
        let shared = Arc::clone(&self.gpu_use);
        self.asking(Box::new(move || Ok(shared.lock().unwrap().clone())))
    }

    fn asking(&self, gpu_use: ReadGpuUse) -> Executor {
        let place = ExecutorHost {
            hostname: "here".to_owned(),
            genv_directory: self.genv.path().to_owned(),
            state_directory: self.own.path().to_owned(),
        };
        let evidence = EvidenceSources {
            gpu_use,
            gpu_uuid: Box::new(|gpu| Some(format!("GPU-{gpu}"))),
            processes: Box::new(ProcReader::new()),
            state: Box::new(StateDirectory::new(self.genv.path())),
        };
        Executor::open(place, self.policy.clone(), evidence).unwrap()
    }

    fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.own.path().join("audit.jsonl")).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    fn results(&self) -> Vec<String> {
        let results = self.audit().into_iter();
        results.map(|line| line["result"].as_str().unwrap().to_owned()).collect()
    }

    fn environment(&self, eid: &str, uid: u32, member: u32) {
        // 2026-11-20 12:00:00 UTC.
        let time = 1_795_176_000;
        let environment = json!({"eid": eid, "uid": uid, "username": "somebody", "created_timestamp_seconds": time,
            "members": [{"pid": member}]});
        let attachment = json!({"eid": eid, "attached_timestamp_seconds": time});
        let device = json!({"index": 0, "total_memory": "81920mi", "attachments": [attachment]});
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let state =
            json!({"version": 1, "boot_id": boot_id.trim(), "environments": [environment], "devices": [device]});
        fs::write(self.genv.path().join("state.json"), state.to_string()).unwrap();
    }

    fn attached(&self) -> bool {
        let text = fs::read_to_string(self.genv.path().join("state.json")).unwrap();
        let state: Value = serde_json::from_str(&text).unwrap();
        state["devices"][0]["attachments"].as_array().is_some_and(|all| !all.is_empty())
    }
}

/// Why the parent of the tests is not ended; in a container it may be the first process.
fn of_parent() -> &'static str {
    let parent = rustix::process::getppid().unwrap();
    if parent.is_init() { "pid 1 is never ended" } else { "it is the enforcer, or started it" }
}

#[track_caller]
fn refused(executor: &mut Executor, step: &Step, part: &str, expected_again: bool) {
    is_refusal(&executor.execute(step, "why"), part, expected_again);
}

#[track_caller]
fn is_refusal(outcome: &Outcome, part: &str, expected_again: bool) {
    match outcome {
        Outcome::Refused { reason, again } => {
            assert!(reason.contains(part), "{reason}");
            assert_eq!(*again, expected_again, "{reason}");
        }
        other => panic!("{other:?} is no refusal with '{part}'"),
    }
}
