//! The right processes end, on the right machines.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::victim;
use genv_tests::nvml_sim::{Simulation, library};
use genv_tests::patience::until;
use genv_tests::peer::Peer;
use genv_tests::process::{copy_program, program, write_script};
use genv_tests::state::{self, Environment};
use serde_json::json;

use crate::remote_enforce::lab::{Lab, Machine, SLEEP};

/// A machine of which process 2 uses the device outside of any environment.
pub(crate) const BREAKS: &str = "{devices: [{}], processes: [{pid: 2, devices: [{index: 0, memory: 1gi}]}]}";

/// Ends at once what uses a device outside of any environment.
pub(crate) const OUTSIDE: &str = "- {kind: non-env-processes, action: terminate, for: 0s, warn: []}";

/// A machine that nobody uses.
const IDLE: &str = "{devices: [{}]}";

#[test]
#[ignore = "needs root"]
fn what_breaks_a_rule_ends_on_its_host_and_the_same_pid_on_another_lives() -> Result<()> {
    let one = Machine::start("gpu01", &[SLEEP; 2], BREAKS)?;
    let two = Machine::start("gpu02", &[SLEEP; 2], IDLE)?;
    let three = Machine::start("gpu03", &[SLEEP; 2], BREAKS)?;
    let rule = "- {kind: non-env-processes, action: terminate, for: 0s, warn: [], match: {except_hosts: [gpu03]}}";
    let lab = Lab::start(&[&one, &two, &three], rule)?;
    until("process 2 of gpu01 ends", || Ok(!one.lives(2)))?;
    until("that is known here", || Ok(lab.audited("done")?.len() == 1))?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(one.lives(3) && two.lives(2) && three.lives(2));

    let done = &lab.audited("done")?[0];
    ensure!(done["hostname"] == "gpu01" && done["pid"] == 2, "{done}");
    let asked = lab.audited("asked")?;
    ensure!(asked.len() == 1 && asked[0]["id"] == done["id"], "{asked:?}");
    let there = one.audited("done")?;
    ensure!(there.len() == 1 && there[0]["pid"] == 2, "{there:?}");
    ensure!(!there[0]["asked_by"].is_null(), "{there:?}");
    for other in [&two, &three] {
        ensure!(!other.directory().join("audit.jsonl").exists());
    }
    let page = lab.enforcer.get("/")?.text()?;
    let (_, did) = page.split_once("What it did").context("the page has no actions")?;
    ensure!(did.contains(">gpu01<") && did.contains(">terminate<") && !did.contains(">gpu03<"), "{page}");
    Ok(())
}

/// A machine with two devices, on which somebody's environment holds some, with two sleeping members.
fn holding(name: &'static str, devices: &[usize]) -> Result<Machine> {
    let library = library().display().to_string();
    let variables = [("GENV_NVML_LIBRARY", library.as_str())];
    let genv = program("genv")?;
    let machine = Machine::start_with(name, &[SLEEP; 2], "{devices: [{count: 2}]}", &genv, &variables)?;
    let environment = Environment {
        eid: "7".to_owned(),
        uid: victim(),
        pids: vec![2, 3],
        devices: devices.to_vec(),
        gpu_memory: None,
    };
    state::write(&machine.genv_directory(), 2, &[environment])?;
    Ok(machine)
}

/// How many devices are attached to anything there.
fn attached(machine: &Machine) -> Result<usize> {
    let state = state::read(&machine.genv_directory())?;
    let devices = state["devices"].as_array().into_iter().flatten();
    let attachments = devices.filter_map(|device| device["attachments"].as_array());
    Ok(attachments.map(Vec::len).sum())
}

const ALL_HOSTS: &str = "- {kind: max-devices-per-user, scope: all-hosts, limit: 2, action: detach, for: 0s, warn: []}";

#[test]
#[ignore = "needs root"]
fn devices_on_all_hosts_count_together_and_no_more_are_taken_than_that() -> Result<()> {
    let one = holding("gpu01", &[0])?;
    let two = holding("gpu02", &[0, 1])?;
    let three = Machine::start("gpu03", &[SLEEP; 2], BREAKS)?;
    let lab = Lab::start(&[&one, &two, &three], ALL_HOSTS)?;
    until("a device is taken", || Ok(lab.audited("done")?.len() == 1))?;
    lab.enforcer.wait_for_status("nothing is wrong", |status| status["violations"] == json!([]))?;
    lab.enforcer.wait_for_cycles(3)?;
    assert_eq!(attached(&one)? + attached(&two)?, 2);
    assert_eq!(lab.audited("asked")?.len(), 1);
    let there = [one.audited("done")?, two.audited("done")?].concat();
    ensure!(there.len() == 1 && there[0]["action"] == "detach", "{there:?}");
    ensure!(three.lives(2), "no rule is about it");
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn promise_17_a_missing_host_holds_what_counts_over_all_and_nothing_else() -> Result<()> {
    let one = holding("gpu01", &[0])?;
    let two = holding("gpu02", &[0, 1])?;
    let three = Machine::start("gpu03", &[SLEEP; 2], BREAKS)?;
    let gone = Machine::start("gpu04", &[], IDLE)?;
    let rules = format!("{OUTSIDE}\n{ALL_HOSTS}");
    let lab = Lab::start_without(&[&one, &two, &three], Some(gone), &rules)?;
    until("process 2 of gpu03 ends", || Ok(!three.lives(2)))?;
    let status = lab
        .enforcer
        .wait_for_status("the rule waits", |status| status.to_string().contains("no fresh facts from gpu04"))?;
    assert_eq!(status["missing_hosts"], json!(["gpu04"]));
    lab.enforcer.wait_for_cycles(3)?;
    assert_eq!(attached(&one)? + attached(&two)?, 3);
    Ok(())
}

/// A process that names its environment. The machine of this test is a pid namespace: no evidence there shows which
/// process has the pid that genv 1.x wrote.
const IN_SEVEN: &str = "env GENV_ENVIRONMENT_ID=7 sleep 1000000";

#[test]
#[ignore = "needs root"]
fn what_takes_memory_from_a_user_counts_once_a_command_of_the_user_confirms_it() -> Result<()> {
    let one = Machine::start("gpu01", &[IN_SEVEN], BREAKS)?;
    let uid = victim();
    let environment = |gpu_memory| Environment {
        eid: "7".to_owned(),
        uid,
        pids: vec![2],
        devices: vec![0],
        gpu_memory: Some(gpu_memory),
    };
    let folder = one.genv_directory();
    state::write(&folder, 1, &[environment("8gi")])?;
    let rule = "- {kind: env-memory, action: terminate, for: 0s, warn: []}";
    let lab = Lab::start(&[&one], rule)?;
    lab.enforcer.wait_for_facts()?;
    state::write(&folder, 1, &[environment("1mi")])?;
    lab.enforcer.wait_for_status("the record is disputed", |status| {
        status["disputed_records"].to_string().contains("was lowered")
    })?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(one.lives(2), "{}", lab.enforcer.log());
    let confirm = |owner: u32| -> Result<()> {
        let changed =
            |change: &str| json!({"eid": "7", "at_seconds": 4e9, "change": change, "gpu": 0, "bytes": 1 << 20});
        let changes = [changed("reserved"), changed("configured")];
        let path = folder.join(format!("genv-confirmed-{uid}.json"));
        std::fs::write(&path, json!({"version": 1, "changes": changes}).to_string())?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        Ok(std::os::unix::fs::chown(&path, Some(owner), None)?)
    };
    // The kernel shows whose word it is.
    confirm(uid + 1)?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(one.lives(2), "{}", lab.enforcer.log());
    confirm(uid)?;
    until("process 2 ends", || Ok(!one.lives(2)))
}

#[test]
#[ignore = "needs root"]
fn a_host_that_cannot_act_refuses_with_the_reason() -> Result<()> {
    let process = "{pid: 2, comm: sleep, user: alice, devices: [{index: \"0\", memory: 2gi}]}";
    let simulation = Simulation::new(&format!(
        "version: 1\nusers: {{alice: 1001}}\nhosts:\n- name: gpu01\n  devices: [{{memory: 40gi}}]\n  processes: [{process}]\n"
    ));
    let peer = Peer::new(&simulation)?;
    let session = peer.command("true");
    let folder = tempfile::tempdir()?;
    let only_sends = folder.path().join("genv");
    write_script(&only_sends, &format!("#!/bin/sh\nexec {} remote-serve\n", program("genv")?.display()))?;
    let alone = tempfile::tempdir()?;
    let genv = alone.path().join("genv");
    copy_program("genv", &genv)?;
    let path = format!("{}:/usr/bin:/bin", alone.path().display());
    let hosts = [
        (Machine::start_session("gpu01", &[SLEEP], &session, tempfile::tempdir()?)?, "genv 1.x"),
        (Machine::start_with("gpu02", &[SLEEP], BREAKS, &only_sends, &[])?, "only sends snapshots"),
        (
            Machine::start_with("gpu03", &[SLEEP], BREAKS, &genv, &[("PATH", &path)])?,
            "genv-enforcer is not installed on this host. Put it next to genv",
        ),
    ];
    let lab = Lab::start(&hosts.each_ref().map(|(machine, _)| machine), OUTSIDE)?;
    until("each is refused", || Ok(lab.audited("refused")?.len() >= hosts.len()))?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(lab.answers()?.iter().all(|answer| answer == "refused"), "{:?}", lab.answers()?);
    let refused = lab.audited("refused")?;
    for (machine, why) in &hosts {
        let line = refused.iter().find(|line| line["hostname"] == machine.name).context(machine.name)?;
        ensure!(line["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{line}");
        ensure!(machine.lives(2) && !machine.directory().join("audit.jsonl").exists(), "{}", machine.name);
    }
    lab.enforcer.wait_for_status("it is said", |status| {
        status["faults"].to_string().contains("nothing can be done on gpu02: genv there only sends snapshots")
    })?;
    Ok(())
}
