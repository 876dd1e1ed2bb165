//! The enforcement of genv 1.4.3 beside ours: the same processes, the same state, the same flags. Ours prints first, in
//! dry-run, what it would end; then genv 1.4.3 ends it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{is_alive, sleeper_of};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{self, until};
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, program};
use rustix::process::geteuid;
use serde_json::Value;

/// The user of all processes. Root's are out of reach of every rule of ours, so that root tests with another user, who has
/// a name on every machine.
fn account() -> Result<(u32, String)> {
    let own = geteuid();
    if own.is_root() {
        return Ok((65_534, "nobody".to_owned()));
    }
    let output = Command::new("id").arg("-un").output()?;
    Ok((own.as_raw(), String::from_utf8(output.stdout)?.trim().to_owned()))
}

/// Processes with the device and the memory in MiB that each uses, on four devices with 40 GiB.
fn lab(uses: &[(&Sleeper, u32, u32)]) -> String {
    let processes = uses.iter().map(|(process, index, memory)| {
        let pid = process.pid();
        format!("{{pid: {pid}, devices: [{{index: {index}, memory: {memory}mi}}]}}")
    });
    let processes = processes.collect::<Vec<_>>().join(", ");
    format!("version: 1\nhosts:\n- devices: [{{count: 4, memory: 40gi}}]\n  processes: [{processes}]\n")
}

/// The rules that ours finds broken with these flags, and the processes that it would end.
fn ours(peer: &Peer, flags: &[&str]) -> Result<(Vec<String>, BTreeSet<u32>)> {
    let own = peer.folder().join("enforcer");
    // What an earlier run said would count as done.
    let _ = fs::remove_dir_all(&own);
    let mut command = peer.our_command(&program("genv-enforcer")?.to_string_lossy())?;
    command
        .env("STATE_DIRECTORY", &own)
        .env_remove("GENV_TERMINATE_PROCESSES")
        .args(["run", "--once", "--dry-run", "--genv-1"])
        .args(flags);
    let output = patience::output(&mut command)?;
    ensure!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    let status: Value = serde_json::from_slice(&fs::read(own.join("status.json"))?)?;
    let (mut rules, mut pids) = (Vec::new(), BTreeSet::new());
    for violation in status["violations"].as_array().context("no violations")? {
        rules.push(violation["rule"].as_str().context("no rule")?.to_owned());
        for target in violation["targets"].as_array().context("no targets")? {
            let words: Vec<&str> = target.as_str().context("no text")?.split([' ', ',']).collect();
            let named = words.windows(2).filter(|pair| pair[0] == "process");
            pids.extend(named.map(|pair| pair[1].parse::<u32>()).collect::<Result<Vec<_>, _>>()?);
        }
    }
    Ok((rules, pids))
}

fn theirs(peer: &Peer, flags: &[&str]) -> Result<()> {
    let mut command = peer.command("genv");
    let output = patience::output(command.args(["enforce", "--interval", "0"]).args(flags))?;
    ensure!(output.status.success(), "{flags:?}: {output:?}");
    Ok(())
}

#[test]
fn both_end_the_same_process_for_each_rule_and_no_other() -> Result<()> {
    let (uid, username) = account()?;
    let simulation = Simulation::new(&lab(&[]));
    let peer = Peer::new(&simulation)?;
    let process = |eid: Option<&str>| {
        let claim = eid.map(|eid| ("GENV_ENVIRONMENT_ID", eid));
        let variables: Vec<_> = [("PATH", "/bin")].into_iter().chain(claim).collect();
        sleeper_of(uid, &variables)
    };
    let (stray, good, member) = (process(None)?, process(Some("good"))?, process(Some("greedy"))?);
    for (eid, member, index) in [("good", &good, "0"), ("greedy", &member, "2")] {
        let (pid, uid) = (member.pid().to_string(), uid.to_string());
        let identity = ["--pid", &pid, "--eid", eid, "--uid", &uid, "--username", &username];
        peer.genv(&[&["envs", "activate"], &identity[..]].concat())?;
        if eid == "greedy" {
            peer.genv(&["envs", "config", "--eid", eid, "gpu-memory", "--gpu-memory", "2gi"])?;
        }
        peer.genv(&["devices", "attach", "--eid", eid, "--index", index])?;
    }
    // Not older than their environments.
    let (elsewhere, greedy) = (process(Some("good"))?, process(Some("greedy"))?);
    let all = [&stray, &good, &elsewhere, &member, &greedy];
    let uses = [(&stray, 0, 1024), (&good, 0, 5 * 1024), (&elsewhere, 1, 1024), (&greedy, 2, 5 * 1024)];
    let alive = || all.iter().map(|it| it.pid()).filter(|pid| is_alive(*pid)).collect::<BTreeSet<_>>();
    for (flags, rule, victim) in [
        (&["--non-env-processes", "--no-env-devices", "--no-env-memory"][..], "non-env-processes", &stray),
        (&["--env-devices", "--no-env-memory"], "env-devices", &elsewhere),
        (&["--no-env-devices", "--env-memory"], "env-memory", &greedy),
    ] {
        // genv 1.4.3 does not survive a driver that still lists a process that has ended.
        let working = uses.iter().filter(|(process, ..)| is_alive(process.pid()));
        simulation.rewrite(&lab(&working.copied().collect::<Vec<_>>()));
        let before = alive();
        assert_eq!(ours(&peer, flags)?, (vec![rule.to_owned()], [victim.pid()].into()));
        ensure!(alive() == before, "a dry run has ended a process");
        theirs(&peer, flags)?;
        until("genv 1.4.3 has ended it", || Ok(!is_alive(victim.pid())))?;
        ensure!(alive().len() == before.len() - 1, "{flags:?}: {before:?} became {:?}", alive());
    }
    // With nothing left to end, neither does.
    simulation.rewrite(&lab(&[(&good, 0, 5 * 1024)]));
    let flags = ["--non-env-processes"];
    assert_eq!(ours(&peer, &flags)?, (Vec::new(), BTreeSet::new()));
    theirs(&peer, &flags)?;
    ensure!(alive() == [good.pid(), member.pid()].into());
    Ok(())
}
