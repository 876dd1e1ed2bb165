//! Jobs that outlive a login, as logind and the users' own systemd treat them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, SCENARIO};
use genv_tests::patience::until;
use serde_json::Value;

use crate::boot;
use crate::login::{ALICE, BOB, Login, Logout, contexts, logind, prepare};

/// How users start jobs that outlive the login: `EID` is the environment, `JOB` the job.
const STARTS: [(&str, Logout); 11] = [
    ("ACTIVATE; nohup JOB &", Logout::Lost),
    ("ACTIVATE; setsid JOB &", Logout::Exit),
    ("ACTIVATE; setsid JOB &", Logout::Lost),
    ("ACTIVATE; JOB & disown", Logout::Lost),
    ("ACTIVATE; tmux -L EID new-session -d 'JOB'", Logout::Lost),
    (
        // A server that was started before knows nothing of the shell's environment.
        "tmux -L EID new-session -d -s one && tmux -L EID send-keys -t one 'ACTIVATE; JOB' Enter",
        Logout::Exit,
    ),
    ("ACTIVATE; screen -dmS EID JOB", Logout::Exit),
    ("ACTIVATE; systemd-run --user --scope JOB &", Logout::Exit),
    ("ACTIVATE; nohup systemd-run --user --scope JOB &", Logout::Lost),
    ("systemd-run --user genv exec --eid EID --gpus 1 -- JOB", Logout::Exit),
    ("genv exec --detach --eid EID --gpus 1 -- JOB", Logout::Lost),
];

struct Job {
    eid: String,
    pid: u32,
}

/// Has a user start a job in an environment of its own, on the device of this index, and log out.
fn leave(
    machine: &Machine,
    (start, how): (&str, Logout),
    index: usize,
    works: &mut impl FnMut(u32) -> Result<()>,
) -> Result<Job> {
    let eid = format!("e{index}");
    let written = machine.path(&format!("tmp/{eid}"));
    let _ = fs::remove_file(&written);
    let line = start
        .replace("JOB", "sh /tmp/run EID > /dev/null 2>&1 < /dev/null")
        .replace("ACTIVATE", "genv activate --id EID --gpus 1")
        .replace("-- sh /tmp/run EID > /dev/null 2>&1 < /dev/null", "-- sh /tmp/run EID")
        .replace("EID", &eid);
    machine.write("tmp/run", "echo $$ > /tmp/$1; exec sleep 1000000\n")?;
    let mut login = Login::start(machine, ALICE)?;
    login.types(&line)?;
    let mut pid = String::new();
    until("the job runs", || {
        pid = fs::read_to_string(&written).unwrap_or_default();
        Ok(pid.ends_with('\n'))
    })
    .with_context(|| format!("{line}: {}", login.shown()))?;
    let pid = pid.trim().parse()?;
    works(pid)?;
    login.ends(how).with_context(|| line.clone())?;
    Ok(Job { eid, pid })
}

fn genv(machine: &Machine, user: &str, words: &[&str]) -> Result<String> {
    let scenario = format!("GENV_SCENARIO=/{SCENARIO}");
    let user = ["setpriv", "--reuid", user, "--clear-groups", "env", &scenario];
    machine.run(&[&user[..], &["genv"], words].concat())
}

/// Starts both daemons; the enforcer ends at once what is outside of environments.
fn enforce(machine: &Machine) -> Result<()> {
    machine.write(
        "etc/genv/enforcer.yaml",
        "version: 1\nmode: enforce\ninterval: 100ms\nbreaker: {share_of_users: 1}\n\
         rules: [{kind: non-env-processes, action: terminate, for: 0s, warn: []}]\n",
    )?;
    machine.configure(
        "genv-exporter",
        "often",
        "[Service]\nExecStart=\nExecStart=/usr/bin/genv-exporter --web.systemd-socket --interval=100ms\n",
    )?;
    machine.run(&["systemctl", "enable", "--now", "genv-exporter", "genv-enforcer"])?;
    Ok(())
}

fn signalled(machine: &Machine) -> Result<Vec<u64>> {
    let audit = machine.read("var/lib/genv-enforcer/audit.jsonl").unwrap_or_default();
    let lines = audit.lines().map(serde_json::from_str::<Value>);
    let pids = lines.map(|line| line?["pid"].as_u64().context("no pid"));
    pids.collect()
}

#[test]
fn a_job_on_a_device_keeps_its_environment_after_the_logout() -> Result<()> {
    let machine = boot()?;
    prepare(&machine)?;
    logind(&machine, "KillUserProcesses=no")?;
    machine.run(&["loginctl", "enable-linger", ALICE])?;
    let devices = STARTS.len();
    contexts(&machine, devices, &[])?;
    enforce(&machine)?;
    let mut jobs: Vec<Job> = Vec::new();
    for (index, start) in STARTS.into_iter().enumerate() {
        let mut on_devices: Vec<(u32, usize)> = jobs.iter().map(|it| it.pid).zip(0..).collect();
        let job = leave(&machine, start, index, &mut |pid| {
            on_devices.push((pid, index));
            contexts(&machine, devices, &on_devices)
        })?;
        jobs.push(job);
    }
    for (index, (job, (start, _))) in jobs.iter().zip(STARTS).enumerate() {
        ensure!(machine.is_alive(job.pid), "{start}: {}", machine.log("genv-enforcer"));
        for user in ["root", BOB, ALICE] {
            let found = genv(&machine, user, &["devices", "find", "--eid", &job.eid])?;
            ensure!(found == format!("{index}\n"), "{start}, asked by {user}: {found:?}");
        }
    }
    until("the exporter shows each job in its environment", || {
        let scrape = machine.scrape(9820)?;
        let in_environments = scrape.value("genv_processes", &[("state", "environment")])?;
        let shown = |(index, job): (usize, &Job)| {
            let (eid, index) = (job.eid.as_str(), index.to_string());
            let held = [("eid", eid), ("index", index.as_str())];
            !scrape.all("genv_environment_device_share_ratio", &held).is_empty()
        };
        Ok(in_environments == jobs.len() as f64 && jobs.iter().enumerate().all(shown))
    })?;
    // The enforcer, which is as fast, has seen them too.
    machine.wait_for_status("genv-enforcer", |status| status == "enforce: 1 rules, 0 violations")?;
    let signalled = signalled(&machine)?;
    ensure!(signalled.is_empty(), "{signalled:?}");

    // With the job the environment ends.
    for job in &jobs {
        machine.run(&["kill", "-KILL", &job.pid.to_string()])?;
    }
    contexts(&machine, devices, &[])?;
    until("the devices are free", || Ok(genv(&machine, ALICE, &["envs", "--no-header"])?.lines().count() <= 1))?;
    Ok(())
}

#[test]
fn what_logind_ends_at_the_logout_gives_its_device_back() -> Result<()> {
    let machine = boot()?;
    prepare(&machine)?;
    contexts(&machine, 1, &[])?;
    let (nohup, scope, detached) = (STARTS[0], STARTS[8], STARTS[10]);
    for (kill, linger, start, stays) in [
        ("no", "disable-linger", nohup, true),
        ("no", "disable-linger", scope, false),
        ("yes", "disable-linger", nohup, false),
        ("yes", "enable-linger", scope, true),
        ("no", "disable-linger", detached, true),
        ("yes", "enable-linger", detached, true),
    ] {
        logind(&machine, &format!("KillUserProcesses={kill}"))?;
        machine.run(&["loginctl", linger, ALICE])?;
        let job = leave(&machine, start, 0, &mut |pid| contexts(&machine, 1, &[(pid, 0)]))?;
        let case = format!("KillUserProcesses={kill}, {linger}, {}", start.0);
        until("the session is closed", || {
            let sessions = machine.run(&["loginctl", "--no-legend", "list-sessions"])?;
            Ok(stays || sessions.is_empty())
        })
        .with_context(|| case.clone())?;
        if stays {
            ensure!(machine.is_alive(job.pid), "{case}");
            let found = genv(&machine, BOB, &["devices", "find", "--eid", &job.eid])?;
            ensure!(found == "0\n", "{case}: {found:?}");
            machine.run(&["kill", "-KILL", &job.pid.to_string()])?;
        } else {
            until("the job has ended", || Ok(!machine.is_alive(job.pid))).with_context(|| case.clone())?;
        }
        contexts(&machine, 1, &[])?;
        // Another user gets it at once unless a process of alice is left, such as a lingering service manager.
        let next = if linger == "enable-linger" { ALICE } else { BOB };
        until("the device is free", || Ok(genv(&machine, next, &["exec", "--gpus", "1", "--", "true"]).is_ok()))
            .with_context(|| case)?;
    }
    Ok(())
}

#[test]
fn a_job_that_the_logout_would_end_is_refused() -> Result<()> {
    let machine = boot()?;
    prepare(&machine)?;
    contexts(&machine, 1, &[])?;
    logind(&machine, "KillUserProcesses=yes")?;
    let mut login = Login::start(&machine, ALICE)?;
    login.runs(&machine, "! genv exec --detach --gpus 1 -- sleep 1000000 2> /tmp/refused; genv jobs > /tmp/jobs")?;
    let refused = machine.read("tmp/refused")?;
    ensure!(
        refused.starts_with("genv: cannot start a job: ") && refused.contains("loginctl enable-linger"),
        "{refused}"
    );
    ensure!(machine.read("tmp/jobs")?.lines().count() <= 1);
    genv(&machine, ALICE, &["exec", "--gpus", "1", "--", "true"])?;
    // The remedy of the message helps; here root has to apply it.
    machine.run(&["loginctl", "enable-linger", ALICE])?;
    login.runs(&machine, "genv exec --detach --gpus 1 -- sleep 1000000")?;
    login.ends(Logout::Exit)?;
    until("the session is closed", || {
        let sessions = machine.run(&["loginctl", "--no-legend", "list-sessions"])?;
        Ok(!sessions.contains("pts/"))
    })?;
    let mut login = Login::start(&machine, ALICE)?;
    login.runs(&machine, "genv jobs --no-header > /tmp/jobs; genv stop 1")?;
    let jobs = machine.read("tmp/jobs")?;
    ensure!(jobs.contains("running"), "{jobs}");
    login.runs(&machine, "genv exec --gpus 1 -- true")?;
    Ok(())
}

#[test]
fn commands_and_the_logout_of_one_user_end_nothing_of_another() -> Result<()> {
    let machine = boot()?;
    prepare(&machine)?;
    contexts(&machine, 4, &[])?;
    enforce(&machine)?;
    // Alice has a shell that waits in one environment, and has left a job behind in another.
    let job = leave(&machine, STARTS[0], 0, &mut |pid| contexts(&machine, 4, &[(pid, 0)]))?;
    let mut alice = Login::start(&machine, ALICE)?;
    alice.runs(&machine, "genv activate --id idle --gpus 1")?;
    let stay = |what: &str| -> Result<()> {
        ensure!(machine.is_alive(job.pid), "{what}: {}", machine.log("genv-enforcer"));
        for (eid, index) in [(job.eid.as_str(), "0\n"), ("idle", "1\n")] {
            let found = genv(&machine, ALICE, &["devices", "find", "--eid", eid])?;
            ensure!(found == index, "{what}: {eid} has {found:?}");
        }
        Ok(())
    };
    for how in [Logout::Exit, Logout::Lost] {
        let mut bob = Login::start(&machine, BOB)?;
        for line in [
            "genv devices",
            "genv envs",
            "genv activate --id his --gpus 2",
            "genv attach --count 2",
            "genv status",
            "genv detach",
            "genv config gpus 1",
            "genv attach",
            "genv deactivate --end",
            "genv exec --gpus 2 -- true",
            "genv activate --id his --gpus 1",
        ] {
            bob.runs(&machine, line)?;
            stay(line)?;
        }
        bob.ends(how)?;
        stay("the logout")?;
    }
    // Alice's logout ends nothing of bob's.
    let mut bob = Login::start(&machine, BOB)?;
    bob.runs(&machine, "genv activate --id his --gpus 1")?;
    alice.ends(Logout::Lost)?;
    machine.run(&["kill", "-KILL", &job.pid.to_string()])?;
    contexts(&machine, 4, &[])?;
    genv(&machine, ALICE, &["exec", "--gpus", "3", "--", "true"])?;
    for user in ["root", ALICE, BOB] {
        let found = genv(&machine, user, &["devices", "find", "--eid", "his"])?;
        ensure!(found == "2\n", "{user}: {found:?}");
    }
    bob.runs(&machine, "genv status")?;
    let signalled = signalled(&machine)?;
    ensure!(signalled.is_empty(), "{signalled:?}");
    Ok(())
}
