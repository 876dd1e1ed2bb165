//! The enforcement of genv 1.4.3 beside ours: the same processes, the same state, the same flags. Ours says first what it
//! would do; then genv 1.4.3 does it.

mod stage;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{ends, is_alive, sleeper_of};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use genv_tests::process::{self, Sleeper};
use rustix::process::{Signal, geteuid};
use serde_json::Value;
use stage::*;

#[test]
fn where_both_are_right_they_name_the_same() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let stray = outside()?;
    let good = in_environment("good")?;
    let greedy_member = in_environment("greedy")?;
    stage.environment("good", &good, &[0])?;
    stage.environment("greedy", &greedy_member, &[])?;
    let elsewhere = in_environment("good")?;
    let greedy = in_environment("greedy")?;
    stage.limit_memory("greedy", "2gi")?;
    stage.peer.genv(&["devices", "attach", "--eid", "greedy", "--index", "2"])?;
    let uses = [(&stray, 0, 1024), (&good, 0, 5 * 1024), (&elsewhere, 1, 1024), (&greedy, 2, 5 * 1024)];
    let all = [&stray, &good, &elsewhere, &greedy_member, &greedy];
    // What each rule names, by itself.
    for (flags, rule, victim) in [
        (&ONLY_OUTSIDE[..], "non-env-processes", &stray),
        (&ONLY_DEVICES[..], "env-devices", &elsewhere),
        (&ONLY_MEMORY[..], "env-memory", &greedy),
    ] {
        // genv 1.4.3 does not survive a driver that still names a process that has ended.
        let alive = uses.iter().filter(|(process, ..)| is_alive(process.pid()));
        simulation.rewrite(&lab(&alive.copied().collect::<Vec<_>>()));
        let status = stage.ours(flags)?;
        assert_eq!(rules(&status), [rule], "{status:#}");
        let ours = named(&status)?;
        assert_eq!(ours.pids, [victim.pid()].into(), "{status:#}");
        ensure!(is_alive(victim.pid()), "a dry run has ended it");
        let processes: Vec<&Sleeper> = all.into_iter().filter(|process| is_alive(process.pid())).collect();
        assert_eq!(stage.ended_by_theirs(flags, &processes, &ours)?, ours);
    }
    // With nothing left to name, neither does.
    simulation.rewrite(&lab(&[(&good, 0, 5 * 1024)]));
    assert_eq!(rules(&stage.ours(&ONLY_OUTSIDE)?), [""; 0]);
    stage.theirs(&["--non-env-processes"])?;
    ensure!(is_alive(good.pid()) && is_alive(greedy_member.pid()));
    Ok(())
}

#[test]
fn a_user_with_too_many_devices_is_named_by_both_and_we_take_the_newest() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let member = in_environment("wide")?;
    stage.environment("wide", &member, &[0])?;
    let old = in_environment("wide")?;
    let new = in_environment("wide")?;
    // The state has whole seconds.
    let attached = || fs::read_to_string(stage.peer.state_directory().join("devices.json"));
    let second = |text: &str| Some(text.split_once("\"time\": \"")?.1[..19].to_owned());
    let first = second(&attached()?).context("no time")?;
    until("the clock goes on", || {
        let output = Command::new("date").arg("+%d/%m/%Y %H:%M:%S").output()?;
        Ok(String::from_utf8(output.stdout)?.trim() != first)
    })?;
    stage.peer.genv(&["devices", "attach", "--eid", "wide", "--index", "3"])?;
    simulation.rewrite(&lab(&[(&old, 0, 1024), (&new, 3, 1024)]));

    let flags = [&NONE[..], &["--max-devices-per-user", "1"]].concat();
    let status = stage.ours(&flags)?;
    assert_eq!(rules(&status), ["max-devices-per-user"]);
    assert_eq!(status["violations"][0]["username"], stage.username);
    assert_eq!(status["violations"][0]["found"], "holds 2 devices");
    let newest = Named { pids: [new.pid()].into(), attachments: [("wide".to_owned(), 3)].into() };
    assert_eq!(named(&status)?, newest);
    // It takes one as well, by the order of the devices: the one that was held longest.
    let oldest = Named { pids: [old.pid()].into(), attachments: [("wide".to_owned(), 0)].into() };
    let processes = [&member, &old, &new];
    assert_eq!(stage.ended_by_theirs(&flags, &processes, &oldest)?, oldest);
    Ok(())
}

#[test]
fn a_maximum_for_one_user_alone_is_ignored_by_theirs_and_holds_with_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let member = in_environment("wide")?;
    stage.environment("wide", &member, &[0, 1])?;
    let maximum = format!("{}=1", stage.username);
    let flags = [&NONE[..], &["--max-devices-for-user", &maximum]].concat();
    let status = stage.ours(&flags)?;
    assert_eq!(rules(&status), ["max-devices-per-user"], "{status:#}");
    assert_eq!(named(&status)?.attachments.len(), 1);
    let held = stage.attachments()?;
    ensure!(stage.theirs(&flags)?.status.success());
    assert_eq!(stage.attachments()?, held);
    // Beside a maximum for everybody it counts there too, and is the same.
    let flags = [&flags[..], &["--max-devices-per-user", "4"]].concat();
    assert_eq!(named(&stage.ours(&flags)?)?.attachments.len(), 1);
    ensure!(stage.theirs(&flags)?.status.success());
    assert_eq!(stage.attachments()?.len(), 1);
    Ok(())
}

#[test]
fn a_forged_or_an_empty_id_evades_theirs_and_not_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let (forged, empty) = (in_environment("nosuch")?, in_environment("")?);
    simulation.rewrite(&lab(&[(&forged, 0, 1024), (&empty, 1, 1024)]));
    let flags = ["--non-env-processes"];
    let ours = named(&stage.ours(&flags)?)?;
    assert_eq!(ours.pids, [forged.pid(), empty.pid()].into());
    let ended = stage.ended_by_theirs(&flags, &[&forged, &empty], &Named::default())?;
    assert_eq!(ended, Named::default());
    Ok(())
}

#[test]
fn a_process_of_which_the_evidence_is_missing_is_ended_by_theirs_and_spared_by_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let bare = sleeper_of(stage.uid, &[])?;
    simulation.rewrite(&lab(&[(&bare, 0, 1024)]));
    let flags = ["--non-env-processes"];
    let status = stage.ours(&flags)?;
    assert_eq!(named(&status)?, Named::default());
    let unknown = status["unknown_processes"].as_object();
    let unknown = unknown.and_then(|it| it.values().next()).cloned();
    assert_eq!(unknown, Some(Value::from(1)), "{status:#}");
    let theirs = Named { pids: [bare.pid()].into(), attachments: BTreeSet::new() };
    assert_eq!(stage.ended_by_theirs(&flags, &[&bare], &theirs)?, theirs);
    Ok(())
}

#[test]
fn we_end_the_fewest_processes_that_free_the_memory() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let member = in_environment("full")?;
    let uses = [1024, 1536, 900];
    let processes: Vec<Sleeper> = uses.iter().map(|_| in_environment("full")).collect::<Result<_>>()?;
    stage.environment("full", &member, &[])?;
    stage.limit_memory("full", "2gi")?;
    stage.peer.genv(&["devices", "attach", "--eid", "full", "--index", "0"])?;
    let using: Vec<(&Sleeper, u32, u32)> =
        processes.iter().zip(uses).map(|(process, memory)| (process, 0, memory)).collect();
    simulation.rewrite(&lab(&using));
    let ours = named(&stage.ours(&ONLY_MEMORY)?)?;
    // 3460 of 2048 MiB are used: the one with 1536 MiB alone suffices.
    assert_eq!(ours.pids, [processes[1].pid()].into());
    ensure!(stage.theirs(&ONLY_MEMORY)?.status.success());
    let freed = || -> u32 {
        let ended = processes.iter().zip(uses);
        let ended = ended.filter(|(process, _)| !is_alive(process.pid()));
        ended.map(|(_, memory)| memory).sum()
    };
    until("it has freed as much", || Ok(freed() >= 3460 - 2048))
}

#[test]
fn what_was_asked_for_later_counts_with_theirs_and_what_was_reserved_with_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let member = in_environment("raised")?;
    stage.environment("raised", &member, &[])?;
    let greedy = in_environment("raised")?;
    stage.limit_memory("raised", "2gi")?;
    stage.peer.genv(&["devices", "attach", "--eid", "raised", "--index", "0"])?;
    stage.limit_memory("raised", "8gi")?;
    simulation.rewrite(&lab(&[(&greedy, 0, 5 * 1024)]));
    let ours = named(&stage.ours(&ONLY_MEMORY)?)?;
    assert_eq!(ours.pids, [greedy.pid()].into());
    let spared = Named::default();
    let theirs = stage.ended_by_theirs(&ONLY_MEMORY, &[&greedy], &spared)?;
    assert_eq!(theirs, spared);
    Ok(())
}

/// Nobody else can start such a process.
#[test]
#[ignore = "needs root"]
fn root_is_ended_by_theirs_and_out_of_reach_of_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    simulation.rewrite(&lab(&[(&process, 0, 1024)]));
    let flags = ["--non-env-processes"];
    assert_eq!(named(&stage.ours(&flags)?)?, Named::default());
    stage.theirs(&flags)?;
    ends(process.pid())
}

#[test]
fn what_is_damaged_in_one_environment_ends_theirs_and_not_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let (member, stray) = (in_environment("odd")?, outside()?);
    stage.environment("odd", &member, &[1])?;
    stage.limit_memory("odd", "2gi")?;
    simulation.rewrite(&lab(&[(&stray, 0, 1024), (&member, 1, 1024)]));
    let path = stage.peer.state_directory().join("envs.json");
    let whole = fs::read_to_string(&path)?;
    let damaged = whole.replace("\"gpu_memory\": \"2gi\"", "\"gpu_memory\": \"abc\"");
    ensure!(damaged != whole, "{whole}");
    fs::write(&path, damaged)?;
    let flags = ["--non-env-processes"];
    assert_eq!(named(&stage.ours(&flags)?)?.pids, [stray.pid()].into());
    let output = stage.theirs(&flags)?;
    ensure!(!output.status.success(), "{output:?}");
    ensure!(is_alive(stray.pid()) && is_alive(member.pid()));
    Ok(())
}

#[test]
fn a_process_that_has_ended_and_is_still_listed_ends_theirs_and_not_ours() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let (gone, stray) = (outside()?, outside()?);
    // Nobody has waited for it.
    process::signal(gone.pid(), Signal::KILL)?;
    ends(gone.pid())?;
    simulation.rewrite(&lab(&[(&gone, 0, 1024), (&stray, 0, 1024)]));
    let flags = ["--non-env-processes"];
    assert_eq!(named(&stage.ours(&flags)?)?.pids, [stray.pid()].into());
    let output = stage.theirs(&flags)?;
    ensure!(!output.status.success(), "{output:?}");
    ensure!(is_alive(stray.pid()));
    Ok(())
}

#[test]
fn who_does_not_end_is_signalled_by_theirs_each_time() -> Result<()> {
    let simulation = Simulation::new(&lab(&[]));
    let stage = Stage::new(&simulation)?;
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let mut command = Command::new("/bin/sh");
    command
        .env_clear()
        .env("PATH", "/bin")
        .current_dir(folder.path())
        .args(["-c", "trap 'echo told >>told' TERM; touch ready; while :; do sleep 0.05; done"]);
    if geteuid().is_root() {
        command.uid(stage.uid).gid(stage.uid);
    }
    let stubborn = Sleeper::spawn(&mut command)?;
    until("it waits for signals", || Ok(folder.path().join("ready").exists()))?;
    simulation.rewrite(&lab(&[(&stubborn, 0, 1024)]));
    let signals = || {
        let told = fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        told.lines().count()
    };
    for times in 1..=2 {
        stage.theirs(&["--non-env-processes"])?;
        until("it was told", || Ok(signals() >= times))?;
    }
    Ok(())
}
