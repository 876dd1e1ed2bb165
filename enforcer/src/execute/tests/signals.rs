use super::*;

#[test]
fn sigterm_then_sigkill_through_the_same_descriptor() {
    let mut victim =
        Victim::of(Command::new("sh").args(["-c", "trap '' TERM; while :; do sleep 0.01; done"]), &[("A", "1")]);
    let target = victim.target();
    // Until it ignores SIGTERM.
    let status = format!("/proc/{}/status", victim.pid());
    until("it ignores SIGTERM", || {
        let status = fs::read_to_string(&status).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 14) != 0
    });
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    assert_eq!(executor.execute(&terminate(&target), "why"), Outcome::Done);
    // Once is enough, whichever rule asks.
    assert_eq!(executor.execute(&terminate(&target), "why"), Outcome::Done);
    assert!(victim.runs());
    assert_eq!(executor.execute(&kill(&target), "why"), Outcome::Done);
    assert_eq!(victim.ended_by(), 9);
    let sent: Vec<Value> = stage.audit();
    let sent = sent.iter().filter(|line| line["result"] == "intended");
    let sent: Vec<&Value> = sent.map(|line| &line["action"]).collect();
    assert_eq!(sent, ["SIGTERM", "SIGKILL"]);
    refused(&mut executor, &kill(&target), "killed already", false);
    assert_eq!(executor.begin_cycle(&BTreeSet::new(), &BTreeSet::new()), CycleNotes::default());
    refused(&mut executor, &kill(&target), "it ended by itself", false);
}

#[test]
fn sigterm_ends_a_stopped_process() {
    let mut victim = Victim::new();
    let pid = rustix::process::Pid::from_raw(victim.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let status = format!("/proc/{}/status", victim.pid());
    until("it is stopped", || {
        let status = fs::read_to_string(&status).unwrap();
        status.contains("State:\tT")
    });
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    let sent = executor.execute(&terminate(&victim.target()), "why");
    assert_eq!(sent, Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
    assert_eq!(stage.audit().len(), 2, "{:?}", stage.audit());
}

#[test]
fn promise_05_dry_run_verifies_the_same_and_does_nothing() {
    let (mut victim, mut stage) = Stage::of_victim();
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let target = victim.target();
    assert_eq!(executor.execute(&terminate(&target), "why"), Outcome::Would);
    assert_eq!(executor.execute(&kill(&target), "why"), Outcome::Would);
    let reused = ProcessTarget { start_time_ticks: 1, ..target };
    refused(&mut executor, &terminate(&reused), "another process", false);
    assert!(victim.runs());
    assert_eq!(stage.results(), ["would", "would", "refused"]);
    assert_eq!(stage.audit()[0]["mode"], "dry-run");
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
    let (mut victim, stage) = Stage::of_victim();
    let mut executor = stage.executor();
    executor.may_signal = false;
    for step in [terminate(&victim.target()), kill(&victim.target())] {
        refused(&mut executor, &step, "GENV_TERMINATE_PROCESSES=0", true);
    }
    assert!(victim.runs());
}

fn with_denied<const N: usize>(stage: &Stage, call: i64, errno: rustix::io::Errno, steps: [Step; N]) -> [Outcome; N] {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
    let architecture: TargetArch = std::env::consts::ARCH.try_into().unwrap();
    let denied = SeccompAction::Errno(errno.raw_os_error().cast_unsigned());
    let filter = SeccompFilter::new([(call, Vec::new())].into(), SeccompAction::Allow, denied, architecture);
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            apply_filter(&program).unwrap();
            let mut executor = stage.executor();
            steps.map(|step| executor.execute(&step, "why"))
        });
        filtered.join().unwrap()
    })
}

#[track_caller]
fn failed(outcome: &Outcome, part: &str) {
    assert!(matches!(outcome, Outcome::Failed { reason } if reason.contains(part)), "{outcome:?}");
}

#[test]
fn promise_02_no_pidfd_no_signal() {
    for errno in [rustix::io::Errno::PERM, rustix::io::Errno::NOSYS] {
        let mut victim = Victim::new();
        let stage = Stage::new(&[&victim]);
        let target = victim.target();
        for outcome in with_denied(&stage, libc::SYS_pidfd_open, errno, [terminate(&target), kill(&target)]) {
            failed(&outcome, "pidfd_open");
        }
        assert!(victim.runs());
        assert_eq!(stage.results(), ["failed"; 2]);
        // Without the filter it would have been ended.
        assert_eq!(stage.executor().execute(&terminate(&target), "why"), Outcome::Done);
        assert_eq!(victim.ended_by(), 15);
    }
}

#[test]
fn who_may_not_signal_fails_once_and_says_so() {
    let (mut victim, stage) = Stage::of_victim();
    let step = terminate(&victim.target());
    let [outcome] = with_denied(&stage, libc::SYS_pidfd_send_signal, rustix::io::Errno::PERM, [step]);
    failed(&outcome, "may not be signalled");
    assert!(victim.runs());
    assert_eq!(stage.results(), ["intended", "failed"]);
}
