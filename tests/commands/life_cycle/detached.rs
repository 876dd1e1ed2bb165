//! `genv exec --detach`: jobs that go on without a shell, and the commands about them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::until;
use genv_tests::process::signal;
use genv_tests::shell::Account;
use rustix::process::Signal;
use serde_json::Value;

use crate::life_cycle::members::listed;
use crate::life_cycle::running::run;

fn start(account: &Account, words: &[&str]) -> Result<String> {
    let (code, printed, stderr) = run(account, &[&["exec", "--detach"], words].concat())?;
    ensure!(code == 0 && stderr.is_empty(), "{code} {stderr}");
    Ok(printed.trim().to_owned())
}

fn jobs(account: &Account) -> Result<Vec<Value>> {
    let (code, printed, stderr) = run(account, &["jobs", "--json"])?;
    ensure!(code == 0, "{stderr}");
    Ok(serde_json::from_str(&printed)?)
}

#[test]
fn a_job_has_an_environment_of_its_own_that_ends_with_it() -> Result<()> {
    let account = Account::new()?;
    let script = "echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done; echo well >&2; exit 7";
    let number = start(&account, &["--name", "train", "--gpus", "2", "--", "sh", "-c", script])?;
    assert_eq!(number, "1");
    let running = jobs(&account)?;
    assert_eq!(running[0]["state"], "running");
    assert_eq!(running[0]["devices"], serde_json::json!([0, 1]));
    let environments = listed(&account, "environments")?;
    assert_eq!(environments[0]["eid"], running[0]["eid"]);
    fs::write(account.home().join("go"), "")?;
    for which in [&["wait"][..], &["wait", "1"], &["wait", "train"]] {
        assert_eq!(run(&account, which)?.0, 7);
    }
    let (_, printed, _) = run(&account, &["logs", "--follow", "train"])?;
    assert_eq!(printed, "0,1\nwell\n");
    let (_, table, _) = run(&account, &["jobs"])?;
    ensure!(table.contains("train  exit 7"), "{table}");
    ensure!(listed(&account, "environments")?.is_empty());
    Ok(())
}

#[test]
fn what_cannot_be_started_is_no_job() -> Result<()> {
    let account = Account::new()?;
    for (words, code, part) in [
        (&["--gpus", "9", "--", "true"][..], 4, "cannot attach 9 devices"),
        (&["--", "nosuchprogram"], 127, "cannot run nosuchprogram"),
        (&["--gpus", "x", "--", "true"], 2, "--gpus"),
        (&["--name", "12", "--", "true"], 2, "cannot name a job 12"),
    ] {
        let (ended, printed, stderr) = run(&account, &[&["exec", "--detach"], words].concat())?;
        ensure!(ended == code && printed.is_empty() && stderr.contains(part), "{words:?}: {ended} {printed} {stderr}");
    }
    ensure!(jobs(&account)?.is_empty());
    ensure!(listed(&account, "environments").unwrap_or_default().is_empty());
    for command in ["logs", "wait", "stop"] {
        let (code, _, stderr) = run(&account, &[command, "1"])?;
        ensure!(code == 1 && stderr.contains("there is no job 1"), "{stderr}");
    }
    Ok(())
}

#[test]
fn a_job_is_stopped_by_sigterm_and_then_by_sigkill() -> Result<()> {
    let account = Account::new()?;
    start(&account, &["--", "sh", "-c", "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"])?;
    start(&account, &["--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])?;
    for number in ["1", "2"] {
        until("the job listens", || Ok(run(&account, &["logs", number])?.1.contains("ready")))?;
    }
    assert_eq!(run(&account, &["stop", "1"])?.0, 0);
    let (code, _, stderr) = run(&account, &["stop", "2", "--timeout", "300ms"])?;
    ensure!(code == 0 && stderr.contains("got SIGKILL"), "{stderr}");
    let codes: Vec<_> = jobs(&account)?.iter().map(|job| job["exit_code"].as_u64()).collect();
    assert_eq!(codes, [Some(3), Some(137)]);
    ensure!(run(&account, &["logs", "1"])?.1.contains("saved"));
    ensure!(run(&account, &["stop", "1"])?.2.contains("has ended already"));
    ensure!(listed(&account, "environments")?.is_empty());
    Ok(())
}

#[test]
fn a_job_goes_on_without_the_program_that_waits_for_it() -> Result<()> {
    let account = Account::new()?;
    start(&account, &["--gpus", "1", "--", "sleep", "1000000"])?;
    let record = fs::read(folder(&account)?.join("1/job.json"))?;
    let record: Value = serde_json::from_slice(&record)?;
    let pid = |which: &str| -> Result<u32> { Ok(record[which]["pid"].as_u64().context("no pid")?.try_into()?) };
    let (waiting, running) = (pid("waiting")?, pid("running")?);
    signal(waiting, Signal::KILL)?;
    until("it has ended", || Ok(!is_alive(waiting)))?;
    assert_eq!(jobs(&account)?[0]["state"], "running");
    assert_eq!(run(&account, &["devices", "find", "--eid", record["eid"].as_str().context("no eid")?])?.1, "0\n");
    run(&account, &["stop", "1"])?;
    ensure!(!is_alive(running));
    assert_eq!(jobs(&account)?[0]["state"], "lost");
    let (code, _, stderr) = run(&account, &["wait", "1"])?;
    ensure!(code == 1 && stderr.contains("with an unknown exit code"), "{stderr}");
    let (_, found, _) = run(&account, &["envs", "--no-header"])?;
    ensure!(found.is_empty(), "{found}");
    Ok(())
}

fn folder(account: &Account) -> Result<PathBuf> {
    let folder = account.home().join(".local/state/genv/jobs");
    Ok(fs::read_dir(folder)?.next().context("no host")??.path())
}

#[test]
fn stop_takes_the_job_of_a_name_that_runs_and_logs_the_newest() -> Result<()> {
    let account = Account::new()?;
    for line in ["echo first; exec sleep 1000000", "echo second; exec sleep 1000000", "echo third"] {
        start(&account, &["--name", "train", "--", "sh", "-c", line])?;
    }
    assert_eq!(run(&account, &["wait", "train"])?.0, 0);
    assert_eq!(run(&account, &["logs", "train"])?.1, "third\n");
    for expected in [["running", "ended", "ended"], ["ended"; 3]] {
        let (code, _, stderr) = run(&account, &["stop", "train"])?;
        ensure!(code == 0 && stderr.is_empty(), "{stderr}");
        let states: Vec<Value> = jobs(&account)?.iter().map(|job| job["state"].clone()).collect();
        assert_eq!(states, expected);
    }
    let (_, _, stderr) = run(&account, &["stop", "train"])?;
    ensure!(stderr.contains("job 3 (train) has ended"), "{stderr}");
    // A number is not the name that an older program accepted.
    let record = folder(&account)?.join("3/job.json");
    fs::write(&record, fs::read_to_string(&record)?.replace("\"train\"", "\"1\""))?;
    assert_eq!(run(&account, &["logs", "1"])?.1, "first\n");
    Ok(())
}

#[test]
fn a_damaged_record_hides_no_other_job() -> Result<()> {
    let account = Account::new()?;
    for _ in 0..2 {
        start(&account, &["--", "echo", "done"])?;
    }
    assert_eq!(run(&account, &["wait", "2"])?.0, 0);
    let record = folder(&account)?.join("1/job.json");
    fs::write(&record, "")?;
    let start = ["exec", "--detach", "--", "sleep", "1000000"];
    let (code, printed, stderr) = run(&account, &start)?;
    ensure!(code == 0 && printed == "3\n" && stderr.is_empty(), "{stderr}");
    let note = format!("genv: cannot read {}: ", record.display());
    for (words, part) in [
        (&["jobs", "--no-header"][..], "2 "),
        (&["logs", "2"], "done\n"),
        (&["logs", "--follow", "2"], "done\n"),
        (&["wait", "2"], ""),
        (&["stop", "3"], ""),
    ] {
        let (code, printed, stderr) = run(&account, words)?;
        ensure!(code == 0 && printed.starts_with(part), "{words:?}: {code} {printed}");
        ensure!(stderr.starts_with(&note) && stderr.lines().count() == 1, "{words:?}: {stderr}");
    }
    let (code, _, stderr) = run(&account, &["wait", "1"])?;
    ensure!(code == 1 && stderr.contains("no job 1"), "{stderr}");
    Ok(())
}

#[test]
fn a_job_that_waits_for_devices_tells_that_it_has_not_started() -> Result<()> {
    let account = Account::new()?;
    let script = "genv exec --detach --gpus 1 --wait=1s -- true; genv jobs --no-header";
    let held = ["exec", "--gpus", "4", "--", "sh", "-c", script];
    let (_, printed, stderr) = run(&account, &held)?;
    ensure!(printed.is_empty(), "{printed}");
    let first = "genv: the job starts when it gets its devices: if this terminal is closed before, it does not start\n";
    ensure!(stderr.starts_with(first) && stderr.contains("waiting for devices"), "{stderr}");
    Ok(())
}
