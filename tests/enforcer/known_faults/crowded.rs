//! State files in which one user wrote more records than any user needs.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::process::Sleeper;
use genv_tests::root::FIRST_UID;
use genv_tests::shell::{Account, Outcome, Shell};
use serde_json::{Value, json};

use crate::known_faults::{all_done, edit, read, run, uid, with_environment};

/// Commands that read and commands that change the state.
const COMMANDS: [&str; 4] = ["genv envs", "genv activate --gpus 1", "genv devices", "genv deactivate"];

/// A record in the name of a user, by its number.
type Record = fn(u32, u64, u32) -> Value;

fn record(uid: u32, number: u64, pid: u32) -> Value {
    json!({"eid": format!("crowd-{number}"), "uid": uid, "creation": "20/11/2026 12:00:00", "pids": [pid]})
}

/// Writes this number of records in front of the records of `envs.json`, without spaces. Returns the size of the file.
fn crowd(account: &Account, uid: u32, pid: u32, records: u64, record: Record) -> Result<u64> {
    edit(account, "envs.json", |envs| {
        let mut all: Vec<Value> = (0..records).map(|number| record(uid, number, pid)).collect();
        all.extend(envs["envs"].as_array().cloned().unwrap_or_default());
        envs["envs"] = all.into();
    })?;
    Ok(fs::metadata(account.state().join("envs.json"))?.len())
}

/// Runs commands beside the environment `e1`, which must keep its device and stay in the file.
fn commands_work(account: &Account, how: &str) -> Result<Vec<Outcome>> {
    let outcomes = run(account, Shell::Bash, &COMMANDS)?;
    all_done(&outcomes).with_context(|| how.to_owned())?;
    let visible = outcomes[1].variable("CUDA_VISIBLE_DEVICES");
    ensure!(visible.is_some_and(|it| it != "0"), "{how}: {visible:?}");
    let envs = read(account, "envs.json")?;
    let mut listed = envs["envs"].as_array().into_iter().flatten();
    ensure!(listed.any(|it| it["eid"] == "e1"), "{how}");
    let devices = read(account, "devices.json")?;
    let attachments = devices["devices"][0]["attachments"].to_string();
    ensure!(attachments.contains("\"e1\""), "{how}: {attachments}");
    Ok(outcomes)
}

#[test]
fn records_that_fill_the_file_stop_no_command_of_others_and_end_no_environment() -> Result<()> {
    for (how, records) in [("nearly 8 MiB", 96_000), ("more than 8 MiB", 110_000)] {
        let (account, _member) = with_environment(uid())?;
        let other = Sleeper::start(&[])?;
        let size_bytes = crowd(&account, FIRST_UID, other.pid(), records, record)?;
        ensure!((size_bytes > 8 << 20) == (records == 110_000) && size_bytes > 7 << 20, "{size_bytes}");
        let outcomes = commands_work(&account, how)?;
        let told = outcomes
            .iter()
            .filter(|it| it.stderr.contains("are left out") && it.stderr.contains(&FIRST_UID.to_string()));
        ensure!(told.count() > 0, "{how}: {outcomes:?}");
    }
    Ok(())
}

#[test]
fn a_record_of_many_mebibytes_stops_no_command_of_others_and_ends_no_environment() -> Result<()> {
    let (account, _member) = with_environment(uid())?;
    let size_bytes = crowd(
        &account,
        FIRST_UID,
        1,
        1,
        |uid, _, pid| json!({"eid": "large", "uid": uid, "config": {"name": "n".repeat(30 << 20)}, "pids": [pid]}),
    )?;
    ensure!(size_bytes > 30 << 20, "{size_bytes}");
    commands_work(&account, "30 MiB")?;
    Ok(())
}

#[test]
fn records_that_others_write_in_the_name_of_a_user_end_no_environment_of_that_user() -> Result<()> {
    // The members of most records ended, or never existed.
    let (account, _member) = with_environment(uid())?;
    crowd(&account, uid(), u32::MAX >> 1, 100_000, record)?;
    commands_work(&account, "dead members")?;
    // The records list the process of the environment, which a command of its user made.
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let activate = format!(
        "genv envs activate --eid e1 --uid {} --pid {}; genv devices attach --eid e1 --count 1",
        uid(),
        member.pid()
    );
    all_done(&run(&account, Shell::Bash, &[&activate])?)?;
    crowd(&account, uid(), member.pid(), 100_000, record)?;
    commands_work(&account, "a living member")?;
    Ok(())
}
