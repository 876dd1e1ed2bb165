//! `genv exec --detach`: jobs that go on without a shell, and the commands about them.

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::{output, until};
use genv_tests::process::signal;
use genv_tests::shell::Account;
use rustix::process::Signal;
use serde_json::Value;

use crate::members::listed;
use crate::running::genv;

/// The exit code, stdout and stderr of a genv command.
fn run(account: &Account, words: &[&str]) -> Result<(i32, String, String)> {
    let done = output(&mut genv(account, words)?)?;
    let code = done.status.code().context("a signal ended it")?;
    Ok((
        code,
        String::from_utf8(done.stdout)?,
        String::from_utf8(done.stderr)?,
    ))
}

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
    let script =
        "echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done; echo well >&2; exit 7";
    let number = start(
        &account,
        &["--name", "train", "--gpus", "2", "--", "sh", "-c", script],
    )?;
    assert_eq!(number, "1");
    let running = jobs(&account)?;
    assert_eq!(running[0]["state"], "running");
    assert_eq!(running[0]["devices"], serde_json::json!([0, 1]));
    let environments = listed(&account, "envs.json", "envs")?;
    assert_eq!(environments[0]["eid"], running[0]["eid"]);
    std::fs::write(account.home().join("go"), "")?;
    for which in [&["wait"][..], &["wait", "1"], &["wait", "train"]] {
        assert_eq!(run(&account, which)?.0, 7);
    }
    let (_, printed, _) = run(&account, &["logs", "--follow", "train"])?;
    assert_eq!(printed, "0,1\nwell\n");
    let (_, table, _) = run(&account, &["jobs"])?;
    ensure!(table.contains("train  exit 7"), "{table}");
    ensure!(listed(&account, "envs.json", "envs")?.is_empty());
    Ok(())
}

#[test]
fn what_cannot_be_started_is_no_job() -> Result<()> {
    let account = Account::new()?;
    for (words, code, part) in [
        (
            &["--gpus", "9", "--", "true"][..],
            4,
            "cannot attach 9 devices",
        ),
        (&["--", "nosuchprogram"], 127, "cannot run nosuchprogram"),
        (&["--gpus", "x", "--", "true"], 2, "--gpus"),
    ] {
        let (ended, printed, stderr) = run(&account, &[&["exec", "--detach"], words].concat())?;
        ensure!(
            ended == code && printed.is_empty() && stderr.contains(part),
            "{words:?}: {ended} {printed} {stderr}"
        );
    }
    ensure!(jobs(&account)?.is_empty());
    ensure!(
        listed(&account, "envs.json", "envs")
            .unwrap_or_default()
            .is_empty()
    );
    for command in ["logs", "wait", "stop"] {
        let (code, _, stderr) = run(&account, &[command, "1"])?;
        ensure!(
            code == 1 && stderr.contains("there is no job 1"),
            "{stderr}"
        );
    }
    Ok(())
}

#[test]
fn a_job_is_stopped_by_sigterm_and_then_by_sigkill() -> Result<()> {
    let account = Account::new()?;
    start(
        &account,
        &[
            "--",
            "sh",
            "-c",
            "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done",
        ],
    )?;
    start(
        &account,
        &[
            "--",
            "sh",
            "-c",
            "trap '' TERM; echo ready; while :; do sleep 0.05; done",
        ],
    )?;
    for number in ["1", "2"] {
        until("the job listens", || {
            Ok(run(&account, &["logs", number])?.1.contains("ready"))
        })?;
    }
    assert_eq!(run(&account, &["stop", "1"])?.0, 0);
    let (code, _, stderr) = run(&account, &["stop", "2", "--timeout", "300ms"])?;
    ensure!(code == 0 && stderr.contains("got SIGKILL"), "{stderr}");
    let codes: Vec<_> = jobs(&account)?
        .iter()
        .map(|job| job["exit_code"].as_u64())
        .collect();
    assert_eq!(codes, [Some(3), Some(137)]);
    ensure!(run(&account, &["logs", "1"])?.1.contains("saved"));
    ensure!(
        run(&account, &["stop", "1"])?
            .2
            .contains("has ended already")
    );
    ensure!(listed(&account, "envs.json", "envs")?.is_empty());
    Ok(())
}

#[test]
fn a_job_goes_on_without_the_program_that_waits_for_it() -> Result<()> {
    let account = Account::new()?;
    start(&account, &["--gpus", "1", "--", "sleep", "1000000"])?;
    let folder = account.home().join(".local/state/genv/jobs");
    let host = std::fs::read_dir(folder)?.next().context("no host")??;
    let record: Value = serde_json::from_slice(&std::fs::read(host.path().join("1/job.json"))?)?;
    let pid = |which: &str| -> Result<u32> {
        Ok(record[which]["pid"]
            .as_u64()
            .context("no pid")?
            .try_into()?)
    };
    let (waiting, running) = (pid("waiting")?, pid("running")?);
    signal(waiting, Signal::KILL)?;
    until("it has ended", || Ok(!is_alive(waiting)))?;
    assert_eq!(jobs(&account)?[0]["state"], "running");
    assert_eq!(
        run(
            &account,
            &[
                "devices",
                "find",
                "--eid",
                record["eid"].as_str().context("no eid")?
            ]
        )?
        .1,
        "0\n"
    );
    run(&account, &["stop", "1"])?;
    ensure!(!is_alive(running));
    assert_eq!(jobs(&account)?[0]["state"], "lost");
    let (code, _, stderr) = run(&account, &["wait", "1"])?;
    ensure!(code == 1 && stderr.contains("nothing saw how"), "{stderr}");
    let (_, found, _) = run(&account, &["envs", "--no-header"])?;
    ensure!(found.is_empty(), "{found}");
    Ok(())
}
