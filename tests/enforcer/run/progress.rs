//! Violations that come and go, or are hidden for moments, under a running daemon.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use genv_tests::enforcer::{Setup, ends, enforcing, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{PATIENCE, until};
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

const RULES: &str = "version: 1
mode: enforce
interval: 100ms
breaker: {share_of_users: 1, signals_per_minute: 100}
rules: [{kind: non-env-processes, action: terminate, for: 1200ms, warn: [1500ms]}]
";

/// The times of a rule become so many times as long until there was time for several interruptions: how many there are
/// depends on the machine.
const LONGER: [u32; 4] = [1, 3, 9, 27];

#[test]
fn a_record_that_is_damaged_again_and_again_keeps_no_process() -> Result<()> {
    for longer in LONGER {
        let times = format!("for: {}ms, warn: [{}ms]", 1200 * longer, 1500 * longer);
        if ended_after_rounds(&RULES.replace("for: 1200ms, warn: [1500ms]", &times))? > 2 {
            return Ok(());
        }
    }
    bail!("it was always ended before it was interrupted thrice")
}

/// How often the record was damaged before the process was ended.
fn ended_after_rounds(rules: &str) -> Result<usize> {
    let (member, outsider) = (sleeper(&[])?, sleeper(&[])?);
    let setup = Setup::new(&used_by(&[outsider.pid()]), rules)?;
    let environment = Environment::new("e1", victim(), member.pid(), &[]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let path = setup.genv_directory().join("envs.json");
    let whole = fs::read_to_string(&path)?;
    // A record of its user's that lists the process, and has no id.
    let mut damaged: Value = serde_json::from_str(&whole)?;
    let records = damaged["envs"].as_array_mut();
    records.context("no records")?.push(serde_json::json!({"uid": victim(), "pids": [outsider.pid()]}));
    let damaged = damaged.to_string();
    let enforcer = setup.start()?;
    let unknown = |status: &Value| {
        let hosts = status["unknown_processes"].as_object();
        hosts.is_some_and(|hosts| !hosts.is_empty())
    };
    let begun = Instant::now();
    let mut rounds = 0;
    while is_alive(outsider.pid()) {
        ensure!(begun.elapsed() < PATIENCE, "it goes on after {rounds} rounds: {:#}", enforcer.status()?);
        // Less than half of what it takes to be warned, and then a moment in which nobody can tell.
        std::thread::sleep(Duration::from_millis(500));
        write_whole(&path, &damaged)?;
        enforcer
            .wait_for_status("it is unknown, or has ended", |status| unknown(status) || !is_alive(outsider.pid()))?;
        write_whole(&path, &whole)?;
        rounds += 1;
    }
    Ok(rounds)
}

#[test]
fn a_program_that_is_started_again_and_again_is_ended_by_the_warnings_of_the_first_one() -> Result<()> {
    let first = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[first.pid()]), RULES)?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("it is warned of", |status| status["violations"][0]["stage"] == "warned")?;
    drop(first);
    let mut stages = Vec::new();
    for _ in 0..3 {
        let next = sleeper(&[])?;
        enforcer.setup().rewrite_scenario(&used_by(&[next.pid()]))?;
        let subject = format!("process {}", next.pid());
        let status = enforcer.wait_for_status("it is seen or ended", |status| {
            !is_alive(next.pid()) || status["violations"][0]["subject"] == subject
        })?;
        stages.push(status["violations"][0]["stage"].clone());
        // It needs no warning of its own.
        ends(next.pid())?;
    }
    let scrape = enforcer.scrape()?;
    let warnings = scrape.all("genv_enforcer_warnings_total", &[]);
    let warnings: f64 = warnings.iter().map(|(_, value)| value).sum();
    assert_eq!(warnings, 1.0, "{stages:?}");
    Ok(())
}

/// A rule that takes devices, and that remembers nothing of a violation that is over.
const TAKES: &str = "version: 1
mode: enforce
interval: 100ms
breaker: {share_of_users: 1}
rules: [{kind: max-devices-per-user, limit: 0, action: detach, for: 1s, warn: [1s], remember: 0s}]
";

fn is_taken(devices: &std::path::Path) -> Result<bool> {
    Ok(!fs::read_to_string(devices)?.contains("\"E\""))
}

#[test]
fn a_device_whose_entry_is_damaged_again_and_again_is_taken_all_the_same() -> Result<()> {
    for longer in LONGER {
        let times = format!("for: {longer}s, warn: [{longer}s]");
        let named = taken_all_the_same(&TAKES.replace("for: 1s, warn: [1s]", &times))?;
        if named.is_empty() {
            continue;
        }
        ensure!(named.contains("Frozen   since") && named.contains("is damaged or disputed"), "{named}");
        ensure!(named.contains(" broke rule max-devices-per-user"), "{named}");
        ensure!(!named.contains("Nobody breaks a rule"), "{named}");
        return Ok(());
    }
    bail!("it was always taken before its entry was damaged")
}

/// What the status told of the damaged entry before the device was taken; nothing if it was taken before.
fn taken_all_the_same(rules: &str) -> Result<String> {
    let member = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[]), rules)?;
    let environment = Environment::new("E", victim(), member.pid(), &[0]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let devices = setup.genv_directory().join("devices.json");
    let whole = fs::read_to_string(&devices)?;
    let mut damaged: Value = serde_json::from_str(&whole)?;
    damaged["devices"][0]["attachments"] = json!("?");
    let damaged = damaged.to_string();
    let enforcer = setup.start()?;
    let begun = Instant::now();
    let mut named = String::new();
    while !is_taken(&devices)? {
        ensure!(begun.elapsed() < PATIENCE, "{:#}", enforcer.status()?);
        // Less than `for` or the warning takes.
        std::thread::sleep(Duration::from_millis(500));
        if is_taken(&devices)? {
            break;
        }
        write_whole(&devices, &damaged)?;
        // It may have been taken a moment before.
        enforcer.wait_for_status("it is frozen", |status| {
            status["frozen"] != json!([]) || status["violations"] == json!([])
        })?;
        let said = enforcer.setup().said(&["status"])?;
        if said.contains("Frozen") {
            named = said;
        }
        write_whole(&devices, &whole)?;
        enforcer.wait_for_status("it goes on", |status| status["frozen"] == json!([]))?;
    }
    Ok(named)
}

#[test]
fn a_device_whose_old_record_is_restored_before_every_look_is_taken_all_the_same() -> Result<()> {
    for rule in ["kind: idle, over: 1s", "kind: max-devices-per-user, limit: 0, for: 0s"] {
        let member = sleeper(&[])?;
        let rules = format!("- {{{rule}, action: detach, warn: []}}\n");
        let setup = Setup::new(&used_by(&[]), &enforcing(&rules))?;
        let environment = Environment::new("E", victim(), member.pid(), &[0]);
        state::write(&setup.genv_directory(), 2, &[environment])?;
        let devices = setup.genv_directory().join("devices.json");
        let whole = fs::read_to_string(&devices)?;
        let enforcer = setup.start()?;
        let is_over = AtomicBool::new(false);
        let restore = || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                if is_taken(&devices)? {
                    write_whole(&devices, &whole)?;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let taken = || -> Result<usize> {
            let audit = enforcer.audit()?.into_iter();
            let done = audit.filter(|line| line["action"] == "detach" && line["result"] == "done");
            Ok(done.count())
        };
        std::thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(restore);
            let is_taken_again = until("it is taken again and again", || Ok(taken()? >= 4));
            // Another user may have written the record.
            let is_disputed = enforcer.wait_for_status("it is disputed", |status| {
                let why = status["disputed_records"][0]["why"].as_str();
                why.is_some_and(|why| why.starts_with("device 0 came to it"))
            });
            is_over.store(true, Ordering::Relaxed);
            let written = writer.join().map_err(|_| anyhow!("the writer ended"))?;
            is_taken_again.with_context(|| format!("{rule}: {}", enforcer.log()))?;
            is_disputed?;
            written
        })?;
        until("it is taken for good", || is_taken(&devices))?;
    }
    Ok(())
}

fn write_whole(path: &std::path::Path, text: &str) -> Result<()> {
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    Ok(fs::rename(&next, path)?)
}
