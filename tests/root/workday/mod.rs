//! A day of a lab in enforce mode, as it is meant: users with shells of their own and genv in them, their processes, an
//! enforcer that runs as root, and an administrator. An hour takes about two seconds.
//!
//! In the evening everybody whom no rule forbids is there, everybody else was ended by the signal that the rule says, and
//! the books balance: of each violation that the status ever told, it was acted upon, refused, waits, or was over before.

mod books;
mod day;
mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_core::state::{StateDirectory, StateSource as _};
use genv_tests::enforcer::{Setup, is_alive};
use genv_tests::process;
use genv_tests::root::{apart, own_mounts, require_root, users};
use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;

use books::{Books, End, Ledger};
use day::{Day, SPARE};
use lab::{Actor, Executed, Fate, Parent, Shell, USERS, command_of, open_to_everybody, scenario};

/// How often each rule warns before it acts.
const RULES: [(&str, usize); 6] =
    [("non-env-processes", 2), ("env-devices", 1), ("env-memory", 1), ("fair-share", 1), ("old", 1), ("idle", 1)];

/// From SIGTERM to SIGKILL.
const GRACE_SECONDS: i64 = 2;

/// Whom no rule reaches, whatever it does.
const NEVER: &str = "/usr/bin/tail";

fn config(maintenance: &str) -> Result<String> {
    let never = std::fs::canonicalize(NEVER)?;
    let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
    Ok(format!(
        "version: 1
mode: enforce
interval: 100ms
timezone: UTC
never: {{executables: [{}]}}
breaker: {{signals_per_minute: 100, share_of_users: 1}}
{maintenance}
waivers: [{{users: [carol], rules: [idle], until: \"{tomorrow}\", reason: deadline}}]
rules:
- {{kind: non-env-processes, action: terminate, for: 500ms, warn: [10s, 2s], remember: 0s}}
- {{kind: env-devices, action: kill, for: 500ms, warn: [1s], grace: {GRACE_SECONDS}s, remember: 0s}}
- {{kind: env-memory, action: terminate, for: 500ms, warn: [1s], remember: 0s}}
- {{name: fair-share, kind: max-devices-per-user, limit: {{default: 8, groups: {{students: 2}}}}, action: detach, for: 500ms, warn: [10s], remember: 0s}}
- {{name: old, kind: max-age, limit: {{users: {{eve: 20s}}}}, action: detach, warn: [2s], remember: 0s}}
- {{kind: idle, below: 0.05, over: 6s, action: detach, warn: [2s], remember: 0s}}
",
        never.display()
    ))
}

/// Everybody comes, and starts to work, or does not.
fn morning(setup: Setup) -> Result<Day> {
    let (mut shells, mut eids, mut devices) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (name, user, flags) in [
        ("alice", "alice", "--gpus 2"),
        ("bob", "bob", "--gpus 2"),
        ("carol", "carol", "--gpus 1 --gpu-memory 16gi"),
        ("carol's other", "carol", "--gpus 1"),
        ("dave", "dave", "--gpus 1"),
    ] {
        let mut shell = Shell::activated(user, flags, &setup)?;
        eids.insert(name, shell.run("echo $GENV_ENVIRONMENT_ID")?);
        devices.insert(name, shell.devices()?);
        shells.insert(name, shell);
    }
    let eves = Executed::start("eve", &["--gpus", "1"], &setup)?;
    eids.insert("eve", eves.eid);
    let actors = vec![Actor {
        name: "old",
        pid: eves.pid,
        parent: Parent::Genv(eves.genv),
        devices: eves.devices,
        gibibytes: 30,
        utilization: 0.9,
        fate: Fate::Ended(Signal::TERM),
    }];
    setup.rewrite_scenario(&scenario(&actors))?;
    let mut day = Day {
        enforcer: setup.start()?,
        shells,
        eids,
        devices,
        actors,
        ledger: Ledger::default(),
        scenario: String::new(),
    };
    let of = |shell: &str| day.devices[shell].clone();
    let (alices, bobs, carols, daves) = (of("alice"), of("bob"), of("carol"), of("dave"));
    day.start("alice", "training", (alices, 60, 0.9), Fate::Stays)?;
    // On one of two.
    day.start("bob", "sweep", (bobs[..1].to_vec(), 20, 0.8), Fate::Stays)?;
    day.start("carol", "notebook", (carols, 9, 0.3), Fate::Stays)?;
    let ended = Fate::Ended(Signal::TERM);
    day.start("dave", "forgotten", (daves, 20, 0.01), ended)?;
    day.go_on()?;
    Ok(day)
}

/// What happens outside of environments, and to whom nothing may happen.
fn noon(day: &mut Day) -> Result<()> {
    let ended = Fate::Ended(Signal::TERM);
    let alices = day.eids["alice"].clone();
    day.stray("eve", "stray", "", ended)?;
    day.stray("eve", "forger", &alices, ended)?;
    day.stray("bob", "leaving", "", Fate::Leaves)?;
    day.stray("root", "root's", "", Fate::Stays)?;
    let mut stubborn = command_of("bob", "/usr/bin/env");
    stubborn.args(["--ignore-signal=TERM", "sleep", "1000000"]);
    // Of a user of the system, who is trusted with what the program does.
    let mut protected = command_of("root", NEVER);
    protected.args(["-f", "/dev/null"]).uid(1).gid(1);
    // It wiped its environ, or had none.
    let mut unknown = command_of("eve", "/bin/sleep");
    unknown.env_clear().arg("1000000");
    for (name, mut command) in [("stubborn", stubborn), ("protected", protected), ("unknown", unknown)] {
        let actor = Actor::outside(name, &mut command, SPARE, Fate::Stays)?;
        day.actors.push(actor);
    }
    // In her environment, on a device that is not hers.
    let stray = (vec![SPARE - 1], 1, 0.1);
    day.start("alice", "wandering", stray.clone(), ended)?;
    day.start("alice", "defiant", stray, Fate::Ended(Signal::KILL))?;
    let carols = day.devices["carol"].clone();
    day.start("carol", "too large", (carols, 21, 0.4), ended)?;

    day.until("who leaves is warned", |day| day.stage_outside("leaving") == Some("warned"))?;
    process::signal(day.pid("leaving"), Signal::INT)?;
    day.until("who is to end by noon has ended", |day| {
        let names = ["stray", "forger", "wandering", "defiant", "too large"];
        names.iter().all(|name| day.has_ended(name))
    })?;
    day.until("the stubborn one was told to end", |day| day.stage_outside("stubborn") == Some("acted"))
}

/// Bob gave nothing back, was taken what he left idle, and comes for more than students get.
fn afternoon(day: &mut Day) -> Result<()> {
    let key = day.idle("bob");
    day.until("what bob left idle is taken", |day| {
        day.ledger.seen.contains(&key) && !day.ledger.now.contains_key(&key)
    })?;
    let bob = day.shells.get_mut("bob").context("no bob")?;
    bob.run("genv attach --count 3")?;
    let devices = bob.devices()?;
    let used = day.actors.iter().find(|it| it.name == "sweep");
    let used = used.context("no sweep")?.devices.clone();
    let new: Vec<u32> = devices.into_iter().filter(|it| !used.contains(it)).collect();
    ensure!(new.len() == 2, "{new:?}");
    for (name, device) in [("second sweep", new[0]), ("third sweep", new[1])] {
        // Whichever is the newest of the two.
        day.start("bob", name, (vec![device], 20, 0.8), Fate::Stays)?;
    }
    day.until("one of bob's devices is taken", |day| day.has_ended("second sweep") || day.has_ended("third sweep"))?;
    for actor in &mut day.actors {
        if actor.name.ends_with("sweep") && !is_alive(actor.pid) {
            actor.fate = Fate::Ended(Signal::TERM);
        }
    }
    day.until("what is old or idle is taken", |day| day.has_ended("old") && day.has_ended("forgotten"))
}

/// While the host is maintained nothing happens; then it goes on.
fn maintenance(day: &mut Day) -> Result<()> {
    let now = Timestamp::now();
    let mut hostnames = day.ledger.now.values().filter_map(|it| it.hostname.clone());
    let hostname = hostnames.next().context("no violation on a host")?;
    let window =
        |until: Timestamp| format!("maintenance: [{{hosts: [\"{hostname}\"], from: \"{now}\", until: \"{until}\"}}]");
    let holds = |day: &Day, name: &str| {
        let key = ("non-env-processes".to_owned(), format!("process {}", day.pid(name)));
        let why = day.ledger.now.get(&key).and_then(|it| it.why.as_deref());
        why.is_some_and(|why| why.contains("under maintenance"))
    };
    let tomorrow = now + SignedDuration::from_hours(24);
    day.enforcer.setup().rewrite_config(&config(&window(tomorrow))?)?;
    day.until("the host is under maintenance", |day| holds(day, "stubborn"))?;
    let audited = day.enforcer.audit()?.len();
    day.stray("eve", "meanwhile", "", Fate::Ended(Signal::TERM))?;
    day.until("a violation waits for the maintenance", |day| holds(day, "meanwhile"))?;
    // It is over sooner than was said.
    let until = Timestamp::now() + SignedDuration::from_secs(3);
    day.enforcer.setup().rewrite_config(&config(&window(until))?)?;
    day.until("the maintenance is over", |day| !holds(day, "meanwhile"))?;
    ensure!(Timestamp::now() >= until, "it was not over");
    for line in &day.enforcer.audit()?[audited..] {
        let at: Timestamp = line["time"].as_str().context("no time")?.parse()?;
        ensure!(at >= until, "during the maintenance: {line}");
    }
    day.until("it is ended after it", |day| day.has_ended("meanwhile"))
}

/// Eve asked, and gets her time.
fn waiver(day: &mut Day) -> Result<()> {
    let words = "waive eve --rule non-env-processes --for 1h --reason thesis";
    let words: Vec<&str> = words.split(' ').collect();
    day.enforcer.setup().said(&words)?;
    day.stray("eve", "waived", "", Fate::Stays)?;
    day.until("it is seen, and waits", |day| day.stage_outside("waived") == Some("held"))?;
    // Longer than it would have had.
    let later = Instant::now() + Duration::from_secs(12);
    day.until("the evening has come", |_| Instant::now() > later)
}

/// How each violation was to end: by its rule and subject, with a part of the reason.
fn expected(day: &Day) -> BTreeMap<books::Key, End> {
    let acted = |deeds: &[&str]| End::Acted(deeds.iter().map(|&it| it.to_owned()).collect());
    let mut all = BTreeMap::new();
    let outside = "non-env-processes";
    for (rule, name, end) in [
        (outside, "stray", acted(&["SIGTERM"])),
        (outside, "forger", acted(&["SIGTERM"])),
        (outside, "leaving", End::Over),
        (outside, "stubborn", acted(&["SIGTERM"])),
        (outside, "meanwhile", acted(&["SIGTERM"])),
        (outside, "protected", End::Refused("which is never ended".to_owned())),
        (outside, "waived", End::Waits("thesis".to_owned())),
        ("env-devices", "wandering", acted(&["SIGTERM"])),
        ("env-devices", "defiant", acted(&["SIGTERM", "SIGKILL"])),
    ] {
        let subject = format!("process {}", day.pid(name));
        all.insert((rule.to_owned(), subject), end);
    }
    let with_process = acted(&["detach", "SIGTERM"]);
    let subject = |rule: &str, subject: String| (rule.to_owned(), subject);
    let carols = (&day.eids["carol"], day.devices["carol"][0]);
    let carols = format!("environment {} on device {}", carols.0, carols.1);
    let eves = format!("environment {}", day.eids["eve"]);
    all.extend([
        (subject("fair-share", "user bob".to_owned()), with_process.clone()),
        (subject("env-memory", carols), acted(&["SIGTERM"])),
        (subject("old", eves), with_process.clone()),
        (day.idle("bob"), acted(&["detach"])),
        (day.idle("dave"), with_process),
        (day.idle("carol's other"), End::Waits("deadline".to_owned())),
    ]);
    all
}

/// The same end, with a reason that says this.
fn is_as(end: &End, expected: &End) -> bool {
    match (end, expected) {
        (End::Refused(reason), End::Refused(part)) | (End::Waits(reason), End::Waits(part)) => reason.contains(part),
        _ => end == expected,
    }
}

/// Who is there, how the others ended, and what they have.
fn evening(mut day: Day) -> Result<()> {
    day.enforcer.wait_for_cycles(3)?;
    day.go_on()?;
    for actor in &mut day.actors {
        let name = actor.name;
        match actor.fate {
            Fate::Stays => ensure!(is_alive(actor.pid), "{name} has ended"),
            Fate::Ended(signal) => {
                let ended = actor.signal(&mut day.shells)?;
                ensure!(ended == Some(signal), "{name} ended by {ended:?}");
            }
            Fate::Leaves => ensure!(actor.signal(&mut day.shells)? == Some(Signal::INT)),
        }
    }
    for (name, shell) in &day.shells {
        ensure!(is_alive(shell.pid()), "the shell of {name} has ended");
    }
    ensure!(day.ledger.unknown_processes == 1, "{:?}", day.ledger);
    let state = StateDirectory::new(day.enforcer.setup().genv_directory()).read()?;
    for (name, wanted) in [("alice", 2), ("bob", 2), ("carol", 1), ("carol's other", 1), ("dave", 0), ("eve", 0)] {
        let attachments = state.devices.iter().flat_map(|device| &device.attachments);
        let held = attachments.filter(|it| it.eid == day.eids[name]).count();
        ensure!(held == wanted, "{name} holds {held} devices");
    }

    let books = Books::of(&day.enforcer)?;
    books.are_explained(&RULES.into())?;
    let ends = books.ends(&day.ledger)?;
    books.balance(&RULES.map(|(rule, _)| rule), &ends)?;
    let defiant = u64::from(day.pid("defiant"));
    let of_defiant = books.audit.iter().filter(|it| it["pid"] == defiant);
    let times: Vec<Timestamp> = of_defiant
        .filter(|it| it["result"] == "intended")
        .map(|it| Ok(it["time"].as_str().context("no time")?.parse()?))
        .collect::<Result<_>>()?;
    let [told, killed] = times[..] else {
        anyhow::bail!("{times:?}");
    };
    let grace = SignedDuration::from_secs(GRACE_SECONDS);
    ensure!(killed.duration_since(told) >= grace, "{times:?}");
    let expected = expected(&day);
    for (key, wanted) in &expected {
        let end = ends.get(key);
        let end = end.with_context(|| format!("{key:?} was never seen"))?;
        ensure!(is_as(end, wanted), "{key:?}: {end:?}, not {wanted:?}");
    }
    // Between the taking of its device and its end a process is where it may not be.
    let ended = |actor: &&Actor| matches!(actor.fate, Fate::Ended(_));
    let passing: BTreeSet<String> =
        day.actors.iter().filter(ended).map(|actor| format!("process {}", actor.pid)).collect();
    for (key, end) in ends.iter().filter(|(key, _)| !expected.contains_key(*key)) {
        let passes = key.0 == "env-devices" && passing.contains(&key.1);
        ensure!(passes && *end == End::Over, "{key:?}: {end:?}");
    }
    Ok(())
}

#[test]
fn the_books_of_a_day_of_several_users_balance_and_nobody_innocent_ends() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let setup = Setup::new(&scenario(&[]), &config("")?)?.flag("--log.format=json");
        open_to_everybody(&setup)?;
        users(setup.folder(), &USERS, &[("students", &["bob"])])?;
        let mut day = morning(setup)?;
        noon(&mut day)?;
        afternoon(&mut day)?;
        maintenance(&mut day)?;
        waiver(&mut day)?;
        evening(day)
    })
}
