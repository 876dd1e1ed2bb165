//! 200 commands at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use genv_tests::patience::{ended, until};
use genv_tests::process::Running;
use genv_tests::shell::Account;
use genv_tests::state;
use serde_json::Value;

use crate::life_cycle::running::{genv, run_with};

const JOBS: usize = 200;
const DEVICES: (&str, &str) = ("GENV_DEVICES", "200");

/// Where the stderr of a job goes.
fn stderr(account: &Account, number: usize) -> PathBuf {
    account.home().join(format!("{number}.stderr"))
}

/// Starts a job with one device, which ends with its stdin.
fn start(account: &Account, number: usize) -> Result<Running> {
    let mut command = genv(account, &["exec", "--gpus", "1", "--", "cat"])?;
    let stderr = File::create(stderr(account, number))?;
    Running::spawn(command.envs([DEVICES]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr))
}

/// How many environments and how many attachments there are.
fn counts(state: &Value) -> [usize; 2] {
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    let devices = state["devices"].as_array().into_iter().flatten();
    [count(&state["environments"]), devices.map(|device| count(&device["attachments"])).sum()]
}

fn is_copied(folder: &Path) -> Result<bool> {
    Ok(fs::read(folder.join(state::FILE))? == fs::read(folder.join(state::COPY))?)
}

/// Fails unless each device has one environment, and each environment one device.
fn has_pairs(state: &Value) -> Result<()> {
    let devices = state["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == JOBS, "{} devices", devices.len());
    let mut holders = BTreeMap::new();
    for device in devices {
        let attachments = device["attachments"].as_array().context("no attachments")?;
        ensure!(attachments.len() == 1, "{device}");
        let eid = attachments[0]["eid"].as_str().context("no id")?;
        let other = holders.insert(eid, &device["index"]);
        ensure!(other.is_none(), "{eid} has {} and {other:?}", device["index"]);
    }
    let environments = state["environments"].as_array().context("no environments")?;
    let eids: BTreeSet<&str> = environments.iter().filter_map(|it| it["eid"].as_str()).collect();
    ensure!(holders.keys().eq(&eids), "{:?} and not {eids:?}", holders.keys());
    Ok(())
}

#[test]
fn two_hundred_commands_at_once_get_one_device_each_and_leave_nothing() -> Result<()> {
    let account = Account::new()?;
    let folder = account.state();
    let jobs = (0..JOBS).map(|number| start(&account, number));
    let mut jobs: Vec<Running> = jobs.collect::<Result<_>>()?;
    let mut state = Value::Null;
    let all_run = until("each job has a device", || {
        for (number, job) in jobs.iter_mut().enumerate() {
            if let Some(status) = job.try_wait()? {
                // On a busy machine the lock may take longer than the 10 s that a command waits for it.
                let said = fs::read_to_string(stderr(&account, number))?;
                ensure!(said.contains("cannot lock genv's state"), "{status}: {said}");
                *job = start(&account, number)?;
            }
        }
        if folder.join(state::FILE).exists() {
            state = state::read(&folder)?;
        }
        Ok(counts(&state) == [JOBS; 2])
    });
    all_run.with_context(|| format!("environments and attachments: {:?}", counts(&state)))?;
    has_pairs(&state)?;
    until("the copy is as the state", || is_copied(&folder))?;

    for job in &mut jobs {
        drop(job.stdin.take());
    }
    for (number, job) in jobs.iter_mut().enumerate() {
        let status = ended(job)?;
        ensure!(status.success(), "{status}: {}", fs::read_to_string(stderr(&account, number))?);
    }
    // A job that waited in vain for the lock at its end has left its environment to the next command.
    let (code, _, said) = run_with(&account, &[DEVICES], &["exec", "--gpus", "200", "--", "true"])?;
    ensure!(code == 0, "{said}");
    let state = state::read(&folder)?;
    ensure!(counts(&state) == [0, 0], "{state}");
    ensure!(is_copied(&folder)?);
    Ok(())
}
