//! Who gets devices now, who waits, and who is refused.

use super::*;
use crate::outside::OutsideUse;

/// Two devices, held by Alice's environment `a`, and one free device.
fn busy() -> Lab {
    let mut lab = Lab::new(&[16, 16, 16]);
    lab.ask(ALICE, 1, &with(enter("a", 1), |wish| wish.count = Some(2))).unwrap();
    lab
}

/// The same, and Bob's process 2 waits for all devices.
fn with_queue() -> Lab {
    let mut lab = busy();
    assert_eq!(ahead(lab.ask(BOB, 2, &waiting("b", 2, 3))), 0);
    lab
}

fn added(asked: Result<Reply, Refusal>) -> Vec<u32> {
    match asked {
        Ok(Reply::Entered(_, attached) | Reply::Attached(attached)) => attached.added,
        other => panic!("{other:?}"),
    }
}

fn ahead(asked: Result<Reply, Refusal>) -> usize {
    match asked {
        Ok(Reply::Waits { ahead, .. }) => ahead,
        other => panic!("{other:?}"),
    }
}

fn count(eid: &str, pid: u32, count: u32) -> Request {
    with(enter(eid, pid), |wish| wish.count = Some(count))
}

fn waiting(eid: &str, pid: u32, count: u32) -> Request {
    with(enter(eid, pid), |wish| (wish.count, wish.wait) = (Some(count), true))
}

fn attach(eid: &str, wish: Wish) -> Request {
    Request::Attach { eid: eid.to_owned(), permission: Permission::Owner, wish }
}

#[test]
fn a_new_environment_takes_the_values_of_its_folder_and_a_joined_one_keeps_its_own() {
    let mut lab = Lab::new(&[16, 16]);
    let memory = |gibibytes: u64| Some(MemoryAmount::mebibytes(gibibytes << 10));
    let local = Configuration { name: Some("folder".to_owned()), gpus: Some(1), gpu_memory: memory(4) };
    let of_folder = |pid, name: Option<&str>| {
        Request::Enter(Box::new(Enter {
            eid: "e".to_owned(),
            member: pid,
            name: name.map(str::to_owned),
            local: local.clone(),
            local_lease: Some(Duration::from_secs(60)),
            attach: true,
            ..Enter::default()
        }))
    };
    let entered = lab.ask(ALICE, 7, &of_folder(7, Some("flag"))).unwrap();
    assert!(matches!(entered, Reply::Entered(Activation::Created, attached) if attached.added == [0]));
    let own = lab.state.configuration("e").unwrap();
    assert_eq!((own.name.as_deref(), own.gpus, own.gpu_memory), (Some("flag"), Some(1), memory(4)));
    assert_eq!(lab.state.lease_end("e"), Some(1060.0));
    lab.now_seconds = 1010.0;
    lab.ask(ALICE, 7, &of_folder(8, None)).unwrap();
    assert_eq!(lab.state.configuration("e").unwrap(), own);
    assert_eq!((lab.state.lease_end("e"), lab.state.attached("e")), (Some(1060.0), vec![0]));
    assert_eq!(added(lab.ask(ALICE, 8, &count("e", 8, 2))), [1]);
    // The number of named devices is the configured number of a new environment alone.
    lab.ask(ALICE, 9, &with(enter("f", 9), |wish| (wish.indices, wish.over_subscribe) = ([0, 1].into(), true)))
        .unwrap();
    assert_eq!(lab.state.configuration("f").unwrap().gpus, Some(2));
}

#[test]
fn a_kind_without_a_number_asks_for_one_device_or_as_many_as_are_held() {
    let mut lab = Lab::new(&[8, 16, 16, 16]);
    let kind = |gibibytes: u64| DeviceKind {
        memory_at_least: Some(MemoryAmount::mebibytes(gibibytes << 10)),
        ..DeviceKind::default()
    };
    let new = Enter { eid: "e".to_owned(), member: 7, attach: true, kind_if_new: kind(16), ..Enter::default() };
    assert_eq!(added(lab.ask(ALICE, 7, &Request::Enter(Box::new(new)))), [1]);
    assert_eq!(lab.state.configuration("e").unwrap().gpus, Some(1));
    let wish = Wish { kind: kind(8), count: Some(2), ..Wish::default() };
    lab.ask(ALICE, 7, &attach("e", wish)).unwrap();
    lab.ask(
        ALICE,
        7,
        &Request::Enter(Box::new(Enter { eid: "f".to_owned(), member: 8, attach: true, ..Enter::default() })),
    )
    .unwrap();
    let held = |lab: &mut Lab| added(lab.ask(ALICE, 8, &attach("f", Wish { kind: kind(16), ..Wish::default() }))).len();
    assert_eq!((held(&mut lab), held(&mut lab)), (1, 0));
}

#[test]
fn without_a_number_nothing_is_attached_and_the_driver_is_not_asked() {
    let mut lab = busy();
    lab.facts = Facts::default();
    let entered = lab.ask(BOB, 2, &enter("b", 2)).unwrap();
    assert_eq!(entered, Reply::Entered(Activation::Created, Attached::default()));
    assert_eq!(lab.ask(BOB, 2, &attach("b", Wish::default())), Ok(Reply::NothingConfigured));
    // An environment with devices is joined without a request.
    assert!(matches!(lab.ask(ALICE, 3, &enter("a", 3)), Ok(Reply::Entered(Activation::Joined, _))));
    // The driver is asked before devices are given or refused, and only then.
    let before = lab.state.clone();
    assert_eq!(lab.ask(BOB, 2, &count("b", 2, 1)), Ok(Reply::FactsNeeded));
    assert_eq!(lab.ask(BOB, 2, &waiting("b", 2, 9)), Ok(Reply::FactsNeeded));
    assert_eq!(EditableState { uid: before.uid, ..lab.state.clone() }, before);
}

#[test]
fn attaching_again_applies_the_configured_memory() {
    let mut lab = Lab::new(&[16, 16]);
    lab.ask(ALICE, 7, &count("e", 7, 2)).unwrap();
    let memory = Some(MemoryAmount::mebibytes(5));
    let change = ConfigurationChange { gpu_memory: Some(memory), gpus: Some(Some(1)), ..Default::default() };
    lab.ask(ALICE, 7, &Request::Configure { eid: "e".to_owned(), permission: Permission::Owner, change }).unwrap();
    let amounts = |lab: &Lab| -> Vec<Vec<Option<MemoryAmount>>> {
        let devices = lab.state.devices().iter();
        devices.map(|it| it.attachments.iter().map(|it| it.gpu_memory).collect()).collect()
    };
    assert_eq!(amounts(&lab), [[None], [None]]);
    lab.ask(ALICE, 7, &attach("e", Wish { indices: [1].into(), ..Wish::default() })).unwrap();
    assert_eq!(amounts(&lab), [[None], [memory]]);
    assert_eq!(added(lab.ask(ALICE, 7, &attach("e", Wish::default()))), Vec::<u32>::new());
    assert_eq!(amounts(&lab), [vec![memory], vec![]], "the surplus device is given up");
}

#[test]
fn who_gets_no_devices_is_refused_or_waits_in_order_of_arrival() {
    let mut lab = busy();
    let refusal = lab.ask(BOB, 2, &count("b", 2, 2)).unwrap_err();
    assert!(matches!(refusal, Refusal::Devices { may_become_free: true, .. }) && refusal.is_temporary());
    assert_eq!(
        refusal.to_string(),
        "cannot attach 2 devices: 1 of 3 can be had, and one environment holds the others. 'genv devices' tells who, \
         '--wait' waits"
    );
    let hopeless = lab.ask(BOB, 2, &waiting("b", 2, 4)).unwrap_err();
    assert!(matches!(hopeless, Refusal::Devices { may_become_free: false, .. }) && !hopeless.is_temporary());
    let absent = with(waiting("b", 2, 0), |wish| (wish.count, wish.indices) = (None, [9].into()));
    let model = DeviceKind { types: vec!["a100".to_owned()], ..DeviceKind::default() };
    let unlike = Request::Enter(Box::new(Enter {
        eid: "b".to_owned(),
        member: 2,
        attach: true,
        kind_if_new: model,
        ..Enter::default()
    }));
    for hopeless in [absent, with(unlike, |wish| wish.wait = true)] {
        assert!(!lab.ask(BOB, 2, &hopeless).unwrap_err().is_temporary());
    }
    assert_eq!((lab.state.queue().len(), lab.state.environment("b")), (0, None));
    assert_eq!(ahead(lab.ask(BOB, 2, &waiting("b", 2, 2))), 0);
    assert_eq!(ahead(lab.ask(CAROL, 3, &waiting("c", 3, 3))), 1);
    assert_eq!(lab.state.queue()[0].request.as_ref().unwrap().gpus, Some(2));
    assert_eq!(ahead(lab.ask(BOB, 2, &waiting("b", 2, 3))), 0, "the place is kept");
    assert_eq!(lab.state.queue()[0].request.as_ref().unwrap().gpus, Some(3));
    assert_eq!(lab.state.environment("b"), None);
    lab.ask(ALICE, 1, &leave("a", 1, false)).unwrap();
    assert_eq!(ahead(lab.ask(CAROL, 3, &waiting("c", 3, 3))), 1, "the first one has to come first");
    assert_eq!(added(lab.ask(BOB, 2, &waiting("b", 2, 3))), [0, 1, 2]);
    assert_eq!(lab.state.queue().iter().map(|it| it.pid).collect::<Vec<_>>(), [3]);
    lab.ask(CAROL, 3, &Request::Withdraw).unwrap();
    assert_eq!(lab.state.queue(), []);
}

#[test]
fn a_process_passes_those_that_it_does_not_delay() {
    let passed = |asked: Result<Reply, Refusal>| match asked {
        Ok(Reply::Entered(_, attached)) => Ok((attached.added, attached.passed.len())),
        Err(refusal) => Err(refusal.is_temporary() && matches!(refusal, Refusal::OthersWait(_))),
        other => panic!("{other:?}"),
    };
    let mut lab = with_queue();
    assert_eq!(passed(lab.ask(CAROL, 3, &count("c", 3, 1))), Err(true));
    assert_eq!(lab.state.environment("c"), None);
    let by_force = with(enter("c", 3), |wish| (wish.count, wish.pass_queue) = (Some(1), true));
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &by_force)), Ok((vec![2], 1)));
    let shared = with(enter("c", 3), |wish| (wish.count, wish.over_subscribe) = (Some(2), true));
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &shared)), Ok((vec![0, 2], 0)));
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &count("c", 3, 0))), Ok((vec![], 0)));
    // With an end of its lease before those of the devices that the first waits for.
    lab.ask(ALICE, 1, &Request::Extend { eid: "a".to_owned(), more: Duration::from_secs(600) }).unwrap();
    let leased = |seconds| match count("c", 3, 1) {
        Request::Enter(enter) => {
            Request::Enter(Box::new(Enter { lease: Some(Duration::from_secs(seconds)), ..*enter }))
        }
        other => other,
    };
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &leased(601))), Err(true));
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &leased(600))), Ok((vec![2], 1)));
    // One that waits already passes, too.
    let and_waits = |seconds| with(leased(seconds), |wish| wish.wait = true);
    assert_eq!(ahead(lab.ask(CAROL, 3, &and_waits(601))), 1);
    assert_eq!(passed(lab.clone().ask(CAROL, 3, &and_waits(600))), Ok((vec![2], 1)));
    // The driver is asked before devices are given or refused for good, and not before a process waits behind others.
    lab.facts = Facts::default();
    for request in [leased(600), leased(601), waiting("c", 3, 4)] {
        assert_eq!(lab.ask(CAROL, 3, &request), Ok(Reply::FactsNeeded));
    }
    assert_eq!(ahead(lab.ask(CAROL, 3, &and_waits(601))), 1);
}

#[test]
fn who_gets_devices_or_waits_brings_the_list_of_the_machines_devices() {
    let mut lab = Lab::new(&[]);
    lab.state.devices_known = false;
    lab.facts.inventory = Some(Inventory::new([(0, Some(16 << 10)), (1, Some(16 << 10))]));
    let listed = |lab: &Lab| (lab.state.devices().len(), lab.state.devices_known);
    let mut waits = lab.clone();
    waits.state.queue.push(with_queue().state.queue.remove(0));
    assert_eq!(ahead(waits.ask(CAROL, 3, &waiting("c", 3, 1))), 1);
    assert_eq!(listed(&waits), (2, true));
    lab.ask(BOB, 2, &count("b", 2, 3)).unwrap_err();
    assert_eq!(listed(&lab), (0, false));
    assert_eq!(added(lab.ask(BOB, 2, &count("b", 2, 1))), [0]);
    assert_eq!(listed(&lab), (2, true));
}

#[test]
fn the_queue_is_first_come_first_served() {
    let mut lab = busy();
    for pid in 100..110 {
        lab.ask(BOB, pid, &waiting("b", pid, 3)).unwrap();
    }
    let pids = |lab: &Lab| -> Vec<u32> { lab.state.queue().iter().map(|it| it.pid).collect() };
    assert_eq!(pids(&lab), (100..108).collect::<Vec<_>>(), "a user has a limited number of places");
    assert_eq!(ahead(lab.ask(BOB, 109, &waiting("b", 109, 3))), MOST_OF_ONE_USER);
    assert_eq!(ahead(lab.ask(CAROL, 3, &waiting("c", 3, 3))), MOST_OF_ONE_USER);
    lab.ask(BOB, 100, &Request::Withdraw).unwrap();
    lab.ask(BOB, 109, &waiting("b", 109, 3)).unwrap();
    assert_eq!(pids(&lab), [101, 102, 103, 104, 105, 106, 107, 3, 109]);
}

#[test]
fn old_facts_do_not_tell_unused_devices_and_keep_the_rest() {
    let chosen = |age_seconds: f64, force: bool, usage: DeviceUsage| {
        let mut lab = Lab::new(&[16, 16, 16]);
        lab.facts = Facts { usage, taken_seconds: Some(lab.now_seconds - age_seconds), ..Facts::default() };
        let asked = lab.ask(ALICE, 7, &with(enter("e", 7), |wish| (wish.count, wish.force) = (Some(1), force)));
        asked.map(|it| added(Ok(it)))
    };
    let set = |indices: &[u32]| indices.iter().copied().collect::<BTreeSet<u32>>();
    let unknown = || DeviceUsage { unknown: set(&[0]), ..DeviceUsage::default() };
    let busy = || DeviceUsage { busy: set(&[0]), unknown: set(&[1]), ..DeviceUsage::default() };
    for (age_seconds, by_unknown, by_busy) in [(0.0, 1, 2), (2.0, 1, 2), (2.1, 0, 1), (-0.1, 0, 1)] {
        assert_eq!(chosen(age_seconds, false, unknown()), Ok(vec![by_unknown]), "{age_seconds}");
        assert_eq!(chosen(age_seconds, false, busy()), Ok(vec![by_busy]), "{age_seconds}");
    }
    let outside = || DeviceUsage {
        outside: [0, 1].map(|gpu| (gpu, vec![OutsideUse { gpu, ..OutsideUse::default() }])).into(),
        mig_unsplit: set(&[2]),
        ..DeviceUsage::default()
    };
    for age_seconds in [0.0, 9.0] {
        let refusal = chosen(age_seconds, false, outside()).unwrap_err();
        assert!(matches!(refusal, Refusal::Devices { may_become_free: true, .. }), "{refusal}");
        assert_eq!(chosen(age_seconds, true, outside()), Ok(vec![0]));
        let lost = DeviceUsage { lost: set(&[0, 1]), ..outside() };
        let refusal = chosen(age_seconds, true, lost).unwrap_err();
        assert!(matches!(refusal, Refusal::Devices { may_become_free: false, .. }), "{refusal}");
    }
}
