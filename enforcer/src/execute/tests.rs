//! Real processes, and what becomes of them.

use std::fs;
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
use crate::plan::{AttachmentTarget, Key};

/// A user who is not root, and has no name.
const STRANGER: u32 = 54_321;

/// For what should happen soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that may be ended; it ends with the value.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self::of(Command::new("sleep").arg("1000000"), &[("A", "1")])
    }

    fn claiming(eid: &str) -> Self {
        let command = &mut Command::new("sleep");
        Self::of(command.arg("1000000"), &[("GENV_ENVIRONMENT_ID", eid)])
    }

    /// Waits for the kernel to give it its environ.
    fn of(command: &mut Command, environment: &[(&str, &str)]) -> Self {
        command.env_clear().envs(environment.iter().copied());
        let victim = Self::spawn(command.env("PATH", "/usr/bin:/bin"));
        let environ = format!("/proc/{}/environ", victim.pid());
        until("it has an environ", || {
            !fs::read(&environ).unwrap().is_empty()
        });
        victim
    }

    fn spawn(command: &mut Command) -> Self {
        if rustix::process::geteuid().is_root() {
            command.uid(STRANGER).gid(STRANGER);
        }
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The signal that it ended by.
    fn ended_by(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        until("it ends", || !self.runs());
        self.0.wait().unwrap().signal().unwrap_or_default()
    }

    fn target(&self) -> ProcessTarget {
        process(self.pid())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process outside of all environments, as it is now.
fn process(pid: u32) -> ProcessTarget {
    let mut reader = ProcReader::new();
    let mut table = reader.read(&ProcessRequest {
        processes: vec![pid],
        members: Vec::new(),
    });
    let Some(ProcessRead::Present(facts)) = table.processes.remove(&pid) else {
        panic!("{pid} is not there");
    };
    let uid = facts.uid.unwrap();
    ProcessTarget {
        hostname: "here".to_owned(),
        pid,
        start_time_ticks: facts.start_time_ticks,
        uid,
        username: reader.username(uid),
        comm: Some(facts.comm),
        eid: None,
        container_id: None,
    }
}

fn step(kind: StepKind) -> Step {
    let key = Key {
        rule: "rule".to_owned(),
        subject: Subject::User {
            username: "somebody".to_owned(),
            hostname: None,
        },
    };
    Step { key, kind }
}

fn terminate(target: &ProcessTarget) -> Step {
    step(StepKind::Terminate(target.clone()))
}

fn kill(target: &ProcessTarget) -> Step {
    step(StepKind::Kill(target.clone()))
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Enforce,
        never: Never::default(),
        breaker: BreakerLimits {
            signals_per_minute: 20,
            share_of_users: 0.5,
            at_least_users: 3,
        },
    }
}

/// Two directories, and who uses GPU 0.
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

    fn executor(&self) -> Executor {
        let shared = Arc::clone(&self.gpu_use);
        self.asking(Box::new(move || Ok(shared.lock().unwrap().clone())))
    }

    fn asking(&self, gpu_use: AskGpuUse) -> Executor {
        let place = Place {
            hostname: "here".to_owned(),
            genv_directory: self.genv.path().to_owned(),
            state_directory: self.own.path().to_owned(),
        };
        let evidence = Evidence {
            gpu_use,
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

    /// The results in the audit, in order.
    fn results(&self) -> Vec<String> {
        let results = self.audit().into_iter();
        results
            .map(|line| line["result"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Writes one environment, attached to GPU 0 at noon.
    fn environment(&self, eid: &str, uid: u32, member: u32) {
        let time = "20/11/2026 12:00:00";
        let envs = json!({"envs": [
            {"eid": eid, "uid": uid, "creation": time, "username": "somebody",
             "config": {"name": null, "gpu_memory": null, "gpus": null}, "pids": [member], "kernel_ids": []},
        ]});
        let devices = json!({"devices": [
            {"index": 0, "total_memory": "81920mi", "attachments": [{"eid": eid, "gpu_memory": null, "time": time}]},
        ]});
        let write = |name: &str, content: Value| {
            fs::write(self.genv.path().join(name), content.to_string()).unwrap();
        };
        write("envs.json", envs);
        write("devices.json", devices);
    }

    fn attached(&self) -> bool {
        let text = fs::read_to_string(self.genv.path().join("devices.json")).unwrap();
        let devices: Value = serde_json::from_str(&text).unwrap();
        devices["devices"][0]["attachments"] != json!([])
    }
}

#[track_caller]
fn refused(outcome: &Outcome, part: &str, expected_again: bool) {
    match outcome {
        Outcome::Refused { reason, again } => {
            assert!(reason.contains(part), "{reason}");
            assert_eq!(*again, expected_again, "{reason}");
        }
        other => panic!("{other:?} is no refusal with '{part}'"),
    }
}

#[test]
fn promise_12_a_signal_has_its_record_before_it() {
    let own = tempfile::tempdir().unwrap();
    let seen = own.path().join("seen");
    let folder = TempDir::new().unwrap();
    // The victim reads the audit when SIGTERM reaches it.
    let audit = folder.path().join("audit.jsonl");
    if rustix::process::geteuid().is_root() {
        for path in [own.path(), folder.path()] {
            std::os::unix::fs::chown(path, Some(STRANGER), None).unwrap();
        }
    }
    let script = format!(
        "trap 'cat {} >{}; exit 7' TERM; echo ready >{}; while :; do sleep 0.01; done",
        audit.display(),
        seen.display(),
        own.path().join("ready").display(),
    );
    let mut victim = Victim::of(Command::new("sh").args(["-c", &script]), &[("A", "1")]);
    until("it is ready", || own.path().join("ready").exists());
    let stage = Stage {
        own: folder,
        ..Stage::new(&[&victim])
    };
    let outcome = stage
        .executor()
        .carry_out(&terminate(&victim.target()), "why");
    assert_eq!(outcome, Outcome::Done);
    until("it ends", || !victim.runs());
    let seen: Value =
        serde_json::from_str(fs::read_to_string(seen).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(seen["result"], "intended");
    assert_eq!(seen["pid"], victim.pid());
    let lines = stage.audit();
    assert_eq!(lines[0], seen);
    assert_eq!(lines[1]["result"], "done");
    assert_eq!(lines[0]["id"], lines[1]["id"]);
    assert_eq!(lines.len(), 2);
}

#[test]
fn sigterm_then_sigkill_through_the_same_descriptor() {
    let mut victim = Victim::of(
        Command::new("sh").args(["-c", "trap '' TERM; while :; do sleep 0.01; done"]),
        &[("A", "1")],
    );
    let target = victim.target();
    // Until it ignores SIGTERM.
    let status = format!("/proc/{}/status", victim.pid());
    until("it ignores SIGTERM", || {
        let status = fs::read_to_string(&status).unwrap();
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .unwrap();
        u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 14) != 0
    });
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    assert_eq!(
        executor.carry_out(&terminate(&target), "why"),
        Outcome::Done
    );
    // Once is enough, whichever rule asks.
    assert_eq!(
        executor.carry_out(&terminate(&target), "why"),
        Outcome::Done
    );
    assert!(victim.runs());
    assert_eq!(executor.carry_out(&kill(&target), "why"), Outcome::Done);
    assert_eq!(victim.ended_by(), 9);
    let sent: Vec<Value> = stage.audit();
    let sent = sent.iter().filter(|line| line["result"] == "intended");
    let sent: Vec<&Value> = sent.map(|line| &line["action"]).collect();
    assert_eq!(sent, ["SIGTERM", "SIGKILL"]);
    refused(
        &executor.carry_out(&kill(&target), "why"),
        "killed already",
        false,
    );
    assert_eq!(
        executor.begin_cycle(&BTreeSet::new(), &BTreeSet::new()),
        CycleNotes::default()
    );
    refused(
        &executor.carry_out(&kill(&target), "why"),
        "it ended by itself",
        false,
    );
}

#[test]
fn promise_05_dry_run_verifies_the_same_and_does_nothing() {
    let mut victim = Victim::new();
    let mut stage = Stage::new(&[&victim]);
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let target = victim.target();
    assert_eq!(
        executor.carry_out(&terminate(&target), "why"),
        Outcome::Would
    );
    assert_eq!(executor.carry_out(&kill(&target), "why"), Outcome::Would);
    let reused = ProcessTarget {
        start_time_ticks: 1,
        ..target
    };
    refused(
        &executor.carry_out(&terminate(&reused), "why"),
        "another process",
        false,
    );
    assert!(victim.runs());
    assert_eq!(stage.results(), ["would", "would", "refused"]);
    assert_eq!(stage.audit()[0]["mode"], "dry-run");
}

#[test]
fn promise_01_another_start_time_is_another_process() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[&victim]);
    let target = victim.target();
    let earlier = ProcessTarget {
        start_time_ticks: target.start_time_ticks - 1,
        ..target
    };
    refused(
        &stage.executor().carry_out(&terminate(&earlier), "why"),
        "another process",
        false,
    );
    assert!(victim.runs());
}

#[test]
fn promise_01_a_process_that_ends_while_it_is_verified_is_left_alone() {
    let victim = Victim::new();
    let target = victim.target();
    let pid = victim.pid();
    let stage = Stage::new(&[]);
    let victim = Arc::new(Mutex::new(Some(victim)));
    let ending = Arc::clone(&victim);
    let mut executor = stage.asking(Box::new(move || {
        drop(ending.lock().unwrap().take());
        Ok([(pid, [0].into())].into())
    }));
    refused(
        &executor.carry_out(&terminate(&target), "why"),
        "it ended by itself",
        false,
    );
    assert_eq!(stage.results(), ["refused"]);
}

#[test]
fn who_uses_no_gpu_any_more_is_left_alone() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[]);
    let mut executor = stage.executor();
    let target = victim.target();
    refused(
        &executor.carry_out(&terminate(&target), "why"),
        "does not use the device",
        true,
    );
    // On another device than the one that the violation is about, too.
    stage
        .gpu_use
        .lock()
        .unwrap()
        .insert(victim.pid(), [1].into());
    let mut about_device = terminate(&target);
    about_device.key.subject = Subject::UserDevice {
        username: "somebody".to_owned(),
        hostname: "here".to_owned(),
        index: DeviceIndex::gpu(0),
    };
    refused(
        &executor.carry_out(&about_device, "why"),
        "does not use the device",
        true,
    );
    assert!(victim.runs());
    stage
        .gpu_use
        .lock()
        .unwrap()
        .insert(victim.pid(), [0].into());
    assert_eq!(executor.carry_out(&about_device, "why"), Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn promise_03_unknown_never_acts() {
    let mut victim = Victim::spawn(Command::new("/bin/sleep").env_clear().arg("1000000"));
    let comm = format!("/proc/{}/comm", victim.pid());
    until("it runs sleep", || {
        fs::read_to_string(&comm).unwrap() == "sleep\n"
    });
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    refused(
        &executor.carry_out(&terminate(&victim.target()), "why"),
        "environ_empty",
        true,
    );

    // Who uses GPUs, or which environments there are, may be unknown as well.
    let mut known = Victim::new();
    let target = known.target();
    let mut blind = stage.asking(Box::new(|| Err("the driver hangs".to_owned())));
    refused(
        &blind.carry_out(&terminate(&target), "why"),
        "the driver hangs",
        true,
    );
    stage
        .gpu_use
        .lock()
        .unwrap()
        .insert(known.pid(), [0].into());
    fs::write(stage.genv.path().join("envs.json"), "{").unwrap();
    refused(
        &executor.carry_out(&terminate(&target), "why"),
        "envs.json",
        true,
    );
    assert!(victim.runs() && known.runs());
    assert_eq!(stage.results(), ["refused"; 3]);
}

#[test]
fn a_claim_that_changed_since_spares_its_process() {
    let mut member = Victim::new();
    let mut victim = Victim::claiming("E");
    let uid = victim.target().uid;
    let stage = Stage::new(&[&victim]);
    stage.environment("E", uid, member.pid());
    let mut executor = stage.executor();
    let outside = victim.target();
    refused(
        &executor.carry_out(&terminate(&outside), "why"),
        "not in the same environment",
        true,
    );
    let inside = ProcessTarget {
        eid: Some("E".to_owned()),
        ..outside
    };
    let other_user = ProcessTarget {
        uid: uid + 1,
        ..inside.clone()
    };
    refused(
        &executor.carry_out(&terminate(&other_user), "why"),
        "another user",
        true,
    );
    assert!(victim.runs());
    assert_eq!(
        executor.carry_out(&terminate(&inside), "why"),
        Outcome::Done
    );
    assert_eq!(victim.ended_by(), 15);
    assert!(member.runs());
}

#[test]
fn promise_14_a_forged_id_neither_protects_its_forger_nor_harms_its_victim() {
    let mut victim = Victim::new();
    let mut forger = Victim::claiming("E");
    let stage = Stage::new(&[&forger]);
    stage.environment("E", STRANGER + 1, victim.pid());
    let mut executor = stage.executor();
    let forged = ProcessTarget {
        eid: Some("E".to_owned()),
        ..forger.target()
    };
    refused(
        &executor.carry_out(&terminate(&forged), "why"),
        "not in the same environment",
        true,
    );
    assert_eq!(
        executor.carry_out(&terminate(&forger.target()), "why"),
        Outcome::Done
    );
    assert_eq!(forger.ended_by(), 15);
    assert!(victim.runs());
}

#[test]
fn promise_06_what_is_never_ended_is_not() {
    let mut victim = Victim::new();
    let target = victim.target();
    let mut stage = Stage::new(&[&victim]);
    let own = std::process::id();
    let parent = rustix::process::getppid()
        .unwrap()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    for pid in [1, own, parent] {
        stage.gpu_use.lock().unwrap().insert(pid, [0].into());
    }
    let attempt = |stage: &Stage, target: &ProcessTarget, part: &str| {
        for step in [terminate(target), kill(target)] {
            refused(&stage.executor().carry_out(&step, "why"), part, false);
        }
    };
    for (pid, part) in [
        (1, "pid 1"),
        (own, "it is the enforcer"),
        (parent, "it is the enforcer"),
    ] {
        attempt(&stage, &process(pid), part);
    }
    for name in [target.username.clone(), format!("uid:{}", target.uid)] {
        stage.policy.never.users = [name].into();
        attempt(&stage, &target, "listed under never");
    }
    stage.policy.never.users.clear();
    stage.policy.never.executables = [PathBuf::from("/bin/sleep")].into();
    attempt(&stage, &target, "it runs /bin/sleep");
    assert!(victim.runs());
}

#[test]
fn promise_06_a_name_protects_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("Xorg");
    fs::copy("/bin/sleep", &copy).unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [folder.path(), &copy] {
            std::os::unix::fs::chown(path, Some(STRANGER), None).unwrap();
        }
    }
    let mut victim = Victim::of(Command::new(&copy).arg("1000000"), &[("A", "1")]);
    let mut stage = Stage::new(&[&victim]);
    stage.policy.never.executables = [copy, PathBuf::from("/usr/lib/xorg/Xorg")].into();
    let outcome = stage
        .executor()
        .carry_out(&terminate(&victim.target()), "why");
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn promise_08_the_breaker_stops_at_its_number_and_stays_open() {
    let mut victims: Vec<Victim> = (0..4).map(|_| Victim::new()).collect();
    let mut stage = Stage::new(&victims.iter().collect::<Vec<_>>());
    stage.policy.breaker.signals_per_minute = 2;
    let steps: Vec<Step> = victims
        .iter()
        .map(|victim| terminate(&victim.target()))
        .collect();
    let mut executor = stage.executor().clock(|| 1000.0);
    assert_eq!(executor.carry_out(&steps[0], "why"), Outcome::Done);
    assert_eq!(executor.carry_out(&steps[1], "why"), Outcome::Done);
    refused(
        &executor.carry_out(&steps[2], "why"),
        "the breaker is open",
        true,
    );
    assert_eq!(executor.mode(), Mode::DryRun);
    // Neither time nor a restart closes it.
    let mut later = stage.executor().clock(|| 9000.0);
    assert_eq!(later.mode(), Mode::DryRun);
    refused(
        &later.carry_out(&steps[3], "why"),
        "the breaker is open",
        true,
    );
    let directory = RuntimeDirectory::open(stage.own.path()).unwrap();
    let open = reset_breaker(&directory).unwrap().unwrap();
    assert!(open.why.contains("more than 2 signals"), "{open:?}");
    assert_eq!(reset_breaker(&directory).unwrap(), None);
    assert!(victims[2].runs() && victims[3].runs());
    // Also the other program sees that it was reset.
    assert_eq!(executor.carry_out(&steps[3], "why"), Outcome::Done);
    assert_eq!(victims[3].ended_by(), 15);
    assert!(victims[2].runs());
}

#[test]
fn promise_08_two_programs_count_together() {
    let mut victims: Vec<Victim> = (0..3).map(|_| Victim::new()).collect();
    let mut stage = Stage::new(&victims.iter().collect::<Vec<_>>());
    stage.policy.breaker.signals_per_minute = 2;
    let (mut one, mut other) = (stage.executor(), stage.executor());
    let steps: Vec<Step> = victims
        .iter()
        .map(|victim| terminate(&victim.target()))
        .collect();
    assert_eq!(one.carry_out(&steps[0], "why"), Outcome::Done);
    assert_eq!(other.carry_out(&steps[1], "why"), Outcome::Done);
    refused(
        &one.carry_out(&steps[2], "why"),
        "the breaker is open",
        true,
    );
    assert!(victims[2].runs());
}

#[test]
fn promise_08_a_cycle_that_hits_too_many_users_does_nothing() {
    let mut victim = Victim::new();
    let mut stage = Stage::new(&[&victim]);
    let users = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let (hit, all) = (users(&["a", "b", "c"]), users(&["a", "b", "c", "d", "e"]));
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let notes = executor.begin_cycle(&hit, &all);
    assert!(notes.tripped.unwrap().contains("3 of 5 users"));
    assert_eq!(
        executor.breaker().open,
        None,
        "nothing was about to be done"
    );
    executor.follow(policy());
    assert!(executor.begin_cycle(&hit, &all).tripped.is_some());
    refused(
        &executor.carry_out(&terminate(&victim.target()), "why"),
        "3 of 5 users",
        true,
    );
    assert_eq!(executor.begin_cycle(&hit, &all).tripped, None, "told once");
    assert!(victim.runs());
}

#[test]
fn a_damaged_breaker_is_an_open_one() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[&victim]);
    fs::write(stage.own.path().join("breaker.json"), "{").unwrap();
    let mut executor = stage.executor();
    assert_eq!(executor.mode(), Mode::DryRun);
    refused(
        &executor.carry_out(&terminate(&victim.target()), "why"),
        "breaker.json is damaged",
        true,
    );
    assert!(victim.runs());
}

#[test]
fn genvs_variable_keeps_everybody_alive() {
    for (value, expected) in [
        (None, true),
        (Some(""), true),
        (Some("1"), true),
        (Some("0"), false),
        (Some(" 00 "), false),
        (Some("no"), false),
    ] {
        assert_eq!(may_signal(value), expected, "{value:?}");
    }
    let mut victim = Victim::new();
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    executor.may_signal = false;
    for step in [terminate(&victim.target()), kill(&victim.target())] {
        refused(
            &executor.carry_out(&step, "why"),
            "GENV_TERMINATE_PROCESSES=0",
            true,
        );
    }
    assert!(victim.runs());
}

#[test]
fn a_step_that_is_refused_every_cycle_is_written_once() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[]);
    let mut executor = stage.executor();
    let step = terminate(&victim.target());
    for _ in 0..3 {
        refused(
            &executor.carry_out(&step, "why"),
            "does not use the device",
            true,
        );
    }
    assert_eq!(stage.results(), ["refused"]);
    stage
        .gpu_use
        .lock()
        .unwrap()
        .insert(victim.pid(), [0].into());
    assert_eq!(executor.carry_out(&step, "why"), Outcome::Done);
    assert_eq!(stage.results(), ["refused", "intended", "done"]);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn another_hosts_process_is_not_looked_for_here() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[&victim]);
    let elsewhere = ProcessTarget {
        hostname: "there".to_owned(),
        ..victim.target()
    };
    refused(
        &stage.executor().carry_out(&terminate(&elsewhere), "why"),
        "another host",
        false,
    );
    assert!(victim.runs());
}

fn attachment(stage: &Stage, uid: u32) -> AttachmentTarget {
    let mut state = StateDirectory::new(stage.genv.path());
    let state = genv_core::state::StateSource::read(&mut state).unwrap();
    let attached = state.devices[0].attachments[0]
        .attached_timestamp_seconds
        .unwrap();
    AttachmentTarget {
        hostname: "here".to_owned(),
        eid: "E".to_owned(),
        username: ProcReader::new().username(uid),
        gpu: 0,
        #[expect(clippy::cast_possible_truncation, reason = "a time of this century")]
        attached_seconds: Some(attached as i64),
        processes: Vec::new(),
    }
}

fn detach(target: &AttachmentTarget) -> Step {
    step(StepKind::Detach(target.clone()))
}

#[test]
fn detaching_takes_the_device_and_ends_the_processes_on_it() {
    let mut member = Victim::new();
    let mut victim = Victim::claiming("E");
    let stage = Stage::new(&[&victim]);
    let uid = victim.target().uid;
    stage.environment("E", uid, member.pid());
    let process = ProcessTarget {
        eid: Some("E".to_owned()),
        ..victim.target()
    };
    let target = AttachmentTarget {
        processes: vec![process],
        ..attachment(&stage, uid)
    };
    let mut dry = stage.executor();
    dry.follow(Policy {
        mode: Mode::DryRun,
        ..policy()
    });
    assert_eq!(dry.carry_out(&detach(&target), "why"), Outcome::Would);
    assert!(stage.attached());
    assert_eq!(
        stage.executor().carry_out(&detach(&target), "why"),
        Outcome::Done
    );
    assert!(!stage.attached());
    assert_eq!(victim.ended_by(), 15);
    assert!(member.runs());
    assert_eq!(
        stage.results(),
        ["would", "would", "intended", "done", "intended", "done"]
    );
}

#[test]
fn processes_that_may_stay_are_left_alone() {
    let mut victim = Victim::claiming("E");
    let stage = Stage::new(&[&victim]);
    let uid = victim.target().uid;
    stage.environment("E", uid, victim.pid());
    let outcome = stage
        .executor()
        .carry_out(&detach(&attachment(&stage, uid)), "why");
    assert_eq!(outcome, Outcome::Done);
    assert!(!stage.attached());
    assert!(victim.runs());
}

#[test]
fn what_changed_since_the_plan_is_not_detached() {
    let member = Victim::new();
    let stage = Stage::new(&[]);
    let uid = member.target().uid;
    stage.environment("E", uid, member.pid());
    let target = attachment(&stage, uid);
    let mut executor = stage.executor();
    let newer = AttachmentTarget {
        attached_seconds: target.attached_seconds.map(|seconds| seconds - 1),
        ..target.clone()
    };
    refused(
        &executor.carry_out(&detach(&newer), "why"),
        "attached to it anew",
        true,
    );
    stage.environment("E", uid + 1, member.pid());
    refused(
        &executor.carry_out(&detach(&target), "why"),
        "another user's",
        true,
    );
    stage.environment("F", uid, member.pid());
    refused(
        &executor.carry_out(&detach(&target), "why"),
        "has ended",
        true,
    );
    stage.environment("E", uid, member.pid());
    executor.policy.never.users = [format!("uid:{uid}")].into();
    refused(
        &executor.carry_out(&detach(&target), "why"),
        "listed under never",
        false,
    );
    executor.policy.never.users.clear();
    let other_device = AttachmentTarget {
        gpu: 1,
        ..target.clone()
    };
    refused(
        &executor.carry_out(&detach(&other_device), "why"),
        "not attached",
        true,
    );
    assert!(stage.attached());
    assert_eq!(executor.carry_out(&detach(&target), "why"), Outcome::Done);
}

#[test]
fn promise_08_a_device_is_not_taken_if_its_processes_would_be_too_many() {
    let member = Victim::new();
    let mut victims: Vec<Victim> = (0..3).map(|_| Victim::claiming("E")).collect();
    let mut stage = Stage::new(&victims.iter().collect::<Vec<_>>());
    stage.policy.breaker.signals_per_minute = 2;
    let uid = member.target().uid;
    stage.environment("E", uid, member.pid());
    let target = AttachmentTarget {
        processes: victims.iter().map(Victim::target).collect(),
        ..attachment(&stage, uid)
    };
    refused(
        &stage.executor().carry_out(&detach(&target), "why"),
        "the breaker is open",
        true,
    );
    assert!(stage.attached());
    assert!(victims.iter_mut().all(Victim::runs));
}

#[test]
fn promise_16_a_planted_audit_stops_everything() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[&victim]);
    let audit = stage.own.path().join("audit.jsonl");
    let elsewhere = stage.genv.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    let step = terminate(&victim.target());
    let plants: [&dyn Fn(); 3] = [
        &|| std::os::unix::fs::symlink(&elsewhere, &audit).unwrap(),
        &|| fs::hard_link(&elsewhere, &audit).unwrap(),
        &|| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &audit, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        },
    ];
    for plant in plants {
        plant();
        refused(
            &stage.executor().carry_out(&step, "why"),
            "find out who put it there",
            true,
        );
        fs::remove_file(&audit).unwrap();
    }
    assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
    assert!(victim.runs());
}

#[test]
fn an_audit_that_was_rotated_is_begun_anew() {
    let victim = Victim::new();
    let mut stage = Stage::new(&[&victim]);
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let step = terminate(&victim.target());
    let path = |name: &str| stage.own.path().join(name);
    executor.carry_out(&step, "why");
    fs::rename(path("audit.jsonl"), path("audit.jsonl.1")).unwrap();
    executor.carry_out(&step, "why");
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    assert_eq!(lines(&path("audit.jsonl")), 1);
    assert_eq!(lines(&path("audit.jsonl.1")), 1);
    let mode = fs::metadata(path("audit.jsonl")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o7777, 0o640);
}

#[test]
fn promise_15_a_line_that_a_crash_tore_spoils_no_other() {
    let victim = Victim::new();
    let mut stage = Stage::new(&[&victim]);
    stage.policy.mode = Mode::DryRun;
    fs::write(stage.own.path().join("audit.jsonl"), "{\"time\": \"20").unwrap();
    stage
        .executor()
        .carry_out(&terminate(&victim.target()), "why");
    let text = fs::read_to_string(stage.own.path().join("audit.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        serde_json::from_str::<Value>(lines[1]).unwrap()["result"],
        "would"
    );
}

#[test]
fn hostile_names_are_one_line_of_harmless_text() {
    let hostile = "a\n{\"result\":\"done\"}\u{1b}[2J\u{9b}31m\u{202e}\"\\\u{7f}";
    let victim = Victim::new();
    let stage = Stage::new(&[]);
    let target = ProcessTarget {
        comm: Some(hostile.to_owned()),
        eid: Some(hostile.to_owned()),
        ..victim.target()
    };
    stage.executor().carry_out(&terminate(&target), hostile);
    let text = fs::read_to_string(stage.own.path().join("audit.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 1);
    let printable = |byte: u8| matches!(byte, b' '..=b'~' | b'\n');
    assert!(text.bytes().all(printable), "{text:?}");
    let line = &stage.audit()[0];
    for field in ["comm", "eid", "why"] {
        assert_eq!(line[field], hostile);
    }
}
