//! Who may ask for what, and what the simple requests do.

use super::*;

/// An environment of Alice with a device.
fn of_alice() -> Lab {
    let mut lab = Lab::new(&[16, 16]);
    lab.ask(ALICE, 7, &with(enter("listed", 7), |wish| wish.count = Some(1))).unwrap();
    lab
}

fn outcome(asked: &Result<Reply, Refusal>) -> &'static str {
    match asked {
        Ok(_) => "ok",
        Err(Refusal::NoSuchEnvironment { .. }) => "missing",
        Err(Refusal::NotOwner { .. }) => "not owner",
        Err(Refusal::NotOwnerOrRoot { .. }) => "not root",
        Err(_) => "other",
    }
}

type Ask<'a> = &'a dyn Fn(&str) -> Request;

#[test]
fn only_the_user_of_an_environment_and_for_some_requests_root_may_change_it() {
    let detach = |permission| move |eid: &str| Request::Detach { eid: eid.to_owned(), permission, indices: Vec::new() };
    let configure = |permission| {
        let change = ConfigurationChange::default();
        move |eid: &str| Request::Configure { eid: eid.to_owned(), permission, change: change.clone() }
    };
    let attach =
        |permission| move |eid: &str| Request::Attach { eid: eid.to_owned(), permission, wish: Wish::default() };
    let join = |founder: fn() -> Option<Founder>| {
        move |eid: &str| Request::Join { eid: eid.to_owned(), member: MemberId::Process(9), founder: founder() }
    };
    let extend = |eid: &str| Request::Extend { eid: eid.to_owned(), more: Duration::from_secs(1) };
    let hand_over = |eid: &str| Request::HandOver { eid: eid.to_owned(), from: 7, to: 9 };
    let leave = |eid: &str| leave(eid, 7, true);
    let enter = |eid: &str| enter(eid, 9);
    let for_owner = "ok, not owner, not owner; missing";
    let for_root = "ok, not root, ok; ok";
    let for_root_of_listed = "ok, not root, ok; missing";
    let to_enter = "ok, not owner, not owner; ok";
    let detach_seen = |eid: &str| {
        Request::DetachSeen(SeenAttachment { eid: eid.to_owned(), uid: ALICE, index: 9, attached_seconds: None })
    };
    let changed_for_root = "other, not root, other; other";
    let (owner, root) = (Permission::Owner, Permission::OwnerOrRoot);
    let cases: [(&str, Ask<'_>, &str); 12] = [
        ("detach seen", &detach_seen, changed_for_root),
        ("detach", &detach(owner), for_owner),
        ("configure", &configure(owner), for_owner),
        ("attach", &attach(owner), for_owner),
        ("extend", &extend, for_owner),
        ("join", &join(|| None), for_owner),
        ("devices detach", &detach(root), for_root),
        ("leave", &leave, for_root),
        ("envs config", &configure(root), for_root_of_listed),
        ("devices attach", &attach(root), for_root_of_listed),
        ("enter", &enter, to_enter),
        ("hand over", &hand_over, to_enter),
    ];
    for (name, request, expected) in cases {
        let each = |eid: &'static str, users: &[u32]| {
            let asked = users.iter().map(|uid| outcome(&of_alice().ask(*uid, 50, &request(eid))));
            asked.collect::<Vec<_>>().join(", ")
        };
        let users = [ALICE, BOB, ROOT];
        let found = [each("listed", &users), each("none", &[BOB])];
        assert_eq!(found.join("; "), expected, "{name}");
    }
    let founded = |uid: u32, founder: u32| {
        let founder = Founder { uid: founder, username: None };
        let member = MemberId::Process(9);
        outcome(&of_alice().ask(uid, 50, &Request::Join { eid: "n".to_owned(), member, founder: Some(founder) }))
    };
    assert_eq!([founded(BOB, BOB), founded(BOB, ALICE), founded(ROOT, ALICE)], ["ok", "not root", "ok"]);
}

#[test]
fn a_refusal_tells_what_to_do_next() {
    let mut lab = of_alice();
    let mut text = |uid, request: &Request| lab.ask(uid, 50, request).unwrap_err().to_string();
    assert_eq!(
        text(BOB, &leave("listed", 7, false)),
        "cannot leave environment listed of the user 4000000: only this user and root may do so. Ask this user, \
         or run it with sudo"
    );
    assert_eq!(
        text(BOB, &enter("listed", 9)),
        "cannot activate: environment listed belongs to the user 4000000. 'genv activate' with another id, or with \
         none, starts one of your own"
    );
    let attach = Request::Attach { eid: "no\n".to_owned(), permission: Permission::Owner, wish: Wish::default() };
    assert_eq!(text(ALICE, &attach), "there is no environment no\\n. 'genv envs' lists those that there are");
    assert_eq!(
        text(ALICE, &Request::Extend { eid: "listed".to_owned(), more: Duration::from_secs(367 * 86_400) }),
        "cannot extend: the lease would end in 367 days, and the limit is 366 days. Choose less"
    );
}

#[test]
fn a_reset_needs_permission_for_each_environment_and_removes_all() {
    let (environments, devices) = (Request::ResetEnvironments, Request::ResetDevices(Inventory::new([(0, Some(50))])));
    let only_for_alice_and_root = |lab: &Lab, request: &Request, expected: &str| {
        for uid in [ALICE, ROOT] {
            assert_eq!(lab.clone().ask(uid, 50, request), Ok(Reply::Done));
        }
        let text = lab.clone().ask(BOB, 50, request).unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    };
    let mut lab = of_alice();
    only_for_alice_and_root(
        &lab,
        &environments,
        "cannot end environment listed of the user 4000000: only this user and root may",
    );
    only_for_alice_and_root(
        &lab,
        &devices,
        "cannot detach environment listed of the user 4000000: only this user and root may",
    );
    lab.ask(ALICE, 50, &devices).unwrap();
    assert_eq!((lab.state.devices().len(), lab.state.attached("listed")), (1, vec![]));
    lab.ask(ALICE, 7, &with(enter("e", 7), |wish| wish.count = Some(1))).unwrap();
    assert_eq!(lab.state.attached("e"), [0]);
    lab.ask(ALICE, 50, &environments).unwrap();
    assert_eq!((lab.state.environments(), lab.state.attached("e")), (&[][..], vec![]));
}

#[test]
fn recorded_devices_are_added_and_those_that_are_not_listed_stay() {
    let mut lab = of_alice();
    let recorded = Request::RecordDevices(Inventory::new([(1, Some(16 << 10)), (2, Some(16 << 10))]));
    assert_eq!(lab.ask(BOB, 50, &recorded), Ok(Reply::Done));
    assert_eq!((lab.state.devices().len(), lab.state.attached("listed")), (3, vec![0]));
}

fn become_job(lab: &mut Lab, pid: u32) {
    let members = lab.state.environments.iter_mut().flat_map(|it| &mut it.members);
    members.filter(|it| it.pid == pid).for_each(|it| it.is_job = true);
}

#[test]
fn an_environment_ends_with_its_last_shell_and_the_command_that_ends_says_what_remains() {
    let mut lab = Lab::new(&[16]);
    lab.ask(ALICE, 7, &enter("e", 7)).unwrap();
    let join = |pid| Request::Join { eid: "e".to_owned(), member: MemberId::Process(pid), founder: None };
    lab.ask(ALICE, 8, &join(8)).unwrap();
    become_job(&mut lab, 8);
    lab.ask(ALICE, 7, &Request::HandOver { eid: "e".to_owned(), from: 7, to: 9 }).unwrap();
    let environment = lab.state.environment("e").unwrap();
    assert!(environment.pids().eq([8, 9]) && environment.shells().eq([9]));
    assert_eq!(lab.ask(ALICE, 7, &leave("e", 9, false)), Ok(Reply::Left(Left::Ends)), "a job remains");
    assert_eq!(lab.ask(ALICE, 7, &leave("e", 9, false)), Ok(Reply::Left(Left::AlreadyEnded)));
    // A shell that has ended already leaves a job alone.
    lab.ask(ALICE, 8, &enter("e", 8)).unwrap();
    for becomes_shell in [enter("e", 8), Request::HandOver { eid: "e".to_owned(), from: 7, to: 8 }] {
        become_job(&mut lab, 8);
        lab.ask(ALICE, 8, &becomes_shell).unwrap();
        let environment = lab.state.environment("e").unwrap();
        assert!(environment.shells().eq(environment.pids()), "{becomes_shell:?}");
    }
    become_job(&mut lab, 8);
    let left = lab.ask(ALICE, 7, &leave("e", 9, false)).unwrap();
    assert!(matches!(left, Reply::Left(Left::Continues(environment)) if environment.pids().eq([8])));
    assert_eq!(lab.ask(BOB, 7, &leave("e", 9, true)).map_err(|it| it.is_temporary()), Err(false));
    assert_eq!(lab.ask(ALICE, 7, &leave("e", 9, true)), Ok(Reply::Left(Left::Ends)));
    // A Jupyter kernel keeps an environment.
    let kernel = MemberId::Kernel("k".to_owned());
    lab.ask(ALICE, 7, &enter("e", 7)).unwrap();
    lab.ask(ALICE, 7, &Request::Join { eid: "e".to_owned(), member: kernel.clone(), founder: None }).unwrap();
    assert!(matches!(lab.ask(ALICE, 7, &leave("e", 7, false)), Ok(Reply::Left(Left::Continues(_)))));
    let of_kernel = Request::Leave { eid: Some("e".to_owned()), member: kernel, as_shell: false };
    assert_eq!(lab.ask(ALICE, 7, &of_kernel), Ok(Reply::Left(Left::Ends)));
    for eid in ["a", "b"] {
        lab.ask(ALICE, 7, &enter(eid, 7)).unwrap();
    }
    let all = Request::Leave { eid: None, member: MemberId::Process(7), as_shell: false };
    assert_eq!(outcome(&lab.ask(BOB, 9, &all)), "not root");
    assert_eq!(lab.ask(ALICE, 9, &all), Ok(Reply::Done));
    assert_eq!(lab.state.environments(), []);
}

#[test]
fn devices_are_detached_by_index_or_all() {
    let mut lab = Lab::new(&[16, 16, 16]);
    lab.ask(ALICE, 7, &with(enter("e", 7), |wish| wish.count = Some(3))).unwrap();
    let mut detach = |indices: &[u32]| {
        let permission = Permission::Owner;
        lab.ask(ALICE, 7, &Request::Detach { eid: "e".to_owned(), permission, indices: indices.to_vec() })
    };
    assert_eq!(
        detach(&[0, 99]).unwrap_err().to_string(),
        "there is no device 99: this machine has devices 0 to 2. 'genv devices' lists them"
    );
    assert_eq!(detach(&[2, 1, 2]), Ok(Reply::Detached(vec![1, 2])));
    assert_eq!(detach(&[]), Ok(Reply::Detached(vec![0])));
    assert_eq!(detach(&[]), Ok(Reply::Detached(vec![])));
}

#[test]
fn a_seen_attachment_is_detached_if_it_is_still_the_same() {
    let mut lab = Lab::new(&[16, 16]);
    lab.now_seconds = 1000.7;
    lab.ask(ALICE, 7, &with(enter("e", 7), |wish| wish.count = Some(1))).unwrap();
    let seen = SeenAttachment { eid: "e".to_owned(), uid: ALICE, index: 0, attached_seconds: Some(1000) };
    for (uid, seen, expected) in [
        (ROOT, SeenAttachment { eid: "f".to_owned(), ..seen.clone() }, "the environment has ended"),
        (ROOT, SeenAttachment { uid: BOB, ..seen.clone() }, "the environment is another user's now"),
        (ROOT, SeenAttachment { index: 1, ..seen.clone() }, "the environment is not attached to it any more"),
        (ROOT, SeenAttachment { index: 2, ..seen.clone() }, "the environment is not attached to it any more"),
        (
            ROOT,
            SeenAttachment { attached_seconds: Some(999), ..seen.clone() },
            "the environment was attached to it anew since",
        ),
        (
            BOB,
            seen.clone(),
            "cannot detach environment e of the user 4000000: only this user and root may do so. Ask \
             this user, or run it with sudo",
        ),
    ] {
        assert_eq!(lab.ask(uid, 50, &Request::DetachSeen(seen)).unwrap_err().to_string(), expected);
    }
    for seen in [seen.clone(), SeenAttachment { attached_seconds: None, ..seen }] {
        assert_eq!(lab.clone().ask(ROOT, 50, &Request::DetachSeen(seen)), Ok(Reply::Detached(vec![0])));
    }
}

#[test]
fn a_configuration_changes_value_by_value() {
    let mut lab = Lab::new(&[16]);
    lab.ask(ALICE, 7, &enter("e", 7)).unwrap();
    let name = Some("n".to_owned());
    let base = Configuration { gpus: Some(3), ..Configuration::default() };
    for (change, expected) in [
        (ConfigurationChange { name: Some(name.clone()), ..ConfigurationChange::default() }, (name.clone(), None)),
        (ConfigurationChange { gpus: Some(Some(2)), ..ConfigurationChange::default() }, (name.clone(), Some(2))),
        (ConfigurationChange { name: Some(None), ..ConfigurationChange::default() }, (None, Some(2))),
        (ConfigurationChange { base: Some(base), name: Some(name.clone()), ..Default::default() }, (name, Some(3))),
    ] {
        let permission = Permission::Owner;
        lab.ask(ALICE, 7, &Request::Configure { eid: "e".to_owned(), permission, change }).unwrap();
        let configuration = lab.state.configuration("e").unwrap();
        assert_eq!((configuration.name, configuration.gpus), expected);
    }
}

#[test]
fn a_lease_is_extended_from_its_end_or_from_now() {
    let mut lab = Lab::new(&[]);
    lab.ask(ALICE, 7, &enter("e", 7)).unwrap();
    let mut extend = |now_seconds, more| {
        lab.now_seconds = now_seconds;
        let more = Duration::from_secs(more);
        let asked = lab.ask(ALICE, 7, &Request::Extend { eid: "e".to_owned(), more });
        asked.map(|_| lab.state.lease_end("e").unwrap())
    };
    assert_eq!(extend(1000.0, 3600), Ok(4600.0));
    assert_eq!(extend(1600.0, 60), Ok(4660.0));
    assert_eq!(extend(5000.0, 60), Ok(5060.0), "it had ended");
    let longest = LONGEST_LEASE.as_secs();
    assert_eq!(extend(5000.0, longest - 60), Ok(5000.0 + LONGEST_LEASE.as_secs_f64()));
    extend(5000.0, 1).unwrap_err();
    // A new environment has no lease of an ended one.
    lab.ask(ALICE, 7, &leave("e", 7, false)).unwrap();
    lab.ask(ALICE, 7, &enter("e", 7)).unwrap();
    assert_eq!(lab.state.lease_end("e"), None);
}
