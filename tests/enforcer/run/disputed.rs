//! Records of environments that others changed: what they take from a user has no consequence until that user confirms
//! it, and ages are those that the kernel bears out.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use genv_core::state::{StateDirectory, StateSource as _};
use genv_tests::enforcer::{Enforcer, Setup, as_victim, ends, enforcing, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use rustix::process::geteuid;
use serde_json::Value;

pub(super) const INSIDE: [(&str, &str); 1] = [("GENV_ENVIRONMENT_ID", "e1")];

/// An enforcer of one rule that acts at once, and an environment of the victim's on device 0 with a member and a process
/// that uses 1 GiB of it.
pub(super) struct Lab {
    pub(super) enforcer: Enforcer,
    pub(super) member: Sleeper,
    pub(super) process: Sleeper,
}

pub(super) fn rule(rule: &str) -> String {
    enforcing(&format!("- {{{rule}, for: 0s, warn: []}}\n"))
}

pub(super) fn environment(member: &Sleeper) -> Environment {
    Environment::new("e1", victim(), member.pid(), &[0])
}

/// Changes an entry of the list in a state file.
pub(super) fn change(folder: &Path, name: &str, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
    let path = folder.join(format!("{name}.json"));
    let mut document: Value = serde_json::from_slice(&fs::read(&path)?)?;
    change(document[name].as_array_mut().context("no list")?);
    let new = folder.join(".new");
    fs::write(&new, document.to_string())?;
    Ok(fs::rename(new, path)?)
}

impl Lab {
    pub(super) fn new(of_rule: &str, of_environment: impl FnOnce(&mut Environment)) -> Result<Self> {
        let member = sleeper(&[])?;
        let process = sleeper(&INSIDE)?;
        let setup = Setup::new(&used_by(&[process.pid()]), &rule(of_rule))?;
        let mut own = environment(&member);
        of_environment(&mut own);
        state::write(&setup.genv_directory(), 2, &[own])?;
        let enforcer = setup.start()?;
        enforcer.wait_for_cycles(2)?;
        ensure!(is_alive(process.pid()), "{}", enforcer.log());
        Ok(Self { enforcer, member, process })
    }

    pub(super) fn genv_directory(&self) -> std::path::PathBuf {
        self.enforcer.setup().genv_directory()
    }

    /// Waits until the record is disputed for this reason, and some cycles more: its process lives.
    pub(super) fn is_spared(&self, why: &str) -> Result<()> {
        let is_disputed = |status: &Value| {
            let disputed = status["disputed_records"].to_string();
            disputed.contains(why)
        };
        self.enforcer.wait_for_status(why, is_disputed)?;
        self.enforcer.wait_for_cycles(3)?;
        ensure!(is_alive(self.process.pid()), "{}", self.enforcer.log());
        let scrape = self.enforcer.scrape()?;
        let disputed = scrape.all("genv_state_disputed_records", &[]);
        ensure!(disputed.iter().any(|(_, value)| *value >= 1.0), "{disputed:?}");
        let said = self.enforcer.setup().said(&["status"])?;
        ensure!(said.contains("Disputed"), "{said}");
        let said = self.why()?;
        ensure!(said.contains("is disputed") && said.contains(why), "{said}");
        Ok(())
    }

    /// The output of `genv why` about the victim.
    fn why(&self) -> Result<String> {
        let user = format!("--user=uid:{}", victim());
        let setup = self.enforcer.setup();
        let folder = format!("--state-directory={}", setup.state_directory().display());
        let output = setup.program("genv", &["why", &user, &folder])?.output()?;
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Runs a command of genv in a shell of its own, as the victim.
pub(super) fn genv(setup: &Setup, eid: Option<&str>, zone: &str, line: &str) -> Result<()> {
    for (path, mode) in [(setup.folder(), 0o755), (&setup.genv_directory(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let genv = setup.program("genv", &[])?;
    let folder = Path::new(genv.get_program()).parent().context("no folder")?;
    let mut command = Command::new("bash");
    let given = genv.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command
        .envs(given)
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .env("HOME", setup.folder())
        .env("TZ", zone)
        .env_remove("GENV_ENVIRONMENT_ID")
        .envs(eid.map(|eid| ("GENV_ENVIRONMENT_ID", eid)))
        .current_dir(setup.folder())
        .args(["-c", &format!("eval \"$(genv shell --init)\"; {line}")]);
    let output = patience::output(as_victim(&mut command))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {stderr}");
    Ok(())
}

#[test]
fn memory_that_another_lowers_ends_nothing() -> Result<()> {
    let lab = Lab::new("kind: env-memory, action: terminate", |it| {
        it.gpu_memory = Some("8gi");
    })?;
    let folder = lab.genv_directory();
    change(&folder, "envs", |envs| envs[0]["config"]["gpu_memory"] = "1mi".into())?;
    change(&folder, "devices", |devices| {
        devices[0]["attachments"][0]["gpu_memory"] = "1mi".into();
    })?;
    lab.is_spared("its memory on device 0 was lowered")?;
    // Nor after a restart.
    let (_, setup) = lab.enforcer.terminate()?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", enforcer.log());
    Ok(())
}

#[test]
fn a_device_that_another_takes_ends_nothing_and_one_that_its_user_gives_back_counts() -> Result<()> {
    let rule = "kind: env-devices, action: terminate";
    let lab = Lab::new(rule, |_| ())?;
    change(&lab.genv_directory(), "devices", |devices| {
        devices[0]["attachments"] = Value::Array(Vec::new());
    })?;
    lab.is_spared("device 0 was taken from it")?;
    // Its user attaches the device again.
    genv(lab.enforcer.setup(), Some("e1"), "UTC", "genv attach --index 0")?;
    lab.enforcer.wait_for_status("nothing is disputed", |status| {
        status["disputed_records"].as_array().is_some_and(Vec::is_empty)
    })?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    drop(lab);

    let lab = Lab::new(rule, |_| ())?;
    genv(lab.enforcer.setup(), Some("e1"), "UTC", "genv detach --index 0")?;
    ends(lab.process.pid())
}

#[test]
fn a_record_that_another_removes_ends_nothing_while_a_process_of_it_lives() -> Result<()> {
    let lab = Lab::new("kind: non-env-processes, action: terminate", |_| ())?;
    state::write(&lab.genv_directory(), 2, &[])?;
    lab.is_spared("it was removed while processes of it live")?;
    // The process keeps the environment as its shell did.
    let Lab { enforcer, member, process } = lab;
    drop(member);
    enforcer.wait_for_cycles(5)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    Ok(())
}

#[test]
fn a_process_of_a_removed_record_leaves_its_device_to_no_other_of_its_user() -> Result<()> {
    let [first, second] = [sleeper(&INSIDE)?, sleeper(&[("GENV_ENVIRONMENT_ID", "e2")])?];
    let scenario = |of_first: &[u32]| {
        let uses = |pid, gpus: &[u32]| {
            let gpus = gpus.iter().map(|gpu| format!("{{index: {gpu}, memory: 1gi, utilization: 0.9}}"));
            let gpus = gpus.collect::<Vec<_>>().join(", ");
            format!("{{pid: {pid}, devices: [{gpus}]}}")
        };
        let (first, second) = (uses(first.pid(), of_first), uses(second.pid(), &[1]));
        format!("version: 1\nhosts:\n- devices: [{{count: 2, memory: 80gi}}]\n  processes: [{first}, {second}]\n")
    };
    let idle = "kind: idle, below: 0.05, over: 2s, action: detach";
    let setup = Setup::new(&scenario(&[0, 1]), &rule(idle))?;
    let folder = setup.genv_directory();
    let records = |of_first: &[usize]| {
        let first = Environment::new("e1", victim(), first.pid(), of_first);
        let second = Environment::new("e2", victim(), second.pid(), &[1]);
        state::write(&folder, 2, &[first, second])
    };
    records(&[0, 1])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(3)?;
    // It used the other one's device too, and gave it back.
    enforcer.setup().rewrite_scenario(&scenario(&[0]))?;
    records(&[0])?;
    enforcer.wait_for_cycles(3)?;
    state::write(&folder, 2, &[])?;
    enforcer.wait_for_status("the records are gone", |status| {
        let disputed = status["disputed_records"].to_string();
        disputed.contains("it was removed while processes of it live")
    })?;
    enforcer.wait_for_cycles(3)?;
    records(&[0])?;
    // For longer than the rule's window.
    enforcer.wait_for_cycles(30)?;
    let devices: Value = serde_json::from_slice(&fs::read(folder.join("devices.json"))?)?;
    let holder = &devices["devices"][1]["attachments"][0]["eid"];
    ensure!(holder == "e2", "{devices}\n{:?}", enforcer.audit()?);
    Ok(())
}

#[test]
fn a_record_that_is_given_to_another_user_stays_its_own() -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let lab = Lab::new("kind: non-env-processes, action: terminate", |_| ())?;
    change(&lab.genv_directory(), "envs", |envs| {
        envs[0]["uid"] = (victim() + 1).into();
    })?;
    lab.is_spared("its processes are of")
}

#[test]
fn a_record_in_the_name_of_a_user_of_whom_no_member_is_counts_for_nobody() -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let others = genv_tests::enforcer::sleeper_of(victim() + 1, &[("PATH", "/bin")])?;
    let lab = Lab::new("kind: max-devices-per-user, limit: 1, action: terminate", |_| ())?;
    let mut forged = Environment::new("forged", victim(), others.pid(), &[0, 1]);
    forged.eid = "forged".to_owned();
    state::write(&lab.genv_directory(), 2, &[environment(&lab.member), forged])?;
    lab.is_spared("no member of it is a process of")?;
    let status = lab.enforcer.status()?;
    ensure!(status["violations"] == Value::Array(Vec::new()), "{status:#}");
    Ok(())
}

#[test]
fn a_member_that_a_later_record_lists_stays_in_the_first() -> Result<()> {
    // It names no environment, so that records alone show where it is.
    let process = sleeper(&[])?;
    let own = Environment::new("e1", victim(), process.pid(), &[0]);
    let setup = Setup::new(&used_by(&[process.pid()]), &rule("kind: env-devices, action: terminate"))?;
    let folder = setup.genv_directory();
    state::write(&folder, 2, &[own])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(2)?;
    let lab = Lab { enforcer, member: sleeper(&[])?, process };
    let why = "it lists members of another environment";
    // A new record in its user's name, which is the first of the file.
    change(&folder, "envs", |envs| {
        let mut forged = envs[0].clone();
        forged["eid"] = "forged".into();
        envs.insert(0, forged);
    })?;
    lab.is_spared(why)?;
    // The record under another id.
    change(&folder, "envs", |envs| {
        envs.truncate(1);
    })?;
    lab.is_spared(why)
}

/// Entries of `envs.json` that no genv writes. One lists the process PID with its user UID, others the process OTHER: without a
/// user, and with another user.
const MALFORMED: &str = r#"
    {"uid": UID.0, "pids": [PID.0], "kernel_ids": []}, {"eid": "e9", "uid": "x", "pids": [OTHER]}, {"uid": 4000000000, "pids": [OTHER]}, {"eid": "a", "uid": -1, "pids": [1]},
    {"eid": "b", "uid": 4294968296, "pids": [1]}, {"eid": "c", "uid": 1000.0, "pids": [1]}, {"uid": 1000, "pids": [1]}, 7, null,
    {"eid": "d", "uid": 1000, "creation": NaN, "pids": ["x", 1, -1, 1e99]}, {"eid": "e", "uid": 1000, "pids": "all"}"#;

#[test]
fn a_malformed_record_hides_processes_of_its_user_and_those_that_name_it_and_no_others() -> Result<()> {
    let claims = |eid| sleeper(&[("GENV_ENVIRONMENT_ID", eid)]);
    let (claiming, listed, outside) = (claims("e9")?, sleeper(&[])?, sleeper(&[])?);
    let elsewhere = claims("nosuch")?;
    let of_others = sleeper(&[])?;
    let pids = [&claiming, &listed, &outside, &elsewhere, &of_others].map(Sleeper::pid);
    let rule = rule("kind: non-env-processes, action: terminate");
    let setup = Setup::new(&used_by(&pids), &rule)?;
    let folder = setup.genv_directory();
    state::write(&folder, 2, &[])?;
    let malformed = MALFORMED
        .replace("PID", &listed.pid().to_string())
        .replace("UID", &victim().to_string())
        .replace("OTHER", &of_others.pid().to_string());
    fs::write(folder.join("envs.json"), format!("{{\"envs\": [{malformed}]}}"))?;
    let enforcer = setup.start()?;
    ends(outside.pid())?;
    ends(elsewhere.pid())?;
    ends(of_others.pid())?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(claiming.pid()) && is_alive(listed.pid()), "{}", enforcer.log());
    Ok(())
}

#[test]
fn an_environment_is_as_old_as_its_oldest_member_at_most() -> Result<()> {
    // The record is of a day in the past, as one is that was written with another TZ.
    let lab = Lab::new("kind: max-age, limit: 5m, action: terminate", |_| ())?;
    for created in ["01/01/2020 00:00:00", "01/01/2100 00:00:00"] {
        change(&lab.genv_directory(), "envs", |envs| {
            envs[0]["creation"] = created.into();
        })?;
        lab.enforcer.wait_for_cycles(3)?;
        ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    }
    lab.is_spared("it was made in the future")
}

#[test]
fn an_environment_of_the_future_grows_old_all_the_same() -> Result<()> {
    let lab = Lab::new("kind: max-age, limit: 3s, action: terminate", |_| ())?;
    change(&lab.genv_directory(), "envs", |envs| {
        envs[0]["creation"] = "01/01/2100 00:00:00".into();
    })?;
    ends(lab.process.pid())
}

#[test]
fn the_zone_of_a_caller_does_not_change_what_is_written() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    state::write(&setup.genv_directory(), 2, &[])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    for zone in ["America/Los_Angeles", "Pacific/Kiritimati"] {
        let line = format!("genv activate --id {}", zone.replace('/', "-"));
        genv(&setup, None, zone, &line)?;
        let state = StateDirectory::new(setup.genv_directory()).read()?;
        let created = state.environments.iter().filter_map(|it| it.created_timestamp_seconds);
        let ages: Vec<f64> = created.map(|created| created - now).collect();
        ensure!(!ages.is_empty(), "{state:?}");
        // Another zone would be hours off.
        ensure!(ages.iter().all(|age| age.abs() < 1800.0), "{zone}: {ages:?}");
    }
    Ok(())
}
