//! What administrators ask genv-enforcer: what rules would have done to a recording, and why a process is safe or not.

use std::fs::{self, File};
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, ends_outsiders, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{self, until};
use serde_json::Value;

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complained(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `genv snapshot --follow` records until it has looked at the devices for so long: on a busy machine a look is late,
/// and until then its lines repeat the one before.
fn record(setup: &Setup, seconds: f64) -> Result<String> {
    let path = setup.folder().join("recording.jsonl");
    let mut command = setup.program("genv", &["snapshot", "--follow", "--interval=100ms"])?;
    let mut child = command.stdout(File::create(&path)?).spawn()?;
    let mut recorded = String::new();
    let done = until("it is recorded", || {
        recorded = fs::read_to_string(&path)?;
        let whole = recorded.rfind('\n').map_or(0, |end| end + 1);
        recorded.truncate(whole);
        let mut looks = recorded.lines().filter_map(|line| {
            let snapshot: Value = serde_json::from_str(line).ok()?;
            snapshot["collectors"]["gpu"]["timestamp_seconds"].as_f64()
        });
        let (first, last) = (looks.next(), looks.next_back());
        let looked = first.zip(last).is_some_and(|(first, last)| last - first > seconds);
        Ok(looked && recorded.lines().count() >= LINES)
    });
    child.kill()?;
    patience::ended(&mut child)?;
    done?;
    Ok(recorded)
}

/// At least so many lines are recorded, of which one is damaged.
const LINES: usize = 20;

#[test]
fn a_real_recording_is_replayed_and_its_damage_is_placed() -> Result<()> {
    let process = sleeper(&[])?;
    let rules = ends_outsiders("enforce", "for: 500ms, warn: [500ms]");
    let setup = Setup::new(&used_by(&[process.pid()]), &rules)?;
    let recording = record(&setup, 1.5)?;
    let path = setup.folder().join("whole.jsonl");
    fs::write(&path, &recording)?;
    let config = setup.config_flag();
    let whole = setup.said(&["replay", "--json", &config, &path.display().to_string()])?;
    let events: Vec<Value> = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let words: Vec<_> = events.iter().filter_map(|it| it["event"].as_str()).collect();
    assert_eq!(words, ["violation", "warning", "action", "summary"], "{whole}");
    let target = events[2]["target"].as_str().context("no target")?;
    ensure!(target.starts_with(&format!("process {}", process.pid())), "{target}");
    assert_eq!(events[3]["snapshots"], recording.lines().count());
    let clock = events[2]["at_seconds"].as_f64() > events[1]["end_seconds"].as_f64().map(|it| it - 0.01);
    ensure!(clock, "before its end: {whole}");
    ensure!(genv_tests::enforcer::is_alive(process.pid()), "nothing is done");
    ensure!(!setup.state_directory().join("audit.jsonl").exists());

    let mut lines: Vec<&str> = recording.lines().collect();
    lines[10] = "{\"version\": 1, \"hostname\": ";
    fs::write(&path, lines.join("\n"))?;
    let damaged = setup.output(&["replay", &config, &path.display().to_string()])?;
    assert_eq!(damaged.status.code(), Some(1));
    let said = complained(&damaged);
    ensure!(said.contains("line 11 is left out: column"), "{said}");
    ensure!(printed(&damaged).contains("would terminate"), "{}", printed(&damaged));

    setup.ended(&["replay", "/nonexistent", &config], 1)?;
    setup.rewrite_config("version: 1\nruls: []\n")?;
    let said = setup.ended(&["replay", &config, &path.display().to_string()], 2)?;
    ensure!(said.contains("enforcer.yaml:2:1"), "{said}");
    Ok(())
}

#[test]
fn a_process_is_explained_as_far_as_the_daemon_has_come() -> Result<()> {
    let (stray, idle) = (sleeper(&[])?, sleeper(&[])?);
    let setup = Setup::new(&used_by(&[stray.pid()]), &ends_outsiders("enforce", "for: 100ms, warn: [1h]"))?;
    let pid = stray.pid().to_string();
    let said = setup.ended(&["explain", &pid], 2)?;
    ensure!(said.contains("--config"), "{said}");

    let enforcer = setup.start()?;
    let status = enforcer.wait_for_status("it is warned of", |status| status["violations"][0]["stage"] == "warned")?;
    // What is to rise begins at 0.
    let scrape = enforcer.scrape()?;
    let done = scrape.all("genv_enforcer_actions_total", &[("action", "terminate"), ("result", "done")]);
    ensure!(!done.is_empty() && done.iter().all(|(_, value)| *value == 0.0), "{done:?}");
    let explain = |words: &[&str]| -> Result<Value> {
        let said = enforcer.setup().said(&[&["explain", "--json"], words].concat())?;
        Ok(serde_json::from_str(&said)?)
    };
    let answer = explain(&[&pid])?;
    assert_eq!(answer["verdict"]["safe"], false, "{answer:#}");
    assert_eq!(answer["mode"], "enforce");
    let rule = &answer["rules"][0];
    assert_eq!(rule["standing"], "ends");
    assert_eq!(rule["violations"][0]["stage"], "warned");
    let end = |violation: &Value| violation["at_seconds"].as_f64().unwrap_or_default();
    let apart = end(&rule["violations"][0]) - end(&status["violations"][0]);
    ensure!(apart.abs() < 1.0, "the end is another: {answer:#} {status:#}");
    let text = enforcer.setup().said(&["explain", &pid])?;
    ensure!(text.contains("Not safe: to be ended by non-env-processes."), "{text}");
    ensure!(text.contains("its environ names none"), "{text}");

    let without = explain(&[&idle.pid().to_string()])?;
    assert_eq!(without["verdict"]["safe"], true);
    let why = without["verdict"]["why"].as_str().unwrap_or_default();
    ensure!(why.contains("it uses no device"), "{why}");
    Ok(())
}

/// Where root does not start the daemon, its files belong to the user who asks.
#[test]
#[ignore = "needs root"]
fn who_may_not_read_what_the_enforcer_remembers_is_told_what_it_publishes() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let stray = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[stray.pid()]), &ends_outsiders("enforce", "for: 100ms, warn: [1h]"))?;
    fs::set_permissions(setup.folder(), fs::Permissions::from_mode(0o755))?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("it is warned of", |status| status["violations"][0]["stage"] == "warned")?;
    let pid = stray.pid().to_string();
    let mut command = enforcer.setup().command(&["explain", "--json", &pid])?;
    let output = patience::output(genv_tests::enforcer::as_victim(&mut command))?;
    ensure!(output.status.success(), "{}", complained(&output));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let notes = answer["notes"].to_string();
    ensure!(notes.contains("history.json") && notes.contains("publishes"), "{notes}");
    assert_eq!(answer["rules"][0]["violations"][0]["stage"], "warned", "{answer:#}");
    Ok(())
}

#[test]
fn a_process_that_is_not_there_is_an_error_and_no_pid_is_wrong_usage() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), &ends_outsiders("dry-run", "for: 0s, warn: []"))?;
    let config = setup.config_flag();
    let gone = sleeper(&[])?.pid().to_string();
    let said = setup.ended(&["explain", &config, &gone], 1)?;
    ensure!(said.contains("there is none"), "{said}");
    for pid in ["0", "-1", "self", ""] {
        setup.ended(&["explain", &config, "--", pid], 2)?;
    }
    Ok(())
}

#[test]
fn no_process_is_safe_for_using_no_device_while_a_devices_processes_are_not_known() -> Result<()> {
    let process = sleeper(&[])?;
    let pid = process.pid().to_string();
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{}}, {{faults: [{{lost: true}}]}}]\n\
         \x20 processes: [{{pid: {pid}, devices: [{{index: 1, memory: 1gi}}]}}]\n"
    );
    let setup = Setup::new(&scenario, &ends_outsiders("dry-run", "warn: []"))?;
    let config = setup.config_flag();
    let text = setup.said(&["explain", &pid, &config])?;
    ensure!(!text.contains("it uses no device"), "{text}");
    ensure!(text.contains("\nSafe: nobody knows now whether it uses a device ("), "{text}");
    Ok(())
}

#[test]
fn a_user_named_by_uid_is_shown_what_is_frozen_here_and_by_an_enforcer_elsewhere() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), &ends_outsiders("dry-run", "warn: []"))?;
    let directory = setup.folder().join("told");
    fs::create_dir_all(directory.join("elsewhere"))?;
    let status = |rule: &str| {
        let frozen = format!("[{{\"rule\": \"{rule}\", \"username\": \"root\", \"why\": \"dark\"}}]");
        format!("{{\"mode\": \"enforce\", \"frozen\": {frozen}}}")
    };
    fs::write(directory.join("status.json"), status("here"))?;
    fs::write(directory.join("elsewhere/status.json"), status("far"))?;
    let mut command = setup.program("genv", &["why", "--user=uid:0", "--state-directory"])?;
    let output = patience::output(command.arg(&directory))?;
    let text = printed(&output);
    ensure!(text.contains("here: ") && text.contains("far: "), "{text}");
    ensure!(!text.contains("breaks no rule"), "{text}");
    Ok(())
}
