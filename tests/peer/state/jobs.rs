//! Jobs that outlive their shell, while the real genv 1.4.3 clears what has no living member.

use anyhow::{Result, ensure};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::peer::{Peer, Shell};
use genv_tests::process::Orphan;

use crate::state::{activate_by_peer, me, peer, read};

/// A shell of ours in the environment `e1` with device 0, and a job that it started there.
fn job(peer: &Peer) -> Result<(Shell, Orphan)> {
    let mut shell = peer.our_shell()?;
    shell.run("genv activate --id e1 --gpus 1 --name training")?;
    let line = "nohup setsid sleep 1000 > /dev/null 2>&1 & echo $!";
    let job = Orphan(shell.run(line)?.trim().parse()?);
    until("the job is a program", || {
        // It has left the group of the shell then.
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", job.0))?;
        Ok(comm == "sleep\n")
    })?;
    Ok((shell, job))
}

fn held_by_e1(printed: &str) -> bool {
    printed.trim() == "0"
}

#[test]
fn a_job_that_one_command_of_ours_recorded_keeps_its_environment_when_the_other_clears() -> Result<()> {
    let (simulation, peer, _store) = peer(2)?;
    let (mut shell, job) = job(&peer)?;
    shell.run("genv status")?;
    shell.kill()?;
    for _ in 0..2 {
        peer.genv(&["devices"])?;
        let found = peer.genv(&["devices", "find", "--eid", "e1"])?;
        ensure!(held_by_e1(&found), "{found}");
    }
    ensure!(read(&peer, "envs.json")?.contains("\"training\""));
    // Commands of ours keep it for its context, not for its record.
    simulation.rewrite(&used_by(&[job.0]));
    ensure!(held_by_e1(&peer.our_genv(&["devices", "find", "--eid", "e1"])?));
    drop(job);
    peer.our_genv(&["exec", "--gpus", "2", "--", "true"])?;
    ensure!(!held_by_e1(&peer.genv(&["devices", "find", "--eid", "e1"])?));
    Ok(())
}

#[test]
fn what_the_other_cleared_is_restored_by_its_user_while_its_job_works_on_a_free_device() -> Result<()> {
    // A reading command, and one that changes something else.
    for restorer in [&["devices"][..], &["exec", "--gpus", "1", "--", "true"]] {
        let (simulation, peer, _store) = peer(2)?;
        let (mut shell, job) = job(&peer)?;
        shell.kill()?;
        peer.genv(&["devices"])?;
        ensure!(!read(&peer, "devices.json")?.contains("\"e1\""));
        if restorer.len() == 1 {
            peer.genv(&["envs"])?;
            ensure!(!read(&peer, "envs.json")?.contains("\"e1\""));
        }
        simulation.rewrite(&used_by(&[job.0]));
        // A snapshot, which changes nothing, shows it already.
        let snapshot = peer.our_genv(&["snapshot"])?;
        ensure!(snapshot.contains("\"eid\":\"e1\""), "{snapshot}");
        ensure!(!read(&peer, "devices.json")?.contains("\"e1\""));
        peer.our_genv(restorer)?;
        ensure!(held_by_e1(&peer.genv(&["devices", "find", "--eid", "e1"])?));
        let query = ["envs", "query", "--query", "eid", "config.name", "config.gpus"];
        ensure!(peer.our_genv(&query)?.trim() == "e1,training,1");
        ensure!(read(&peer, "envs.json")?.contains(&job.0.to_string()));
    }
    Ok(())
}

#[test]
fn what_the_other_cleared_stays_cleared_without_a_context_or_a_free_device() -> Result<()> {
    for is_taken in [false, true] {
        let (simulation, peer, _store) = peer(1)?;
        let (mut shell, job) = job(&peer)?;
        shell.kill()?;
        peer.genv(&["devices"])?;
        if is_taken {
            activate_by_peer(&peer, "theirs", &me())?;
            peer.genv(&["devices", "attach", "--eid", "theirs", "--index", "0"])?;
            simulation.rewrite(&used_by(&[job.0]));
        }
        ensure!(peer.our_genv(&["devices", "find", "--eid", "e1"])?.trim().is_empty());
        peer.our_genv(&["exec", "--", "true"])?;
        ensure!(!read(&peer, "envs.json")?.contains("\"e1\""));
    }
    Ok(())
}
