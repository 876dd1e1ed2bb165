//! Devices, members and records that another user may have added: they help the record's user and harm no user. genv 1.4.3
//! writes no confirmation; the variables of the processes that were started with it take its place.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, enforcing, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

use super::disputed::{INSIDE, Lab, change, environment, genv, rule};

/// A rule of one device at most; processes on further ones end.
const ONE_DEVICE: &str = "kind: max-devices-per-user, limit: 1, action: terminate";

/// The environments that are attached to a device, by the files.
fn attached(folder: &Path, device: usize) -> Result<Vec<String>> {
    let content = fs::read(folder.join("devices.json"))?;
    let devices: Value = serde_json::from_slice(&content)?;
    let attachments = devices["devices"][device]["attachments"].as_array();
    let attachments = attachments.context("no attachments")?;
    let eids = attachments.iter().filter_map(|it| it["eid"].as_str());
    Ok(eids.map(str::to_owned).collect())
}

/// Waits until nothing is attached to a device.
fn is_taken_back(folder: &Path, device: usize) -> Result<()> {
    until("the device is taken back", || Ok(attached(folder, device)?.is_empty()))
}

/// Attaches an environment to a device, by the file long ago.
fn attach(folder: &Path, eid: &str, device: usize, memory: Option<&str>) -> Result<()> {
    change(folder, "devices", |devices| {
        let attachment = json!({"eid": eid, "gpu_memory": memory, "time": "01/01/2020 00:00:00"});
        let attachments = devices[device]["attachments"].as_array_mut();
        attachments.into_iter().for_each(|all| all.push(attachment.clone()));
    })
}

/// An enforcer of one rule, of a machine without environments, on which these processes use device 0.
fn before_any(rule_text: &str, pids: &[u32]) -> Result<Enforcer> {
    let setup = Setup::new(&used_by(pids), &rule(rule_text))?;
    state::write(&setup.genv_directory(), 2, &[])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(2)?;
    Ok(enforcer)
}

#[test]
fn a_device_that_another_adds_is_taken_back_and_nothing_ends() -> Result<()> {
    let lab = Lab::new(ONE_DEVICE, |_| ())?;
    let folder = lab.genv_directory();
    attach(&folder, "e1", 1, None)?;
    is_taken_back(&folder, 1)?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    ensure!(attached(&folder, 0)? == ["e1"], "{}", lab.enforcer.log());
    Ok(())
}

#[test]
fn taking_back_what_another_adds_delays_no_violation() -> Result<()> {
    let member = sleeper(&[])?;
    let rules = "- {kind: max-devices-per-user, limit: 1, action: detach, for: 0s, warn: []}\n\
                 - {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n";
    // The limit for one user is three acts in a minute.
    let config = enforcing(rules).replace("users: 1}", "users: 1, signals_per_minute: 4}");
    let setup = Setup::new(&used_by(&[]), &config)?;
    let folder = setup.genv_directory();
    state::write(&folder, 2, &[environment(&member)])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(2)?;
    for _ in 0..4 {
        attach(&folder, "e1", 1, None)?;
        is_taken_back(&folder, 1)?;
        // The enforcer must see the device free, so that the next attachment counts as new.
        enforcer.wait_for_cycles(2)?;
    }
    let outsider = sleeper(&[])?;
    enforcer.setup().rewrite_scenario(&used_by(&[outsider.pid()]))?;
    ends(outsider.pid())?;
    let audit = enforcer.audit()?;
    let is_paced = |line: &Value| line["reason"].as_str().is_some_and(|why| why.starts_with("paced"));
    ensure!(!audit.iter().any(is_paced), "{audit:?}");
    Ok(())
}

#[test]
fn a_device_that_another_adds_is_disputed_and_helps() -> Result<()> {
    // The process uses device 0, and its environment has device 1.
    let (member, process) = (sleeper(&[])?, sleeper(&INSIDE)?);
    let text = "kind: env-devices, action: terminate";
    let setup = Setup::new(&used_by(&[]), &rule(text))?;
    let own = Environment::new("e1", victim(), member.pid(), &[1]);
    state::write(&setup.genv_directory(), 2, &[own])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(2)?;
    let folder = enforcer.setup().genv_directory();
    attach(&folder, "e1", 0, Some("1mi"))?;
    enforcer.wait_for_cycles(2)?;
    let scenario = used_by(&[process.pid()]);
    enforcer.setup().rewrite_scenario(&scenario)?;
    let lab = Lab { enforcer, member, process };
    lab.is_spared("device 0 came to it, and nothing shows that its user did that")
}

#[test]
fn little_memory_of_a_device_that_another_adds_ends_nothing() -> Result<()> {
    let lab = Lab::new("kind: env-memory, action: terminate", |it| it.devices = vec![1])?;
    attach(&lab.genv_directory(), "e1", 0, Some("1mi"))?;
    lab.is_spared("device 0 came to it")
}

#[test]
fn a_device_that_its_user_attaches_counts() -> Result<()> {
    let none = "kind: max-devices-per-user, limit: 0, action: terminate";
    let lab = Lab::new(none, |it| it.devices = Vec::new())?;
    let setup = lab.enforcer.setup();
    genv(setup, Some("e1"), "UTC", "genv attach --index 0")?;
    // The process ends with its device.
    ends(lab.process.pid()).with_context(|| lab.enforcer.log())
}

#[test]
fn a_record_that_lists_a_process_from_no_environment_harms_nobody() -> Result<()> {
    for text in [
        "kind: env-memory, action: terminate",
        "kind: max-devices-per-user, limit: 0, action: terminate",
        "kind: max-environments-per-user, limit: 0, action: terminate",
        "kind: max-age, limit: 1s, action: kill",
    ] {
        let process = sleeper(&[])?;
        let enforcer = before_any(text, &[process.pid()])?;
        let folder = enforcer.setup().genv_directory();
        let mut forged = Environment::new("forged", victim(), process.pid(), &[0]);
        forged.gpu_memory = Some("1mi");
        state::write(&folder, 2, &[forged])?;
        let lab = Lab { enforcer, member: sleeper(&[])?, process };
        lab.is_spared("nothing shows that its user made it").with_context(|| text)?;
    }
    Ok(())
}

#[test]
fn a_process_that_another_adds_to_a_record_counts_for_no_limit_of_it() -> Result<()> {
    let text = "kind: max-processes-per-environment, limit: 1, action: terminate";
    let lab = Lab::new(text, |_| ())?;
    let other = sleeper(&[])?;
    let scenario = used_by(&[lab.process.pid(), other.pid()]);
    lab.enforcer.setup().rewrite_scenario(&scenario)?;
    lab.enforcer.wait_for_cycles(2)?;
    change(&lab.genv_directory(), "envs", |envs| {
        envs[0]["pids"] = json!([lab.member.pid(), other.pid()]);
    })?;
    let why = format!("process {} came to it", other.pid());
    lab.is_spared(&why)?;
    ensure!(is_alive(other.pid()), "{}", lab.enforcer.log());
    Ok(())
}

#[test]
fn a_second_environment_of_one_shell_counts_for_its_limits() -> Result<()> {
    let lab = Lab::new(ONE_DEVICE, |_| ())?;
    let folder = lab.genv_directory();
    // As genv 1.4.3 or an editor writes it.
    let second = Environment::new("e2", victim(), lab.member.pid(), &[1]);
    state::write(&folder, 2, &[environment(&lab.member), second])?;
    is_taken_back(&folder, 1)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    Ok(())
}

#[test]
fn commands_of_ours_in_one_shell_after_another_are_disputed_by_nothing() -> Result<()> {
    let text = "kind: max-devices-per-user, limit: 2, action: report";
    let enforcer = before_any(text, &[])?;
    let setup = enforcer.setup();
    let folder = setup.genv_directory();
    let script = "genv activate --id a --gpus 1; genv attach --index 1; genv activate --id b; genv attach --index 0; \
                  touch $GENV_TMPDIR/ready; while [ ! -e $GENV_TMPDIR/over ]; do sleep 0.1; done";
    std::thread::scope(|scope| {
        let shell = scope.spawn(|| genv(setup, None, "UTC", script));
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
    let text = "kind: env-memory, action: terminate";
    let shell = sleeper(&[])?;
    let process = sleeper(&INSIDE)?;
    let enforcer = before_any(text, &[])?;
    let folder = enforcer.setup().genv_directory();
    let mut own = Environment::new("e1", victim(), shell.pid(), &[0]);
    own.gpu_memory = Some("1mi");
    state::write(&folder, 2, &[own])?;
    enforcer.wait_for_cycles(2)?;
    let scenario = used_by(&[process.pid()]);
    enforcer.setup().rewrite_scenario(&scenario)?;
    ends(process.pid())?;
    drop(enforcer);

    // A device that is attached later.
    let process = sleeper(&INSIDE)?;
    let sees = [("GENV_ENVIRONMENT_ID", "e1"), ("CUDA_VISIBLE_DEVICES", "1,0")];
    let started_later = sleeper(&sees)?;
    let enforcer = before_any(text, &[])?;
    let folder = enforcer.setup().genv_directory();
    let own = Environment::new("e1", victim(), shell.pid(), &[1]);
    state::write(&folder, 2, &[own])?;
    let setup = enforcer.setup();
    setup.rewrite_scenario(&used_by(&[process.pid()]))?;
    enforcer.wait_for_cycles(2)?;
    attach(&folder, "e1", 0, Some("1mi"))?;
    enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    setup.rewrite_scenario(&used_by(&[process.pid(), started_later.pid()]))?;
    ends(started_later.pid())
}

#[test]
fn a_user_of_genv_1_x_alone_holds_no_more_devices_than_others() -> Result<()> {
    // A shell that holds devices and runs nothing: no process bears the record out, and one device is taken all the same.
    let (shell, process) = (sleeper(&[])?, sleeper(&[])?);
    let enforcer = before_any(ONE_DEVICE, &[process.pid()])?;
    let folder = enforcer.setup().genv_directory();
    let own = |devices: &[usize]| Environment::new("e1", victim(), shell.pid(), devices);
    state::write(&folder, 2, &[own(&[])])?;
    enforcer.wait_for_cycles(2)?;
    state::write(&folder, 2, &[own(&[0, 1])])?;
    until("one device is taken", || Ok(attached(&folder, 0)?.len() + attached(&folder, 1)?.len() == 1))?;
    ensure!(is_alive(shell.pid()) && is_alive(process.pid()), "{}", enforcer.log());
    Ok(())
}

/// Its device 1 is attached and idle until it is taken, and then its user attaches it again and works on it.
fn works_on_what_was_taken(is_forced: bool) -> Result<()> {
    let text = "version: 1\nmode: enforce\ninterval: 200ms\nbreaker: {share_of_users: 1}\n\
                rules:\n- {kind: idle, over: 3s, action: detach, warn: [1s], remember: 1m, match: {devices: [1]}}\n";
    let sees = [("GENV_ENVIRONMENT_ID", "e1"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    let (member, first) = (sleeper(&[])?, sleeper(&sees)?);
    let uses = |pid: u32, gpu: u32, ratio: f64| {
        format!(
            "version: 1\nhosts:\n- devices: [{{}}, {{}}]\n  processes: \
             [{{pid: {pid}, devices: [{{index: {gpu}, memory: 1gi, utilization: {ratio}}}]}}]\n"
        )
    };
    let gpu = u32::from(!is_forced);
    let setup = Setup::new(&uses(first.pid(), gpu, 0.0), text)?;
    state::write(&setup.genv_directory(), 2, &[environment(&member)])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(2)?;
    let setup = enforcer.setup();
    let folder = setup.genv_directory();
    if is_forced {
        // No process of the user sees the device.
        drop(first);
        setup.rewrite_scenario(&used_by(&[]))?;
        enforcer.wait_for_cycles(2)?;
    }
    attach(&folder, "e1", 1, None)?;
    is_taken_back(&folder, 1)?;
    enforcer.wait_for_cycles(2)?;
    let works = sleeper(&sees)?;
    setup.rewrite_scenario(&uses(works.pid(), 1, 0.9))?;
    change(&folder, "devices", |devices| {
        let attachment = json!({"eid": "e1", "gpu_memory": null, "time": "02/01/2020 00:00:00"});
        devices[1]["attachments"] = json!([attachment]);
    })?;
    enforcer.wait_for_cycles(8)?;
    ensure!(is_alive(works.pid()), "{}", enforcer.log());
    ensure!(attached(&folder, 1)? == ["e1"], "{}", enforcer.log());
    Ok(())
}

#[test]
fn who_attaches_an_idle_device_again_and_works_on_it_keeps_it() -> Result<()> {
    works_on_what_was_taken(false)
}

#[test]
fn idle_time_of_a_device_that_another_adds_is_not_its_users() -> Result<()> {
    works_on_what_was_taken(true)
}

#[test]
fn records_that_another_writes_take_no_place_from_those_of_their_user() -> Result<()> {
    let process = sleeper(&INSIDE)?;
    let (member, other) = (sleeper(&[])?, sleeper(&[])?);
    let enforcer = before_any("kind: env-memory, action: terminate", &[])?;
    let folder = enforcer.setup().genv_directory();
    let forged = (0..300).map(|it| Environment::new(&format!("a{it}"), victim(), other.pid(), &[]));
    let mut all: Vec<Environment> = forged.collect();
    state::write(&folder, 2, &all)?;
    enforcer.wait_for_cycles(2)?;
    all.push(environment(&member));
    state::write(&folder, 2, &all)?;
    let setup = enforcer.setup();
    setup.rewrite_scenario(&used_by(&[process.pid()]))?;
    enforcer.wait_for_cycles(3)?;
    all[300].gpu_memory = Some("1mi");
    state::write(&folder, 2, &all)?;
    enforcer.wait_for_cycles(4)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    // Nobody breaks a rule by what others write.
    let violations = &enforcer.status()?["violations"];
    ensure!(*violations == json!([]), "{violations:#}");
    Ok(())
}
