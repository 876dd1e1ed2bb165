use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, ends_outsiders, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{output, until};
use genv_tests::process::Sleeper;

use crate::run::outsider;

/// A process outside of all environments, which does not use a device yet, and an enforcer that ends those that do.
fn lab() -> Result<(Sleeper, Enforcer)> {
    let setup = Setup::new(&used_by(&[]), &ends_outsiders("enforce", "for: 0s, warn: []"))?;
    Ok((sleeper(&[])?, setup.start()?))
}

#[test]
fn a_pause_holds_everything_until_it_ends() -> Result<()> {
    let (process, enforcer) = lab()?;
    let said = enforcer.setup().said(&["pause", "--for", "1h"])?;
    ensure!(said.starts_with("Paused until "), "{said}");
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    enforcer.wait_for_status("it is held", |status| {
        status["paused_until_seconds"].is_number() && status["violations"][0]["stage"] == "held"
    })?;
    let text = enforcer.setup().said(&["status"])?;
    ensure!(text.contains("\nPaused     until "), "{text}");
    ensure!(enforcer.scrape()?.value("genv_enforcer_paused_until_timestamp_seconds", &[]).is_ok());
    ensure!(is_alive(process.pid()));
    enforcer.setup().said(&["pause", "--for", "0"])?;
    ends(process.pid())
}

#[test]
fn a_waiver_spares_its_user_from_its_rule_until_it_is_taken_back() -> Result<()> {
    let (process, enforcer) = lab()?;
    let user = genv_core::proc::username(victim());
    let waive = |rule: &str, span: &str| {
        let words = ["waive", &user, "--rule", rule, "--for", span, "--reason", "thesis"];
        enforcer.setup().ended(&words, if rule == "nosuch" { 2 } else { 0 })
    };
    let stderr = waive("nosuch", "1h")?;
    ensure!(stderr.contains("non-env-processes"), "{stderr}");
    waive("non-env-processes", "1h")?;
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    let status = enforcer.wait_for_status("it is held", |status| status["violations"][0]["stage"] == "held")?;
    assert_eq!(status["waivers"][0]["reason"], "thesis");
    let why = status["violations"][0]["why"].as_str().unwrap_or_default();
    ensure!(why.contains("thesis"), "{why}");
    let said = enforcer.setup().said(&["explain", &process.pid().to_string()])?;
    ensure!(said.contains("\nSafe: ") && said.contains("thesis"), "{said}");
    ensure!(is_alive(process.pid()));
    waive("non-env-processes", "0")?;
    ends(process.pid())
}

#[test]
fn what_is_told_where_no_enforcer_runs_says_so() -> Result<()> {
    let (process, setup) = outsider("enforce", "for: 0s, warn: [1h]")?;
    let commands = [&["pause", "--for=1h"][..], &["waive", "root", "--rule=non-env-processes", "--for=1h"]];
    let silent = |setup: &Setup, words: &[&str]| -> Result<bool> {
        Ok(!setup.ended(words, 0)?.contains("no enforcer runs with"))
    };
    for words in commands {
        ensure!(!silent(&setup, words)?, "{words:?}");
    }
    let enforcer = setup.start()?;
    for words in commands {
        ensure!(silent(enforcer.setup(), words)?, "{words:?}");
    }
    let pid = process.pid().to_string();
    let note = "the enforcer has told nothing new";
    let said = enforcer.setup().said(&["explain", &pid])?;
    ensure!(!said.contains(note), "{said}");

    let mut status = enforcer.status()?;
    let setup = enforcer.kill()?;
    status["updated_timestamp_seconds"] = 1.into();
    std::fs::write(setup.state_directory().join("status.json"), status.to_string())?;
    let said = setup.said(&["explain", &pid])?;
    ensure!(said.contains(note), "{said}");
    for words in commands {
        ensure!(!silent(&setup, words)?, "{words:?}");
    }
    Ok(())
}

#[test]
fn a_breaker_that_trips_stops_everything_until_it_is_reset() -> Result<()> {
    let processes: Vec<_> = (0..3).map(|_| sleeper(&[])).collect::<Result<_>>()?;
    let pids: Vec<u32> = processes.iter().map(Sleeper::pid).collect();
    // The only user is more than half of all.
    let config = ends_outsiders("enforce", "for: 0s, warn: []")
        .replace("{share_of_users: 1}", "{share_of_users: 0.5, at_least_users: 1}");
    let enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    enforcer.wait_for_metrics("the breaker trips", |scrape| {
        scrape.value("genv_enforcer_breaker_open", &[]).is_ok_and(|it| it == 1.0)
    })?;
    enforcer.wait_for_cycles(2)?;
    let alive = || pids.iter().filter(|pid| is_alive(**pid)).count();
    ensure!(alive() == 3);
    let status = enforcer.status()?;
    let why = status["breaker"].as_str().unwrap_or_default();
    ensure!(why.contains("by the rule non-env-processes"), "{status:#}");
    assert_eq!(status["mode"], "enforce");
    ensure!(status["breaker_since_seconds"].is_number(), "{status:#}");
    let refused: Vec<_> = enforcer.audit()?.into_iter().filter(|line| line["result"] == "refused").collect();
    ensure!(!refused.is_empty(), "nothing was refused");
    for line in refused {
        let reason = line["reason"].as_str().unwrap_or_default();
        ensure!(reason.starts_with("the breaker is open: "), "{line}");
    }
    let log = enforcer.log();
    assert_eq!(log.matches("event=\"breaker\"").count(), 1, "{log}");
    let is_fault = |line: &str| line.contains("event=\"fault\"") && line.contains("breaker");
    ensure!(!log.lines().any(is_fault) && !log.contains("mode=\"dry-run\""), "{log}");
    let said = enforcer.setup().said(&["status"])?;
    let mode = "Mode       enforce, but the breaker is open: nothing is done";
    for part in [mode, "Breaker    open since ", "nothing, until an administrator closes the breaker"] {
        ensure!(said.contains(part), "{part}: {said}");
    }
    let said = enforcer.setup().said(&["reset"])?;
    ensure!(said.contains("closed again"), "{said}");
    // The administrator who resets the breaker accepts the due actions.
    for pid in pids {
        ends(pid)?;
    }
    enforcer.wait_for_status("it stays closed", |it| it["breaker"].is_null())?;
    Ok(())
}

#[test]
fn promise_10_a_bad_configuration_keeps_the_last_good_one_and_says_so_everywhere() -> Result<()> {
    let (_process, setup) = outsider("dry-run", "for: 1h, warn: []")?;
    let enforcer = setup.start()?;
    let hash = enforcer.status()?["config"]["hash"].clone();
    enforcer.setup().rewrite_config("version: 1\nrulez: []\n")?;
    let status = enforcer.wait_for_status("status says so", |status| status["config"]["error"].is_string())?;
    assert_eq!(status["config"]["hash"], hash);
    let error = status["config"]["error"].as_str().unwrap_or_default();
    ensure!(error.contains("enforcer.yaml:2:1"), "{error}");
    enforcer.wait_for_metrics("a metric says so", |scrape| {
        scrape.value("genv_enforcer_config_last_reload_successful", &[]).is_ok_and(|it| it == 0.0)
    })?;
    let sha256 = [("sha256", hash.as_str().unwrap_or_default())];
    assert_eq!(enforcer.scrape()?.value("genv_enforcer_config_info", &sha256)?, 1.0);
    let log = enforcer.log();
    assert_eq!(log.matches("the configuration cannot be used").count(), 1, "{log}");
    ensure!(enforcer.setup().said(&["status"])?.contains("not in force"));

    enforcer.setup().rewrite_config(&ends_outsiders("dry-run", "for: 2h, warn: []"))?;
    let status = enforcer.wait_for_status("another one is in force", |status| status["config"]["error"].is_null())?;
    ensure!(status["config"]["hash"] != hash);
    enforcer.wait_for_metrics("a metric says so", |scrape| {
        scrape.value("genv_enforcer_config_last_reload_successful", &[]).is_ok_and(|it| it == 1.0)
    })?;
    Ok(())
}

#[test]
fn what_is_hardly_meant_is_said_at_the_start_and_at_each_change() -> Result<()> {
    let rules =
        |user: &str| format!("version: 1\nrules:\n- {{kind: env-devices, for: 1h, match: {{users: [{user}]}}}}\n");
    let enforcer = Setup::new(&used_by(&[]), &rules("nobody-at-start"))?.start()?;
    let is_said = |user: &str| -> Result<bool> {
        let log = enforcer.log();
        let said = log.lines().filter(|line| line.contains("event=\"config_warning\"") && line.contains(user));
        Ok(said.count() == 1)
    };
    until("it is said at the start", || is_said("nobody-at-start"))?;
    enforcer.setup().rewrite_config(&rules("nobody-later"))?;
    until("it is said of the change", || is_said("nobody-later"))?;
    ensure!(is_said("nobody-at-start")?, "{}", enforcer.log());
    Ok(())
}

#[test]
fn a_configuration_that_cannot_be_used_at_the_start_ends_it_with_its_place() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: [{kind: x}]\n")?;
    let stderr = setup.ended(&["run", "--once", &setup.config_flag()], 2)?;
    ensure!(stderr.contains("enforcer.yaml:2:"), "{stderr}");
    ensure!(!stderr.contains("panicked"), "{stderr}");
    setup.ended(&["run", "--once", "--config=/nonexistent.yaml"], 2)?;
    Ok(())
}

#[test]
fn genv_why_tells_users_what_is_held_against_them() -> Result<()> {
    let (process, setup) = outsider("enforce", "for: 1h, warn: []")?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("a rule is broken", |status| status["violations"][0]["rule"].is_string())?;
    let directory = enforcer.setup().state_directory();
    let directory = format!("--state-directory={}", directory.display());
    let user = format!("uid:{}", victim());
    let why = |words: &[&str]| {
        let mut command = enforcer.setup().program("genv", &["why", &directory])?;
        output(command.args(words))
    };
    let told = why(&["--user", &user])?;
    let text = String::from_utf8(told.stdout)?;
    ensure!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let pid = process.pid().to_string();
    for part in ["non-env-processes", &pid, "nothing follows if it is over by", "To comply"] {
        ensure!(text.contains(part), "{part}: {text}");
    }
    let json = why(&["--user", &user, "--json"])?;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(json["violations"].as_array().map(Vec::len), Some(1));
    until("another user breaks no rule", || {
        let other = why(&["--user", "uid:3999999999"])?;
        Ok(other.status.success() && String::from_utf8(other.stdout)?.contains("breaks no rule"))
    })?;
    let nowhere = enforcer.setup().program("genv", &["why", "--state-directory=/nonexistent"]);
    let nowhere = output(&mut nowhere?)?;
    assert_eq!(nowhere.status.code(), Some(1));
    Ok(())
}

#[test]
fn status_and_log_say_why_what_is_due_is_not_done() -> Result<()> {
    let (process, setup) = outsider("enforce", "for: 0s, warn: []")?;
    // Nothing is done without a record of it.
    let audit = setup.state_directory().join("audit.jsonl");
    std::fs::create_dir(&audit)?;
    let enforcer = setup.start()?;
    let refused = enforcer.wait_for_status("it is refused", |status| status["violations"][0]["why"].is_string())?;
    assert_eq!(refused["violations"][0]["stage"], "due");
    let text = enforcer.setup().said(&["status"])?;
    let (next, why) = ("\n  Next     at the next chance it is ended: process ", "\n  Why not  ");
    ensure!(text.contains(next) && text.contains(why), "{text}");
    let said = text.split_once(why).unwrap_or_default().1;
    ensure!(said.lines().next().is_some_and(|line| line.contains("audit.jsonl")), "{text}");
    let log = enforcer.log();
    ensure!(log.contains("an action is refused") && !log.contains("an action is taken"), "{log}");
    ensure!(is_alive(process.pid()));
    std::fs::remove_dir(&audit)?;
    ends(process.pid())
}

#[test]
fn a_report_shows_a_dry_run_on_one_page() -> Result<()> {
    let (process, setup) = outsider("dry-run", "for: 0s, warn: []")?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("it would have been ended", |status| status["violations"][0]["stage"] == "acted")?;
    let page = enforcer.setup().said(&["report"])?;
    let deed = format!("would have ended process {} (sleep)", process.pid());
    ensure!(page.contains(&deed), "{page}");
    let report: serde_json::Value = serde_json::from_str(&enforcer.setup().said(&["report", "--json", "--days=1"])?)?;
    assert_eq!(report["rows"][0]["rule"], "non-env-processes");
    assert_eq!(report["total"]["would"], 1, "{report}");
    enforcer.setup().ended(&["report", "--days=0"], 2)?;
    enforcer.setup().ended(&["report", "--state-directory=/nonexistent"], 1)?;
    Ok(())
}
