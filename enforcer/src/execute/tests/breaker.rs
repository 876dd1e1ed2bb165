use super::*;

#[test]
fn promise_08_signals_are_paced_and_none_is_forgotten() {
    let mut victims: Vec<Victim> = (0..4).map(|_| Victim::new()).collect();
    let mut stage = Stage::new(&victims.iter().collect::<Vec<_>>());
    stage.policy.breaker.signals_per_minute = 2;
    let steps: Vec<Step> = victims.iter().map(|victim| terminate(&victim.target())).collect();
    let nobody = BTreeSet::new();
    let now = Arc::new(Mutex::new(1000.0));
    let mut executor = stage.executor().clock(clock(&now));
    executor.begin_cycle(&nobody, &nobody);
    assert_eq!(executor.execute(&steps[0], "why"), Outcome::Done);
    refused(&mut executor, &steps[1], "paced", true);
    executor.begin_cycle(&nobody, &nobody);
    assert_eq!(executor.execute(&steps[1], "why"), Outcome::Done);
    executor.begin_cycle(&nobody, &nobody);
    refused(&mut executor, &steps[2], "paced", true);
    assert!(executor.acts());
    // A restart does not begin a new minute.
    let mut other = stage.executor().clock(clock(&now));
    refused(&mut other, &steps[3], "paced", true);
    assert!(victims[2].runs() && victims[3].runs());
    *now.lock().unwrap() = 1060.0;
    executor.begin_cycle(&nobody, &nobody);
    assert_eq!(executor.execute(&steps[2], "why"), Outcome::Done);
    executor.begin_cycle(&nobody, &nobody);
    assert_eq!(executor.execute(&steps[3], "why"), Outcome::Done);
    for victim in &mut victims {
        assert_eq!(victim.ended_by(), 15);
    }
    let refused = stage.results().into_iter().filter(|it| it == "refused");
    assert_eq!(refused.count(), 3, "each program writes a refusal once");
}

#[test]
fn promise_08_a_cycle_that_hits_too_many_users_does_nothing() {
    let (mut victim, mut stage) = Stage::of_victim();
    let users = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let (hit, all) = (users(&["a", "b", "c"]), users(&["a", "b", "c", "d", "e"]));
    stage.policy.mode = Mode::DryRun;
    let mut executor = stage.executor();
    let notes = executor.begin_cycle(&hit, &all);
    assert!(notes.tripped.unwrap().contains("3 of 5 users"));
    assert_eq!(executor.breaker().open, None, "nothing was about to be done");
    executor.follow(policy());
    assert!(executor.begin_cycle(&hit, &all).tripped.is_some());
    refused(&mut executor, &terminate(&victim.target()), "3 of 5 users", true);
    assert_eq!(executor.begin_cycle(&hit, &all).tripped, None, "told once");
    assert!(victim.runs());
    // Neither time nor a restart closes it.
    stage.policy.mode = Mode::Enforce;
    let mut later = stage.executor().clock(|| 1e12);
    assert!(!later.acts());
    assert_eq!(later.mode(), Mode::Enforce);
    let step = terminate(&victim.target());
    refused(&mut later, &step, "the breaker is open", true);
    let directory = RuntimeDirectory::open(stage.own.path()).unwrap();
    let open = reset_breaker(&directory).unwrap().unwrap();
    assert!(open.why.ends_with("more than 0.5 of them: a, b, c"), "{open:?}");
    assert_eq!(reset_breaker(&directory).unwrap(), None);
    // Also the other program sees that it was reset.
    assert_eq!(executor.execute(&step, "why"), Outcome::Done);
    assert_eq!(victim.ended_by(), 15);
}

#[test]
fn a_host_that_is_asked_does_not_judge_again_whether_a_plan_grew() {
    let stage = Stage::new(&[]);
    let users = |count: usize| (0..count).map(|user| format!("user{user}")).collect();
    let (hit, all) = (users(40), users(200));
    let mut asked = stage.executor().requested_by("monitor".to_owned()).unwrap();
    assert_eq!(asked.begin_cycle(&hit, &all).tripped, None);
    assert!(asked.acts());
    // Its own configuration still says how many of its users are too many.
    let most = users(150);
    assert!(asked.begin_cycle(&most, &all).tripped.is_some());
    let other = Stage::new(&[]);
    let tripped = other.executor().begin_cycle(&hit, &all).tripped;
    assert!(tripped.unwrap().contains("40 ends fall due at once"));
}
