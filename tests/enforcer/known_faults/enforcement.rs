//! Whom genv 1.4.3 ends by mistake, and whom it lets get away.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use serde_json::Value;

/// The flags of genv 1.4.3, in mode enforce; one look.
const ENFORCE: [&str; 3] = ["run", "--once", "--genv-1"];

fn enforce(setup: &Setup, flags: &[&str]) -> Result<()> {
    setup.said(&[&ENFORCE, flags].concat())?;
    Ok(())
}

#[test]
fn a_forged_or_an_empty_id_protects_nobody() -> Result<()> {
    let forged = sleeper(&[("GENV_ENVIRONMENT_ID", "nosuch")])?;
    let empty = sleeper(&[("GENV_ENVIRONMENT_ID", "")])?;
    let setup = Setup::new(&used_by(&[forged.pid(), empty.pid()]), "")?;
    enforce(&setup, &["--non-env-processes"])?;
    ends(forged.pid())?;
    ends(empty.pid())
}

#[test]
fn a_process_that_shows_nothing_of_where_it_belongs_is_spared() -> Result<()> {
    let mut command = std::process::Command::new("/bin/sleep");
    command.env_clear().arg("1000000");
    let bare = Sleeper::spawn(genv_tests::enforcer::as_victim(&mut command))?;
    let other = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[bare.pid(), other.pid()]), "")?;
    enforce(&setup, &["--non-env-processes"])?;
    ends(other.pid())?;
    ensure!(is_alive(bare.pid()));
    let status = fs::read(setup.state_directory().join("status.json"))?;
    let status: Value = serde_json::from_slice(&status)?;
    let unknown = status["unknown_processes"].as_object();
    let unknown = unknown.and_then(|it| it.values().next()).cloned();
    assert_eq!(unknown, Some(Value::from(1)), "{status:#}");
    Ok(())
}

#[test]
fn a_maximum_of_single_users_holds_without_one_for_everybody() -> Result<()> {
    let member = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[]), "")?;
    let environment = Environment::new("e1", victim(), member.pid(), &[0, 1]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let attachments = || -> Result<usize> {
        let devices = fs::read(setup.genv_directory().join("devices.json"))?;
        let devices: Value = serde_json::from_slice(&devices)?;
        let devices = devices["devices"].as_array().context("no devices")?;
        let held = devices.iter().filter_map(|it| it["attachments"].as_array());
        Ok(held.map(Vec::len).sum())
    };
    let flags = ["--no-env-devices", "--no-env-memory"];
    enforce(&setup, &[&flags[..], &["--max-devices-for-user", "nobody-of-that-name=1"]].concat())?;
    assert_eq!(attachments()?, 2);
    let maximum = format!("uid:{}=1", victim());
    enforce(&setup, &[&flags[..], &["--max-devices-for-user", &maximum]].concat())?;
    assert_eq!(attachments()?, 1);
    ensure!(is_alive(member.pid()));
    Ok(())
}
