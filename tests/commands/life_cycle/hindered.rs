//! Obstacles that another user puts into the state directory or into its lock's place while commands change the state.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_tests::lease::lease;
use genv_tests::patience::{Lines, ended, until};
use genv_tests::process::Running;
use genv_tests::shell::Account;
use genv_tests::state;
use serde_json::Value;

use crate::life_cycle::damaged::make_pipe;
use crate::life_cycle::running::{genv, run};

const EXEC: [&str; 4] = ["exec", "--gpus=1", "--", "true"];

/// An account on a machine where a command has changed the state once.
fn account() -> Result<Account> {
    let account = Account::new()?;
    ensure!(run(&account, &EXEC)?.0 == 0);
    Ok(account)
}

#[test]
fn no_two_commands_get_one_device_while_somebody_removes_the_lock() -> Result<()> {
    let account = account()?;
    let lock = account.state().join("genv.lock");
    let ends = AtomicBool::new(false);
    let holds = ["exec", "--gpus=2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line"];
    let start = || -> Result<Child> {
        let mut command = genv(&account, &holds)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(command.spawn()?)
    };
    let devices =
        |child: &mut Child| -> Result<String> { Lines::of(child.stdout.take().context("no stdout")?).next_line() };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                // The user removes the lock again and again.
                let _ = fs::remove_file(&lock);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let pairs = || -> Result<()> {
            for pair in 0..10 {
                let (mut one, mut other) = (start()?, start()?);
                // Both hold devices until their inputs end.
                let held = [devices(&mut one), devices(&mut other)];
                for child in [&mut one, &mut other] {
                    drop(child.stdin.take());
                    ended(child)?;
                }
                let [first, second] = held;
                let (first, second) = (first?, second?);
                ensure!(first != second, "pair {pair}: both have {first}");
            }
            Ok(())
        };
        let done = pairs();
        ends.store(true, Ordering::SeqCst);
        done
    })
}

type Plant = fn(&Path) -> std::io::Result<()>;

const PLANTS: &[(&str, Plant)] = &[
    ("a full folder", |path| fs::create_dir_all(path.join("x"))),
    ("a link", |path| symlink("/etc/passwd", path)),
    ("a dangling link", |path| symlink("/nonexistent/file", path)),
    ("a pipe", make_pipe),
];

#[test]
fn what_is_no_lock_stops_no_command_and_its_owner_is_named() -> Result<()> {
    let account = account()?;
    let lock = account.state().join("genv.lock");
    for (what, plant) in PLANTS {
        fs::remove_file(&lock)?;
        plant(&lock)?;
        let (code, _, stderr) = run(&account, &EXEC)?;
        ensure!(code == 0, "{what}: {stderr}");
        ensure!(stderr.contains("genv.lock is no lock") && stderr.contains("of user "), "{what}: {stderr}");
        let found = fs::symlink_metadata(&lock)?;
        ensure!(found.is_file(), "{what}: {found:?}");
        let (code, _, stderr) = run(&account, &EXEC)?;
        ensure!(code == 0 && stderr.is_empty(), "{what}: {stderr}");
    }
    Ok(())
}

#[test]
fn who_holds_the_lock_of_the_folder_is_named_to_all_who_wait() -> Result<()> {
    let account = account()?;
    let mut flock = Command::new("flock");
    flock.arg("--no-fork").arg(account.state());
    flock.args(["sleep", "1000000"]).stdin(Stdio::null());
    let mut holder = Running::spawn(&mut flock)?;
    let held = format!("process {} (sleep)", holder.id());
    until("it is held", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", holder.id()))?;
        Ok(comm == "sleep\n")
    })?;
    let start = || -> Result<Child> {
        let mut command = genv(&account, &["exec", "--", "true"])?;
        command.stderr(Stdio::piped());
        Ok(command.spawn()?)
    };
    // The second command waits for the first, and both wait for the holder.
    let both = [start()?, start()?];
    for child in both {
        let done = child.wait_with_output()?;
        let stderr = String::from_utf8(done.stderr)?;
        ensure!(done.status.code() == Some(6), "{}: {stderr}", done.status);
        ensure!(stderr.contains(&held), "{stderr}");
    }
    holder.kill()?;
    ensure!(run(&account, &EXEC)?.0 == 0);
    Ok(())
}

#[test]
fn what_stands_in_the_place_of_confirmations_is_put_aside() -> Result<()> {
    let account = account()?;
    let uid = rustix::process::getuid().as_raw();
    let file = account.state().join(format!("genv-confirmed-{uid}.json"));
    for (what, plant) in PLANTS {
        // The file exists already.
        fs::remove_file(&file)?;
        plant(&file)?;
        let (code, _, stderr) = run(&account, &EXEC)?;
        ensure!(code == 0, "{what}: {stderr}");
        let content = fs::read(&file).with_context(|| format!("{what}: {stderr}"))?;
        let content: Value = serde_json::from_slice(&content)?;
        let changes = content["changes"].as_array().context("no changes")?;
        ensure!(changes.iter().any(|it| it["change"] == "attached"), "{what}: {content:#}");
        // Only a folder cannot be replaced.
        let is_named = stderr.contains("of user ") && stderr.contains("is kept as");
        ensure!(is_named == (*what == "a full folder"), "{what}: {stderr}");
    }
    Ok(())
}

#[test]
fn a_lease_on_a_state_file_stops_no_command_and_its_user_is_named() -> Result<()> {
    let account = account()?;
    let shows = ["exec", "--gpus=1", "--", "sh", "-c", "echo $GENV_ENVIRONMENT_ID; read line"];
    let mut command = genv(&account, &shows)?;
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let eid = Lines::of(job.stdout.take().context("no stdout")?).next_line()?;
    let succeeds = |words: &[&str]| -> Result<(String, String)> {
        let (code, stdout, stderr) = run(&account, words)?;
        ensure!(code == 0, "{words:?}: {stderr}");
        Ok((stdout, stderr))
    };
    for name in ["genv.lock", state::FILE, state::COPY] {
        let _lease = lease(&account.state().join(name))?;
        let (devices, stderr) = succeeds(&["devices"]).context(name)?;
        ensure!(devices.contains(&eid), "{name}: {devices}");
        ensure!(stderr.contains("has a lease on it") == (name == state::FILE), "{name}: {stderr}");
        let (_, stderr) = succeeds(&EXEC).context(name)?;
        let is_kept = stderr.contains("has a lease on it") && stderr.contains("is kept as");
        // The copy is written again without a word.
        let is_expected = if name == state::COPY { stderr.is_empty() } else { is_kept };
        ensure!(is_expected, "{name}: {stderr}");
        let (_, stderr) = succeeds(&EXEC).context(name)?;
        ensure!(stderr.is_empty(), "{name}: {stderr}");
        let (devices, _) = succeeds(&["devices"])?;
        ensure!(devices.contains(&eid), "{name}: {devices}");
    }
    drop(job.stdin.take());
    ended(&mut job)?;
    Ok(())
}
