//! Records of environments that others changed: what they take from a user has no consequence until that user confirms it,
//! and what they add helps the record's user and harms no user. genv 1.4.3 writes no confirmation; the variables of the
//! processes that were started with it take its place.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, as_victim, ends, enforcing, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{self, until};
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

const INSIDE: [(&str, &str); 1] = [("GENV_ENVIRONMENT_ID", "e1")];

/// An enforcer of one rule that acts at once, and an environment of the victim's on device 0 with a member and a process
/// that uses 1 GiB of it.
pub(super) struct Lab {
    pub(super) enforcer: Enforcer,
    _member: Sleeper,
    pub(super) process: Sleeper,
}

fn rule(rule: &str) -> String {
    enforcing(&format!("- {{{rule}, for: 0s, warn: []}}\n"))
}

/// Attaches the environment `e1` to a device, by the file long ago: 2020-01-01 00:00:00 UTC.
fn attach(folder: &Path, device: usize, memory: Option<&str>) -> Result<()> {
    state::edit(folder, |state| {
        let attachments = state["devices"][device]["attachments"].as_array_mut().context("no attachments")?;
        attachments.push(json!({"eid": "e1", "gpu_memory": memory, "attached_timestamp_seconds": 1_577_836_800}));
        Ok(())
    })
}

impl Lab {
    pub(super) fn new(of_rule: &str) -> Result<Self> {
        let (member, process) = (sleeper(&[])?, sleeper(&INSIDE)?);
        let setup = Setup::new(&used_by(&[process.pid()]), &rule(of_rule))?;
        let own = Environment::new("e1", victim(), member.pid(), &[0]);
        state::write(&setup.genv_directory(), 2, &[own])?;
        let enforcer = setup.start()?;
        enforcer.wait_for_facts()?;
        enforcer.wait_for_cycles(1)?;
        ensure!(is_alive(process.pid()), "{}", enforcer.log());
        Ok(Self { enforcer, _member: member, process })
    }

    /// Waits until the record is disputed for this reason, and some cycles more: its process lives.
    fn is_spared(&self, why: &str) -> Result<()> {
        self.enforcer.wait_for_status(why, |status| status["disputed_records"].to_string().contains(why))?;
        self.enforcer.wait_for_cycles(3)?;
        ensure!(is_alive(self.process.pid()), "{}", self.enforcer.log());
        let scrape = self.enforcer.scrape()?;
        let disputed = scrape.all("genv_state_disputed_records", &[]);
        ensure!(disputed.iter().any(|(_, value)| *value >= 1.0), "{disputed:?}");
        let setup = self.enforcer.setup();
        let said = setup.said(&["status"])?;
        ensure!(said.contains("Disputed"), "{said}");
        let user = format!("--user=uid:{}", victim());
        let folder = format!("--state-directory={}", setup.state_directory().display());
        let output = setup.program("genv", &["why", &user, &folder])?.output()?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(said.contains("is disputed") && said.contains(why), "{said}");
        Ok(())
    }
}

/// Runs a command of genv in a shell of its own, as the victim.
pub(super) fn genv(setup: &Setup, eid: Option<&str>, line: &str) -> Result<()> {
    for (path, mode) in [(setup.folder(), 0o755), (&setup.genv_directory(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let mut command = setup.shell(line)?;
    command.envs(eid.map(|eid| ("GENV_ENVIRONMENT_ID", eid)));
    let output = patience::output(as_victim(&mut command))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {stderr}");
    Ok(())
}

#[test]
fn a_device_that_another_takes_ends_nothing_and_one_that_its_user_gives_back_counts() -> Result<()> {
    let rule = "kind: env-devices, action: terminate";
    let lab = Lab::new(rule)?;
    let folder = lab.enforcer.setup().genv_directory();
    state::edit(&folder, |state| {
        state["devices"][0]["attachments"] = json!([]);
        Ok(())
    })?;
    lab.is_spared("device 0 was taken from it")?;
    // Its user attaches the device again.
    genv(lab.enforcer.setup(), Some("e1"), "genv attach --index 0")?;
    lab.enforcer.wait_for_status("nothing is disputed", |status| {
        status["disputed_records"].as_array().is_some_and(Vec::is_empty)
    })?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    drop(lab);

    let lab = Lab::new(rule)?;
    genv(lab.enforcer.setup(), Some("e1"), "genv detach --index 0")?;
    ends(lab.process.pid())
}

#[test]
fn a_device_that_another_adds_is_taken_back_and_nothing_ends() -> Result<()> {
    let lab = Lab::new("kind: max-devices-per-user, limit: 1, action: terminate")?;
    let folder = lab.enforcer.setup().genv_directory();
    attach(&folder, 1, None)?;
    let attached =
        |device: usize| -> Result<Value> { Ok(state::read(&folder)?["devices"][device]["attachments"].clone()) };
    until("the device is taken back", || Ok(attached(1)?.is_null()))?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    ensure!(attached(0)?[0]["eid"] == "e1", "{}", lab.enforcer.log());
    Ok(())
}

#[test]
fn commands_of_ours_in_one_shell_after_another_are_disputed_by_nothing() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), &rule("kind: max-devices-per-user, limit: 2, action: report"))?;
    state::write(&setup.genv_directory(), 2, &[])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_facts()?;
    let setup = enforcer.setup();
    let folder = setup.genv_directory();
    let script = "genv activate --id a --gpus 1; genv attach --index 1; genv activate --id b; genv attach --index 0; \
                  touch $GENV_TMPDIR/ready; while [ ! -e $GENV_TMPDIR/over ]; do sleep 0.1; done";
    std::thread::scope(|scope| {
        let shell = scope.spawn(|| genv(setup, None, script));
        let over = || fs::write(folder.join("over"), "");
        let seen = until("the shell has its environments", || Ok(folder.join("ready").exists() || shell.is_finished()));
        let seen = seen.and_then(|()| enforcer.wait_for_cycles(3));
        let status = enforcer.status();
        over()?;
        shell.join().map_err(|_| anyhow::anyhow!("the shell panicked"))??;
        seen?;
        let disputed = &status?["disputed_records"];
        ensure!(*disputed == json!([]), "{disputed:#}");
        Ok(())
    })
}

#[test]
fn what_genv_1_x_writes_is_borne_out_by_the_processes_that_were_started_with_it() -> Result<()> {
    let (shell, process) = (sleeper(&[])?, sleeper(&INSIDE)?);
    let started_later = sleeper(&[INSIDE[0], ("CUDA_VISIBLE_DEVICES", "1,0")])?;
    let setup = Setup::new(&used_by(&[]), &rule("kind: env-memory, action: terminate"))?;
    let folder = setup.genv_directory();
    state::write(&folder, 2, &[])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_facts()?;
    state::write(&folder, 2, &[Environment::new("e1", victim(), shell.pid(), &[1])])?;
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    let remembered = enforcer.setup().state_directory().join("records.json");
    until("the record is remembered", || Ok(fs::read_to_string(&remembered)?.contains("\"e1\"")))?;
    attach(&folder, 0, Some("1mi"))?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid(), started_later.pid()]))?;
    ends(started_later.pid())
}
