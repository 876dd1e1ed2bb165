//! What a user can plant in the place of the shared state's files: nothing of it is waited for, and none of it is read
//! without end.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, enforcing, sleeper, victim};
use genv_tests::lease::lease;
use genv_tests::nvml_sim::used_by;
use genv_tests::state::{self, Environment};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

const KINDS: [&str; 7] = ["fifo", "socket", "directory", "link to /dev/zero", "1 TiB", "zeros", "braces"];

fn plant(path: &Path, kind: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
    match kind {
        "fifo" => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?,
        "socket" => drop(UnixListener::bind(path)?),
        "directory" => fs::create_dir(path)?,
        "link to /dev/zero" => symlink("/dev/zero", path)?,
        "1 TiB" => File::create(path)?.set_len(1 << 40)?,
        "zeros" => fs::write(path, vec![0; 7 << 20])?,
        _ => fs::write(path, "{\"environments\": [{".repeat(1 << 18))?,
    }
    Ok(())
}

fn peak_mebibytes(enforcer: &Enforcer) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", enforcer.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: u64 = line.and_then(|it| it.split_whitespace().next()).context("no peak")?.parse()?;
    Ok(kibibytes >> 10)
}

#[test]
fn nothing_in_the_place_of_a_state_file_is_waited_for_or_read_without_end() -> Result<()> {
    let rule = "- {kind: env-devices, action: terminate, for: 0s, warn: []}\n";
    let setup = Setup::new(&used_by(&[]), &enforcing(rule))?;
    let genv = setup.genv_directory();
    let (member, process) = (sleeper(&[])?, sleeper(&[("GENV_ENVIRONMENT_ID", "mine")])?);
    let environments = [Environment::new("mine", victim(), member.pid(), &[1])];
    state::write(&genv, 2, &environments)?;
    let enforcer = setup.start()?;
    let before = peak_mebibytes(&enforcer)?;
    let confirmed = format!("genv-confirmed-{}.json", victim());
    let names = [state::FILE, state::COPY, "genv.lock", &confirmed];
    for name in names {
        for kind in KINDS {
            plant(&genv.join(name), kind)?;
            enforcer.wait_for_cycles(1).with_context(|| format!("{kind} as {name}"))?;
            // Nor does a command that only reads wait.
            let mut command = enforcer.setup().program("genv", &["envs"])?;
            genv_tests::patience::output(&mut command).with_context(|| format!("{kind} as {name}"))?;
        }
        let _ = fs::remove_dir(genv.join(name));
        let _ = fs::remove_file(genv.join(name));
        state::write(&genv, 2, &environments)?;
    }
    let peak = peak_mebibytes(&enforcer)?;
    ensure!(peak < before + 150, "{before} MiB, and then {peak} MiB");
    // It sees and acts as before.
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    ends(process.pid())
}

#[test]
fn who_has_a_lease_on_the_state_is_named_and_the_next_change_repairs_it() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), &enforcing("- {kind: env-devices, action: report}"))?;
    let genv = setup.genv_directory();
    let member = sleeper(&[])?;
    state::write(&genv, 2, &[Environment::new("mine", victim(), member.pid(), &[1])])?;
    fs::copy(genv.join(state::FILE), genv.join(state::COPY))?;
    let enforcer = setup.start()?;
    let blind = |status: &Value| status["blind"].to_string();
    let holder = lease(&genv.join(state::FILE))?;
    let stat = fs::metadata(format!("/proc/{}", holder.id()))?;
    let user = genv_core::proc::username(stat.uid());
    let named = format!("{}: user {user} has a lease on it", state::FILE);
    enforcer.wait_for_status("the user is named", |status| blind(status).contains(&named))?;
    let mut command = enforcer.setup().program("genv", &["exec", "--gpus=1", "--", "true"])?;
    let done = genv_tests::patience::output(&mut command)?;
    ensure!(done.status.success(), "{done:?}");
    enforcer.wait_for_status("it sees again", |status| !blind(status).contains("lease"))?;
    let state = state::read(&genv)?;
    ensure!(state["environments"][0]["eid"] == "mine", "{state}");
    Ok(())
}

/// Adds so many records of a user to the state. Returns the size of the file.
fn crowd(genv: &Path, records: usize, name: &str, uid: u32) -> Result<u64> {
    let record = |number: usize| {
        json!({"eid": format!("crowd-{number}"), "uid": uid, "created_timestamp_seconds": state::CREATED_SECONDS,
            "name": name, "members": [{"pid": 1}]})
    };
    state::edit(genv, |state| {
        let environments = state["environments"].as_array_mut().context("no environments")?;
        environments.extend((0..records).map(record));
        Ok(())
    })?;
    Ok(fs::metadata(genv.join(state::FILE))?.len())
}

#[test]
fn a_user_with_tens_of_thousands_of_records_hides_no_violation_of_another() -> Result<()> {
    hides_no_violation(20_000, 250, 6 << 20)
}

#[test]
fn a_user_with_one_record_of_7_mebibytes_hides_no_violation_of_another() -> Result<()> {
    hides_no_violation(1, 7 << 20, 7 << 20)
}

/// Checks that the enforcer ends an outsider although another user has this number of records with names of this size.
fn hides_no_violation(records: usize, name_bytes: usize, least_bytes: u64) -> Result<()> {
    let member = sleeper(&[])?;
    let outside = sleeper(&[])?;
    let rules = "- {kind: env-devices, action: terminate, for: 0s, warn: []}\n\
                 - {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n";
    let setup = Setup::new(&used_by(&[]), &enforcing(rules))?;
    let genv = setup.genv_directory();
    let environments = [Environment::new("mine", victim(), member.pid(), &[1])];
    state::write(&genv, 2, &environments)?;
    let enforcer = setup.start()?;
    let size_bytes = crowd(&genv, records, &"n".repeat(name_bytes), victim() + 1)?;
    ensure!(size_bytes > least_bytes, "{size_bytes}");
    enforcer.setup().rewrite_scenario(&used_by(&[outside.pid()]))?;
    ends(outside.pid()).with_context(|| enforcer.log())?;
    let blind = enforcer.status()?["blind"].to_string();
    ensure!(!blind.contains("cannot read"), "{blind}");
    Ok(())
}
