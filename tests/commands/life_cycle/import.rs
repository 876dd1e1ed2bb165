//! The upgrade from the files of genv 1.x, and from those that earlier versions of this genv wrote beside them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::target;
use genv_tests::patience::Lines;
use genv_tests::process::{Running, Sleeper};
use genv_tests::shell::{Account, installed};
use genv_tests::state;
use rustix::process::getuid;
use serde_json::{Value, json};

use crate::life_cycle::damaged::make_pipe;
use crate::life_cycle::members::listed;
use crate::life_cycle::running::run;

const ENVIRONMENTS: &str = "envs.json";
const DEVICES: &str = "devices.json";

/// The environment that holds all devices for a genv 1.x after the import.
const MOVED: &str = "moved-to-state.json";

const CREATION: &str = "01/01/2020 00:00:00";
/// A time after the creation in every zone, Unix time.
const LATER_SECONDS: i64 = 1_600_000_000;

/// Writes what genv 1.x has of an environment with this member and with the devices 0 and 1 of four.
fn write_files(folder: &Path, member: u32) -> Result<()> {
    let environment = json!({
        "eid": "e1", "uid": getuid().as_raw(), "creation": CREATION, "username": "somebody",
        "config": {"name": "training", "gpu_memory": null, "gpus": 2}, "pids": [member], "kernel_ids": [],
    });
    let device = |index: u32| {
        let attachment = json!({"eid": "e1", "gpu_memory": null, "time": CREATION});
        let attachments = if index < 2 { vec![attachment] } else { Vec::new() };
        json!({"index": index, "total_memory": "81920mi", "attachments": attachments})
    };
    let devices: Vec<Value> = (0..4).map(device).collect();
    fs::create_dir_all(folder)?;
    fs::write(folder.join(ENVIRONMENTS), json!({"envs": [environment]}).to_string())?;
    Ok(fs::write(folder.join(DEVICES), json!({"devices": devices}).to_string())?)
}

/// The files of a folder but the lock, each with what changes when it is written.
fn files(folder: &Path) -> Result<BTreeMap<String, [i64; 4]>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.metadata()?;
        let version = [found.ino().cast_signed(), found.size().cast_signed(), found.mtime(), found.mtime_nsec()];
        files.insert(entry.file_name().to_string_lossy().into_owned(), version);
    }
    files.remove("genv.lock");
    Ok(files)
}

fn json_of(account: &Account, words: &[&str]) -> Result<Value> {
    let (code, stdout, stderr) = run(account, words)?;
    ensure!(code == 0 && stderr.is_empty(), "{words:?}: {code} {stderr}");
    Ok(serde_json::from_str(&stdout)?)
}

/// Fails unless e1 is shown with all that the files have of it.
fn shows_e1(account: &Account, member: u32) -> Result<()> {
    let query = ["envs", "query", "--query", "eid", "config.name", "config.gpus", "pids"];
    let (code, stdout, stderr) = run(account, &query)?;
    ensure!(code == 0 && stdout == format!("e1,training,2,{member}\n") && stderr.is_empty(), "{stdout}{stderr}");
    ensure!(run(account, &["devices", "find", "--eid", "e1"])?.1 == "0,1\n");
    let shown = json_of(account, &["envs", "--json"])?;
    ensure!(shown["envs"][0]["lease_end_timestamp_seconds"] == json!(4_102_444_800.0), "{shown:#}");
    Ok(())
}

#[test]
fn commands_show_the_files_of_genv_1_and_the_first_change_imports_them() -> Result<()> {
    let account = Account::new()?;
    let folder = account.state();
    let member = Sleeper::start(&[])?;
    write_files(&folder, member.pid())?;
    let leases = folder.join(format!("genv-leases-{}.json", getuid().as_raw()));
    let lease = json!({"eid": "e1", "granted_seconds": LATER_SECONDS, "end_seconds": 4_102_444_800_i64});
    fs::write(&leases, json!({"version": 1, "leases": [lease]}).to_string())?;
    fs::set_permissions(&leases, fs::Permissions::from_mode(0o644))?;
    let originals = [fs::read(folder.join(ENVIRONMENTS))?, fs::read(folder.join(DEVICES))?];
    let before = files(&folder)?;
    shows_e1(&account, member.pid())?;
    for command in ["envs", "devices", "free", "who", "queue", "snapshot"] {
        let (code, _, stderr) = run(&account, &[command])?;
        ensure!(code == 0, "{command}: {stderr}");
    }
    ensure!(files(&folder)? == before, "a command that reads has written");

    for _ in 0..2 {
        let exec = ["exec", "--gpus", "2", "--", "printenv", "CUDA_VISIBLE_DEVICES"];
        let (code, stdout, stderr) = run(&account, &exec)?;
        ensure!(code == 0 && stdout == "2,3\n" && stderr.is_empty(), "{code} {stdout}{stderr}");
        shows_e1(&account, member.pid())?;
        let kept = |name: &str| fs::read(folder.join(format!("{name}.imported")));
        ensure!([kept(ENVIRONMENTS)?, kept(DEVICES)?] == originals);
    }
    let names: Vec<String> = files(&folder)?.into_keys().filter(|it| !it.starts_with("genv-")).collect();
    let expected =
        ["devices.json", "devices.json.imported", "envs.json", "envs.json.imported", state::COPY, state::FILE];
    ensure!(names == expected, "{names:?}");
    // A genv 1.x sees no device that it could give out.
    let read = |name: &str| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(folder.join(name))?)?) };
    let environments = read(ENVIRONMENTS)?["envs"].take();
    ensure!(environments.as_array().is_some_and(|it| it.len() == 1), "{environments:#}");
    let holder = &environments[0];
    ensure!(holder["eid"] == MOVED && holder["uid"] == 0 && holder["pids"] == json!([1]), "{holder:#}");
    let devices = read(DEVICES)?["devices"].take();
    let devices = devices.as_array().context("no devices")?;
    ensure!(devices.len() == 4, "{devices:?}");
    ensure!(devices.iter().all(|it| it["attachments"][0]["eid"] == MOVED), "{devices:?}");
    // This genv does not take the holder for an environment.
    for name in [state::FILE, state::COPY] {
        fs::remove_file(folder.join(name))?;
    }
    ensure!(run(&account, &["envs", "--no-header"])?.1.is_empty());
    ensure!(run(&account, &["exec", "--gpus", "4", "--", "true"])?.0 == 0);
    Ok(())
}

/// Makes the file of a process that waits for four devices, and keeps its lock.
const WAITS: &str = "import fcntl, os, signal, sys
file = os.open(sys.argv[1] + '/genv-waiting-%d' % os.getpid(), os.O_RDWR | os.O_CREAT, 0o644)
fcntl.lockf(file, fcntl.LOCK_EX)
os.write(file, b'{\"gpus\":4}')
print('waits', flush=True)
while True: signal.pause()";

#[test]
fn what_waits_with_an_earlier_genv_is_named_and_holds_nobody_up() -> Result<()> {
    let account = Account::new()?;
    let folder = account.state();
    let member = Sleeper::start(&[])?;
    write_files(&folder, member.pid())?;
    let mut python = Command::new(installed("python3"));
    python.args(["-c", WAITS]).arg(&folder).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut waiting = Running::spawn(&mut python)?;
    let printed = Lines::of(waiting.stdout.take().context("no stdout")?);
    ensure!(printed.next_line()? == "waits");
    let start = target("here", waiting.id())?.start_time_ticks;
    let queue = json!([{"pid": waiting.id(), "start_time_ticks": start}]);
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let beside = json!({"version": 1, "boot_id": boot_id.trim(), "members": [], "queue": queue, "simulated": true});
    fs::write(folder.join("genv-members.json"), beside.to_string())?;
    let before = files(&folder)?;
    let shown = json_of(&account, &["queue", "--json"])?;
    ensure!(shown["waiting"][0]["pid"] == waiting.id(), "{shown:#}");
    ensure!(files(&folder)? == before, "a command that reads has written");
    let change = ["envs", "config", "--eid", "e1", "name", "--name", "again"];
    let (code, _, stderr) = run(&account, &change)?;
    let named = format!("process {} of uid {} waits in the queue of an earlier genv", waiting.id(), getuid().as_raw());
    ensure!(code == 0 && stderr.contains(&named), "{code} {stderr}");
    ensure!(listed(&account, "queue")?.is_empty());
    let (code, _, stderr) = run(&account, &["exec", "--gpus", "1", "--", "true"])?;
    ensure!(code == 0, "{stderr}");
    Ok(())
}

#[test]
fn a_file_that_cannot_be_imported_stops_every_command_and_stays_as_it_is() -> Result<()> {
    let account = Account::new()?;
    let folder = account.state();
    let member = Sleeper::start(&[])?;
    write_files(&folder, member.pid())?;
    let path = folder.join(ENVIRONMENTS);
    fs::remove_file(&path)?;
    make_pipe(&path)?;
    let before = files(&folder)?;
    let words = format!(
        "cannot import {}: it is not a regular file: repair it, or move it away to go on without it",
        path.display()
    );
    for command in [&["envs"][..], &["devices"], &["exec", "--", "true"], &["envs", "--reset"]] {
        let (code, _, stderr) = run(&account, command)?;
        ensure!(code == 1 && stderr.contains(&words), "{command:?}: {code} {stderr}");
    }
    ensure!(files(&folder)? == before);
    // Without it, the other file gives nobody a device.
    fs::remove_file(&path)?;
    let (code, _, stderr) = run(&account, &["exec", "--gpus", "4", "--", "true"])?;
    ensure!(code == 0, "{stderr}");
    Ok(())
}
