//! What is done, and what is only said.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, ends_outsiders, is_alive, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use serde_json::Value;

const RULE: &str = "non-env-processes";
const AT_ONCE: &str = "for: 0s, warn: []";

fn actions(result: &str) -> [(&'static str, String); 3] {
    [("rule", RULE.to_owned()), ("action", "terminate".to_owned()), ("result", result.to_owned())]
}

/// How many actions went so, of whoever broke the rule.
fn count(scrape: &genv_tests::metrics::Scrape, result: &str) -> f64 {
    let labels = actions(result);
    let labels: Vec<_> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let all = scrape.all("genv_enforcer_actions_total", &labels);
    all.iter().map(|(_, value)| value).sum()
}

#[test]
fn promise_04_a_fresh_install_only_reports() -> Result<()> {
    let process = sleeper(&[])?;
    let config = format!("version: 1\nrules:\n- {{kind: {RULE}, action: kill, {AT_ONCE}}}\n");
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let scrape = enforcer.wait_for_metrics("an action would be taken", |scrape| count(scrape, "would") == 1.0)?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(process.pid()));
    assert_eq!(scrape.value("genv_enforcer_mode", &[("mode", "dry-run")])?, 1.0);
    assert_eq!(scrape.value("genv_enforcer_mode", &[("mode", "enforce")])?, 0.0);
    assert_eq!(count(&enforcer.scrape()?, "would"), 1.0, "it is said once");
    assert_eq!(enforcer.status()?["mode"], "dry-run");
    for line in enforcer.audit()? {
        ensure!(line["result"] != "done", "{line}");
    }
    // Without rules nothing is guessed either.
    let bare = enforcer.setup().output(&["run", "--once"])?;
    assert_eq!(bare.status.code(), Some(2));
    let stderr = String::from_utf8(bare.stderr)?;
    ensure!(stderr.contains("no rules are named"), "{stderr}");
    Ok(())
}

/// Ends its first thread; the other thread sleeps on.
const FIRST_THREAD_ENDS: &str = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000000,)).start()
ctypes.CDLL(None).pthread_exit(None)";

#[test]
fn a_process_of_which_only_the_first_thread_ended_is_judged_as_before() -> Result<()> {
    let mut command = Command::new("python3");
    command.args(["-c", FIRST_THREAD_ENDS]).env("PATH", "/usr/bin");
    let process = Sleeper::spawn(as_victim(&mut command))?;
    let stat = format!("/proc/{}/stat", process.pid());
    until("its first thread ends", || Ok(fs::read_to_string(&stat)?.contains(") Z ")))?;
    let config = ends_outsiders("enforce", AT_ONCE);
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let _ = enforcer.wait_for_metrics("it was ended", |scrape| count(scrape, "done") == 1.0)?;
    until("it ends", || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        Ok(stat.split_whitespace().nth(19).is_none_or(|threads| threads == "1"))
    })
}

#[test]
fn a_process_outside_is_warned_of_then_ended_and_counted_from_zero() -> Result<()> {
    let process = sleeper(&[])?;
    let config = ends_outsiders("enforce", "for: 300ms, warn: [2s]");
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let status = enforcer.wait_for_status("it is warned of", |status| status["violations"][0]["stage"] == "warned")?;
    ensure!(is_alive(process.pid()), "{status}");
    let violation = &status["violations"][0];
    assert_eq!(violation["rule"], RULE);
    assert_eq!(violation["subject"], format!("process {}", process.pid()));
    let scrape = enforcer.scrape()?;
    assert_eq!(count(&scrape, "done"), 0.0);
    ensure!(
        !scrape.all("genv_enforcer_actions_total", &[("result", "done")]).is_empty(),
        "what is to rise begins at 0"
    );
    ends(process.pid())?;
    enforcer.wait_for_metrics("that is counted", |scrape| {
        count(scrape, "done") == 1.0
            && scrape.all("genv_enforcer_warnings_total", &[("rule", RULE)]).iter().map(|(_, value)| value).sum::<f64>()
                == 1.0
    })?;
    let audit = enforcer.audit()?;
    let results: Vec<_> = audit.iter().map(|line| &line["result"]).collect();
    assert_eq!(results, ["intended", "done"]);
    let log = enforcer.log();
    let warned = log.find("event=\"warning\"");
    let ended = log.find("event=\"action\"");
    ensure!(warned.is_some() && warned < ended, "{log}");
    Ok(())
}

#[test]
fn what_was_only_said_counts_for_nothing_once_it_is_enforced() -> Result<()> {
    let process = sleeper(&[])?;
    let when = "for: 0s, warn: [3s]";
    let setup = Setup::new(&used_by(&[process.pid()]), &ends_outsiders("dry-run", when))?;
    let enforcer = setup.start()?;
    enforcer.wait_for_metrics("it would have been ended", |scrape| count(scrape, "would") == 1.0)?;
    enforcer.setup().rewrite_config(&ends_outsiders("enforce", when))?;
    let status = enforcer.wait_for_status("it is warned of anew", |status| {
        status["mode"] == "enforce" && status["violations"][0]["stage"] == "warned"
    })?;
    ensure!(is_alive(process.pid()));
    let end = status["violations"][0]["at_seconds"].as_f64();
    ensure!(end > status["updated_timestamp_seconds"].as_f64());
    ends(process.pid())?;
    Ok(())
}

#[test]
fn what_was_done_is_not_done_again_after_a_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let told = folder.path().join("told");
    let mut stubborn = Command::new("sh");
    stubborn
        .current_dir(folder.path())
        .args(["-c", "trap 'echo told >>told' TERM; touch ready; while :; do sleep 0.05; done"]);
    let process = Sleeper::spawn(as_victim(&mut stubborn))?;
    until("it waits for signals", || Ok(folder.path().join("ready").exists()))?;
    let config = ends_outsiders("enforce", AT_ONCE);
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    let signals = || -> usize {
        let text = fs::read_to_string(&told).unwrap_or_default();
        text.lines().count()
    };
    until("it is told to end", || Ok(signals() > 0))?;
    until("that is written down", || Ok(enforcer.audit()?.iter().any(|line| line["result"] == "done")))?;
    let setup = enforcer.kill()?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(5)?;
    assert_eq!(signals(), 1);
    let status = enforcer.status()?;
    assert_eq!(status["violations"][0]["stage"], "acted", "{status:#}");
    ensure!(is_alive(process.pid()));
    Ok(())
}

#[test]
fn one_cycle_acts_remembers_and_prints_what_it_found() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), "version: 1\nrules: []\n")?;
    let config = setup.config();
    let run = |text: &str| -> Result<String> {
        setup.rewrite_config(text)?;
        let config = format!("--config={}", config.display());
        setup.said(&["run", "--once", &config])
    };
    let young = run(&ends_outsiders("enforce", "for: 1h, warn: []"))?;
    ensure!(young.contains("nothing follows if it is over by"), "{young}");
    ensure!(is_alive(process.pid()));
    let due = run(&ends_outsiders("enforce", AT_ONCE))?;
    ensure!(due.contains("it is ended"), "{due}");
    ends(process.pid())?;
    setup.rewrite_scenario(&used_by(&[]))?;
    let nothing = run(&ends_outsiders("enforce", AT_ONCE))?;
    ensure!(nothing.contains("Nobody breaks a rule"), "{nothing}");
    Ok(())
}

#[test]
fn genv_enforce_of_genv_1_4_3_ends_what_it_ended_there() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), "")?;
    let enforce = |words: &[&str]| -> Result<String> {
        let mut command = setup.program("genv", &["enforce"])?;
        let output = genv_tests::patience::output(command.args(words))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let said = enforce(&["--interval", "0"])?;
    ensure!(said.contains("Nobody breaks a rule"), "{said}");
    ensure!(is_alive(process.pid()), "it is off by default");
    enforce(&["--non-env-processes", "--interval", "0"])?;
    ends(process.pid())?;
    Ok(())
}

#[test]
fn a_report_of_genv_1_4_3_is_carried_out_and_audited() -> Result<()> {
    let process = sleeper(&[])?;
    let pid = process.pid();
    let setup = Setup::new(&used_by(&[pid]), "")?;
    let report = |index: u32| {
        serde_json::json!({
            "terminate": {"processes": [
                {"pid": pid, "used_gpu_memory": [{"index": index, "gpu_memory": "1gi"}], "eid": null}
            ]},
            "detach": {},
        })
    };
    let execute = |report: Value| -> Result<Option<i32>> {
        let file = setup.folder().join("report.json");
        fs::write(&file, report.to_string())?;
        let genv = setup.program("genv", &[])?;
        let mut command = Command::new("sh");
        command
            .envs(genv.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .args(["-c", "exec \"$0\" usage execute <\"$1\""])
            .arg(genv.get_program())
            .arg(&file);
        Ok(genv_tests::patience::output(&mut command)?.status.code())
    };
    assert_eq!(execute(report(1))?, Some(1), "it does not use that device");
    ensure!(is_alive(pid));
    assert_eq!(execute(report(0))?, Some(0));
    ends(pid)?;
    let audit = fs::read_to_string(setup.state_directory().join("audit.jsonl"))?;
    ensure!(audit.contains("execute-report"), "{audit}");
    Ok(())
}
