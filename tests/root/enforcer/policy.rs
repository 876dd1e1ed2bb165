//! The first policy of docs/enforcement.md in action, with its times shortened and groups that every machine has.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, is_alive, sleeper_of};
use genv_tests::patience::until;
use genv_tests::root::{FIRST_UID, require_root};
use genv_tests::state::{self, Environment};
use serde_json::Value;

use crate::enforcer::delivery::why;
use crate::enforcer::stage::ANYTHING;

const PAGE: &str = include_str!("../../../docs/enforcement.md");

/// A member of the group `daemon`, which stands for the students, and one of `bin`, which stands for the staff.
const STUDENT: u32 = 1;
const STAFF: u32 = 2;
const OUTSIDER: u32 = FIRST_UID + 60;

/// The policy as it stands there, with each of these parts replaced by another.
fn policy(replaced: &[(&str, &str)]) -> Result<String> {
    let (_, rest) = PAGE.split_once("## A first policy").context("no policy")?;
    let (_, rest) = rest.split_once("```yaml\n").context("no policy")?;
    let (policy, _) = rest.split_once("```").context("no policy")?;
    let mut policy = policy.to_owned();
    for (part, other) in replaced {
        ensure!(policy.contains(part), "no {part} in {policy}");
        policy = policy.replace(part, other);
    }
    Ok(policy)
}

/// Hours that hold now, in UTC.
fn now_and_later() -> Result<String> {
    let hour = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 3600 % 24;
    Ok(format!("between: \"{:02}:00-{:02}:00\"", (hour + 23) % 24, (hour + 2) % 24))
}

/// The devices that environments hold, by the files.
fn held(enforcer: &Enforcer) -> Result<Vec<(String, usize)>> {
    let path = enforcer.setup().genv_directory().join("devices.json");
    let devices: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut held = Vec::new();
    for (index, device) in devices["devices"].as_array().into_iter().flatten().enumerate() {
        for attachment in device["attachments"].as_array().into_iter().flatten() {
            held.push((attachment["eid"].as_str().unwrap_or_default().to_owned(), index));
        }
    }
    Ok(held)
}

#[test]
fn the_first_policy_acts_after_its_warnings_were_read() -> Result<()> {
    require_root();
    let config = policy(&[
        ("mode: dry-run", "mode: enforce\ninterval: 100ms\nbreaker: {share_of_users: 1}"),
        ("timezone: Europe/Berlin", "timezone: UTC"),
        ("{undelivered: hold}", "{undelivered: hold, for: 300ms}"),
        ("{students: 2, staff: 8}", "{daemon: 2, bin: 8}"),
        ("[30m, 5m]", "[2s, 1s]"),
        ("[10m]", "[1s]"),
        ("for: 5m", "for: 300ms"),
        ("over: 2h", "over: 2s"),
        ("days: [mon-fri], ", ""),
        ("between: \"08:00-20:00\"", &now_and_later()?),
    ])?;
    let claims = |uid, eid| sleeper_of(uid, &[("GENV_ENVIRONMENT_ID", eid)]);
    let (first, second, staff) = (claims(STUDENT, "1")?, claims(STUDENT, "2")?, claims(STAFF, "3")?);
    let members = [sleeper_of(STUDENT, &ANYTHING)?, sleeper_of(STUDENT, &ANYTHING)?, sleeper_of(STAFF, &ANYTHING)?];
    let outsider = sleeper_of(OUTSIDER, &ANYTHING)?;
    let busy = |pid: u32, gpus: &[u32]| {
        let uses = gpus.iter().map(|gpu| format!("{{index: {gpu}, memory: 1gi, utilization: 0.9}}"));
        format!("  - {{pid: {pid}, devices: [{}]}}\n", uses.collect::<Vec<_>>().join(", "))
    };
    let scenario = [
        "version: 1\nhosts:\n- devices: [{count: 8}]\n  processes:\n".to_owned(),
        busy(first.pid(), &[0, 1]),
        busy(second.pid(), &[2]),
        // Device 6 is held and not used.
        busy(staff.pid(), &[3, 4, 5]),
        busy(outsider.pid(), &[7]),
    ];
    let setup = Setup::new(&scenario.concat(), &config)?;
    state::write(
        &setup.genv_directory(),
        8,
        &[
            Environment::new("1", STUDENT, members[0].pid(), &[0, 1]),
            Environment::new("2", STUDENT, members[1].pid(), &[2]),
            Environment::new("3", STAFF, members[2].pid(), &[3, 4, 5, 6]),
        ],
    )?;
    let enforcer = setup.start()?;
    // No user has a terminal.
    enforcer.wait_for_status("all wait for delivery", |status| {
        let violations = status["violations"].as_array().cloned().unwrap_or_default();
        let held = violations.iter().filter(|it| it["stage"] == "held");
        let rules: Vec<&str> = held.filter_map(|it| it["rule"].as_str()).collect();
        rules == ["devices", "idle", "environment"]
    })?;
    enforcer.wait_for_cycles(5)?;
    ensure!(held(&enforcer)?.len() == 7 && is_alive(outsider.pid()));

    until("what breaks the policy is over", || {
        for uid in [STUDENT, STAFF, OUTSIDER] {
            why(&enforcer, uid)?;
        }
        Ok(held(&enforcer)?.len() == 5 && !is_alive(outsider.pid()))
    })?;
    let left = held(&enforcer)?;
    let of = |eids: &[&str]| left.iter().filter(|(eid, _)| eids.contains(&eid.as_str())).count();
    assert_eq!((of(&["1", "2"]), of(&["3"])), (2, 3), "{left:?}");
    ensure!(!left.contains(&("3".to_owned(), 6)), "{left:?}");
    ensure!(is_alive(staff.pid()));
    let status = enforcer.wait_for_status("nothing is left to do", |status| {
        status["violations"].as_array().is_some_and(Vec::is_empty)
    })?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    let log = enforcer.log();
    for (rule, warnings) in [("devices", 2), ("idle", 2), ("environment", 1)] {
        let of_rule = |line: &&str| line.contains("a user is warned") && line.contains(&format!("rule=\"{rule}\""));
        assert_eq!(log.lines().filter(of_rule).count(), warnings, "{log}");
    }
    let notices = why(&enforcer, STAFF)?;
    ensure!(notices.contains("was taken at"), "{notices}");
    Ok(())
}
