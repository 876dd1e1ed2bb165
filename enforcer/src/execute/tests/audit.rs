use super::*;

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
    let stage = Stage { own: folder, ..Stage::new(&[&victim]) };
    let outcome = stage.executor().execute(&terminate(&victim.target()), "why");
    assert_eq!(outcome, Outcome::Done);
    until("it ends", || !victim.runs());
    let seen: Value = serde_json::from_str(fs::read_to_string(seen).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(seen["result"], "intended");
    assert_eq!(seen["pid"], victim.pid());
    let lines = stage.audit();
    assert_eq!(lines[0], seen);
    assert_eq!(lines[1]["result"], "done");
    assert_eq!(lines[0]["id"], lines[1]["id"]);
    assert_eq!(lines.len(), 2);
}

#[test]
fn a_step_that_is_refused_every_cycle_is_written_once() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[]);
    let mut executor = stage.executor();
    let step = terminate(&victim.target());
    for _ in 0..3 {
        refused(&mut executor, &step, "does not use the device", true);
    }
    assert_eq!(stage.results(), ["refused"]);
    stage.gpu_use.lock().unwrap().insert(victim.pid(), [0].into());
    assert_eq!(executor.execute(&step, "why"), Outcome::Done);
    assert_eq!(stage.results(), ["refused", "intended", "done"]);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn promise_16_a_planted_audit_stops_everything() {
    let (mut victim, stage) = Stage::of_victim();
    let audit = stage.own.path().join("audit.jsonl");
    let elsewhere = stage.genv.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    let step = terminate(&victim.target());
    let plants: [&dyn Fn(); 3] = [
        &|| std::os::unix::fs::symlink(&elsewhere, &audit).unwrap(),
        &|| fs::hard_link(&elsewhere, &audit).unwrap(),
        &|| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &audit, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        },
    ];
    for plant in plants {
        plant();
        refused(&mut stage.executor(), &step, "find out who put it there", true);
        fs::remove_file(&audit).unwrap();
    }
    assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
    assert!(victim.runs());
}

#[test]
fn an_audit_that_was_rotated_is_begun_anew() {
    let (victim, mut stage) = Stage::of_victim();
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let step = terminate(&victim.target());
    let path = |name: &str| stage.own.path().join(name);
    executor.execute(&step, "why");
    fs::rename(path("audit.jsonl"), path("audit.jsonl.1")).unwrap();
    executor.execute(&step, "why");
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    assert_eq!(lines(&path("audit.jsonl")), 1);
    assert_eq!(lines(&path("audit.jsonl.1")), 1);
    let mode = fs::metadata(path("audit.jsonl")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o7777, 0o640);
}

#[test]
fn hostile_names_are_one_line_of_harmless_text() {
    let hostile = "a\n{\"result\":\"done\"}\u{1b}[2J\u{9b}31m\u{202e}\"\\\u{7f}";
    let victim = Victim::new();
    let stage = Stage::new(&[]);
    let target = ProcessTarget { comm: Some(hostile.to_owned()), eid: Some(hostile.to_owned()), ..victim.target() };
    stage.executor().execute(&terminate(&target), hostile);
    let text = fs::read_to_string(stage.own.path().join("audit.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 1);
    let printable = |byte: u8| matches!(byte, b' '..=b'~' | b'\n');
    assert!(text.bytes().all(printable), "{text:?}");
    let line = &stage.audit()[0];
    for field in ["comm", "eid", "why"] {
        assert_eq!(line[field], hostile);
    }
}
