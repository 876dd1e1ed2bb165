//! Processes of several users, which only root can start.

mod names;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use genv_tests::enforcer::sleeper_of;
use genv_tests::nvml_sim::used_by;
use genv_tests::patience;
use genv_tests::process::{Sleeper, shared_folder};
use genv_tests::root::{FIRST_UID, require_root};
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

use crate::{ALICE, BOB};

fn process_of(uid: u32, claim: &str) -> Result<Sleeper> {
    sleeper_of(uid, &[("GENV_ENVIRONMENT_ID", claim)])
}

/// A command of a user in this folder, which has genv and its state, on a machine with two invented devices.
fn command(folder: &Path, uid: u32, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin").env("GENV_DEVICES", "2");
    command.env("GENV_TMPDIR", folder.join("state")).uid(uid).gid(uid);
    command
}

/// What `words` in front of a genv that shows the state from within Alice's environment came to.
fn within(folder: &Path, words: &[&str]) -> Result<Output> {
    let exec = ["./genv", "exec", "--gpus", "1", "--", "cat", "state/state.json"];
    patience::output(&mut command(folder, ALICE, &[words, &exec].concat()))
}

#[test]
fn in_a_user_namespace_an_environment_is_its_users_or_is_refused() -> Result<()> {
    require_root();
    let folder = shared_folder()?;
    let state = folder.path().join("state");
    let uid_of = |output: &Output| -> Result<Value> {
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let state: Value = serde_json::from_slice(&output.stdout)?;
        Ok(state["environments"][0]["uid"].clone())
    };
    let refused = |words: &[&str]| -> Result<()> {
        let output = within(folder.path(), words)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{words:?}: {}: {stderr}", output.status);
        ensure!(stderr.contains("this user namespace"), "{words:?}: {stderr}");
        ensure!(stderr.contains("run genv outside of the namespace"), "{words:?}: {stderr}");
        ensure!(!fs::read_to_string(state.join(state::FILE)).is_ok_and(|it| it.contains("\"uid\"")));
        Ok(())
    };
    // Another user's directory: it is shared with this machine.
    for words in [&["unshare", "-r"][..], &["unshare", "-U"], &["unshare", "-r", "unshare", "-r"]] {
        refused(words)?;
    }
    ensure!(uid_of(&within(folder.path(), &[])?)? == ALICE);
    // One of her own may be shared as well.
    chown(&state, Some(ALICE), Some(ALICE))?;
    ensure!(uid_of(&within(folder.path(), &["unshare", "-r"])?)? == ALICE);
    for words in [
        &["unshare", "-U"][..],
        &["unshare", "-r", "unshare", "-r"],
        // Processes above the namespace are hidden, so that uids cannot be mapped, and pids mean other processes.
        &["unshare", "-r", "--pid", "--fork", "--mount-proc"],
        &["unshare", "--map-user=5", "--map-group=5", "unshare", "-r", "--pid", "--fork", "--mount-proc"],
    ] {
        refused(words)?;
    }
    // She reads it as usual.
    let read = patience::output(&mut command(folder.path(), ALICE, &["unshare", "-r", "./genv", "devices"]))?;
    ensure!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    Ok(())
}

/// What a user's line of sh prints, with genv in this folder, the driver of a scenario there and the state directory of all.
fn line_of(folder: &Path, uid: u32, line: &str) -> Result<String> {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder).env_clear();
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    command.env("GENV_SCENARIO", folder.join("driver.yaml")).env("GENV_TMPDIR", folder.join("state")).uid(uid).gid(uid);
    let output = patience::output(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_state_directory_without_the_right_to_write_is_named_by_those_who_write() -> Result<()> {
    require_root();
    let folder = shared_folder()?;
    let folder = folder.path();
    fs::write(folder.join("driver.yaml"), used_by(&[]))?;
    fs::create_dir_all(folder.join("state"))?;
    fs::set_permissions(folder.join("state"), fs::Permissions::from_mode(0o755))?;
    let shown = line_of(folder, BOB, "genv free 2>&1; genv devices 2>&1")?;
    ensure!(!shown.contains("genv.lock"), "{shown}");
    let shown = line_of(folder, BOB, "genv exec --gpus 1 -- true 2>&1; true")?;
    ensure!(shown.starts_with("genv: cannot lock genv's state with ") && shown.lines().count() == 1, "{shown}");
    Ok(())
}

#[test]
fn commands_of_others_never_end_an_environment_whose_job_they_cannot_read() -> Result<()> {
    require_root();
    // A program that may not be read may not be traced either: /proc shows it as root's, also to its own user.
    for (mode, is_damaged) in [(0o755, false), (0o711, false), (0o755, true)] {
        for ender in [ALICE, 0] {
            let folder = shared_folder()?;
            let folder = folder.path();
            fs::copy("/bin/sleep", folder.join("train"))?;
            fs::set_permissions(folder.join("train"), fs::Permissions::from_mode(mode))?;
            let driver = |pids: &[u32]| fs::write(folder.join("driver.yaml"), used_by(pids));
            driver(&[])?;
            let shell = process_of(ALICE, "none")?;
            let pid = shell.pid();
            line_of(
                folder,
                ALICE,
                &format!(
                    "genv envs activate --eid e1 --uid {ALICE} --pid {pid}; genv devices attach --eid e1 --count 1"
                ),
            )?;
            let mut train = Command::new(folder.join("train"));
            train.arg("1000").env_clear().env("GENV_ENVIRONMENT_ID", "e1").env("GENV_TMPDIR", folder.join("state"));
            let job = Sleeper::spawn(train.uid(ALICE).gid(ALICE))?;
            drop(shell);
            if is_damaged {
                fs::write(folder.join("state").join(state::FILE), "{\"environments\": [ nonsense")?;
            }
            let held = |uid: u32| -> Result<bool> {
                line_of(folder, uid, "genv exec --gpus 1 -- true")?;
                Ok(line_of(folder, uid, "genv devices find --eid e1")? == "0\n")
            };
            // Bob cannot read whether the job is in the environment.
            ensure!(held(BOB)?, "{mode:o}, damaged: {is_damaged}");
            driver(&[job.pid()])?;
            ensure!(held(BOB)? && held(ender)? && held(BOB)?, "{mode:o} {ender}, damaged: {is_damaged}");
            driver(&[])?;
            ensure!(held(BOB)?, "{mode:o} {ender}, damaged: {is_damaged}");
            line_of(folder, ender, "GENV_LINGER=0 genv exec --gpus 1 -- true")?;
            ensure!(!held(BOB)?, "{mode:o} {ender}, damaged: {is_damaged}");
            drop(job);
        }
    }
    Ok(())
}

/// The device in Alice's record after one of her commands, where a process of the user `of_process` is the only one in
/// the record. `uid`, the user of the process or root, runs `line` before.
fn left_of_record(of_process: u32, writes: bool, uid: u32, line: &str) -> Result<String> {
    let folder = shared_folder()?;
    let folder = folder.path();
    fs::write(folder.join("driver.yaml"), used_by(&[]))?;
    let process = process_of(of_process, "none")?;
    let state = folder.join("state");
    if writes {
        let listed = Environment::new("e1", ALICE, process.pid(), &[0]);
        state::write(&state, 2, &[listed])?;
        fs::set_permissions(state.join(state::FILE), fs::Permissions::from_mode(0o666))?;
    }
    line_of(folder, uid, &line.replace("PID", &process.pid().to_string()))?;
    line_of(folder, ALICE, "genv exec -- true")?;
    line_of(folder, ALICE, "genv devices find --eid e1")
}

#[test]
fn a_process_of_another_user_keeps_a_record_only_where_it_may_be_listed_rightly() -> Result<()> {
    require_root();
    const CAROL: u32 = FIRST_UID + 2;
    const DAEMON: u32 = 2;
    let changes = "genv exec -- true";
    // The process of a system user, or of a user whose commands write confirmations and have not confirmed this record.
    for (user, line) in [(DAEMON, "true"), (CAROL, changes), (0, changes)] {
        assert_eq!(left_of_record(user, true, user, line)?, "\n", "{user} {line}");
    }
    // A shell may be in an environment of genv 1.x whose uid another user changed.
    for user in [CAROL, 0] {
        assert_eq!(left_of_record(user, true, user, "true")?, "0\n", "{user}");
    }
    // Root may put any process into an environment.
    let joins = format!("genv envs activate --eid e1 --uid {ALICE} --pid PID; genv devices attach --eid e1 --count 1");
    assert_eq!(left_of_record(DAEMON, false, 0, &joins)?, "0\n");
    Ok(())
}

#[test]
fn what_is_forged_of_members_ends_no_environment() -> Result<()> {
    require_root();
    let folder = shared_folder()?;
    let folder = folder.path();
    fs::write(folder.join("driver.yaml"), used_by(&[]))?;
    let shell = process_of(ALICE, "none")?;
    let state = folder.join("state");
    for confirmed in [true, false] {
        for (key, value) in [
            ("start_time_ticks", json!(1)),
            ("pid_namespace", json!(4_026_532_178_u64)),
            ("boot_id", json!("00000000-0000-4000-8000-000000000000")),
        ] {
            for ender in [ALICE, 0, BOB] {
                let pid = shell.pid();
                let activate = format!(
                    "genv envs activate --eid e1 --uid {ALICE} --pid {pid}; genv devices attach --eid e1 --count 1"
                );
                line_of(folder, ALICE, &activate)?;
                let mut document = state::read(&state)?;
                let record = match key {
                    "boot_id" => &mut document,
                    _ => &mut document["environments"][0]["members"][0],
                };
                ensure!(record["pid"] == pid || key == "boot_id", "{record}");
                record[key] = value.clone();
                state::replace(&state, &document)?;
                if !confirmed {
                    fs::remove_file(state.join(format!("genv-confirmed-{ALICE}.json")))?;
                }
                line_of(folder, ender, "genv exec --gpus 1 -- true")?;
                let held = line_of(folder, BOB, "genv devices find --eid e1")?;
                ensure!(held == "0\n", "{confirmed} {key} {ender}: {held}");
                let leave = format!("genv envs deactivate --pid {pid}");
                line_of(folder, ALICE, &leave)?;
            }
        }
    }
    Ok(())
}
