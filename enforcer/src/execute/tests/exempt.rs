use super::*;

#[test]
fn promise_06_what_is_never_ended_is_not() {
    let mut victim = Victim::new();
    let target = victim.target();
    let mut stage = Stage::new(&[&victim]);
    let own = std::process::id();
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get().cast_unsigned();
    for pid in [1, own, parent] {
        stage.gpu_use.lock().unwrap().insert(pid, [0].into());
    }
    let attempt = |stage: &Stage, target: &ProcessTarget, part: &str| {
        for step in [terminate(target), kill(target)] {
            refused(&mut stage.executor(), &step, part, false);
        }
    };
    for (pid, part) in [(1, "pid 1"), (own, "it is the enforcer"), (parent, of_parent())] {
        attempt(&stage, &process(pid), part);
    }
    for name in [target.username.clone(), format!("uid:{}", target.uid)] {
        stage.policy.never.users = [name].into();
        attempt(&stage, &target, "listed under never");
    }
    stage.policy.never.users.clear();
    stage.policy.never.executables = [PathBuf::from("/bin/sleep")].into();
    assert!(victim.runs());
    // Its user chose what it loads.
    let outcome = stage.executor().execute(&terminate(&target), "why");
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
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
    let outcome = stage.executor().execute(&terminate(&victim.target()), "why");
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
}
