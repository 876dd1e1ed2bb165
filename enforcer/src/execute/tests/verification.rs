use super::*;

#[test]
fn promise_01_another_start_time_is_another_process() {
    let (mut victim, stage) = Stage::of_victim();
    let target = victim.target();
    let earlier = ProcessTarget { start_time_ticks: target.start_time_ticks - 1, ..target };
    refused(&mut stage.executor(), &terminate(&earlier), "another process", false);
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
    refused(&mut executor, &terminate(&target), "it ended by itself", false);
    assert_eq!(stage.results(), ["refused"]);
}

#[test]
fn who_uses_no_gpu_any_more_is_left_alone() {
    let mut victim = Victim::new();
    let stage = Stage::new(&[]);
    let mut executor = stage.executor();
    let target = victim.target();
    refused(&mut executor, &terminate(&target), "does not use the device", true);
    // On another device than the one that the violation is about, too.
    stage.gpu_use.lock().unwrap().insert(victim.pid(), [1].into());
    let mut about_device = terminate(&target);
    about_device.key.subject = Subject::UserDevice {
        username: "somebody".to_owned(),
        hostname: "here".to_owned(),
        index: DeviceIndex::gpu(0),
    };
    refused(&mut executor, &about_device, "does not use the device", true);
    assert!(victim.runs());
    stage.gpu_use.lock().unwrap().insert(victim.pid(), [0].into());
    assert_eq!(executor.execute(&about_device, "why"), Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn promise_03_unknown_never_acts() {
    let mut victim = Victim::spawn(Command::new("/bin/sleep").env_clear().arg("1000000"));
    let comm = format!("/proc/{}/comm", victim.pid());
    until("it runs sleep", || fs::read_to_string(&comm).unwrap() == "sleep\n");
    let stage = Stage::new(&[&victim]);
    let mut executor = stage.executor();
    refused(&mut executor, &terminate(&victim.target()), "environ_empty", true);

    // Who uses GPUs, or which environments there are, may be unknown as well.
    let mut known = Victim::new();
    let target = known.target();
    let mut blind = stage.asking(Box::new(|| Err("the driver hangs".to_owned())));
    refused(&mut blind, &terminate(&target), "the driver hangs", true);
    stage.gpu_use.lock().unwrap().insert(known.pid(), [0].into());
    fs::write(stage.genv.path().join("state.json"), "{").unwrap();
    refused(&mut executor, &terminate(&target), "state.json", true);
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
    refused(&mut executor, &terminate(&outside), "not in the same environment", true);
    let inside = victim.inside();
    let another = ProcessTarget { eid: Some("F".to_owned()), ..inside.clone() };
    refused(&mut executor, &terminate(&another), "not in the same environment", true);
    let other_user = ProcessTarget { uid: uid + 1, ..inside.clone() };
    refused(&mut executor, &terminate(&other_user), "another user", true);
    assert!(victim.runs());
    assert_eq!(executor.execute(&terminate(&inside), "why"), Outcome::Done);
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
    let forged = forger.inside();
    refused(&mut executor, &terminate(&forged), "not in the same environment", true);
    assert_eq!(executor.execute(&terminate(&forger.target()), "why"), Outcome::Done);
    assert_eq!(forger.ended_by(), 15);
    assert!(victim.runs());
}

#[test]
fn another_hosts_process_is_not_looked_for_here() {
    let (mut victim, stage) = Stage::of_victim();
    let elsewhere = ProcessTarget { hostname: "there".to_owned(), ..victim.target() };
    refused(&mut stage.executor(), &terminate(&elsewhere), "another host", false);
    assert!(victim.runs());
}
