//! State files that no genv writes: damaged, gone, of another kind, or too large.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use anyhow::Result;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::super::lab::{MALLORY, SPARE, now};
use super::super::random::Random;
use super::{Adversary, as_mallory};

fn junk(random: &mut Random) -> Value {
    let choices = [
        Value::Null,
        json!(-1),
        json!(1e300),
        json!("none"),
        json!(""),
        json!([]),
        json!([null, "x", {}, -7]),
        json!({}),
        json!(true),
        json!("\u{1b}[2J\u{202e}\n"),
        json!("x".repeat(100_000)),
    ];
    random.one_of(&choices).clone()
}

pub(super) fn malformed_records(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        for _ in 0..=random.below(3) {
            let environments = files.environments();
            let one = random.below(environments.len());
            let key = *random.one_of(&["eid", "uid", "creation", "config", "pids", "username", ""]);
            if key.is_empty() {
                environments[one] = junk(random);
            } else if let Some(of) = environments[one].as_object_mut() {
                of.insert(key.to_owned(), junk(random));
            }
            let device = random.below(SPARE);
            let key = *random.one_of(&["index", "total_memory", "attachments"]);
            files.devices["devices"][device][key] = junk(random);
        }
    })
}

pub(super) fn torn_files(by: &mut Adversary<'_>) -> Result<()> {
    let path = by.file();
    let honest = if path.ends_with("envs.json") { &by.lab.honest.environments } else { &by.lab.honest.devices };
    let mut content = honest.to_string().into_bytes();
    content.truncate(by.random.below(content.len()));
    if by.random.below(3) == 0 {
        content = (0..200).map(|_| u8::try_from(by.random.below(256)).unwrap()).collect();
    }
    // In place, as genv 1.4.3 writes; an earlier mischief may have left no file, or one that cannot be written.
    if path.symlink_metadata().is_ok_and(|it| it.is_file()) {
        let _ = as_mallory(|| fs::write(path, content));
    }
    Ok(())
}

pub(super) fn removed_files(by: &mut Adversary<'_>) -> Result<()> {
    let path = by.file();
    as_mallory(|| {
        // It may be gone already.
        let _ = fs::remove_file(path);
    });
    Ok(())
}

pub(super) fn odd_files(by: &mut Adversary<'_>) -> Result<()> {
    let (path, what) = (by.file(), by.random.below(5));
    as_mallory(|| {
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir(&path);
        match what {
            0 => symlink("/etc/shadow", &path)?,
            1 => symlink("/dev/zero", &path)?,
            2 => mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?,
            3 => fs::create_dir(&path)?,
            _ => {
                fs::write(&path, "{}")?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?;
            }
        }
        Ok(())
    })
}

/// Replaces the state's lock by a file that cannot be a lock, or removes it.
pub(super) fn odd_locks(by: &mut Adversary<'_>) -> Result<()> {
    let (path, what) = (by.path("genv.lock"), by.random.below(4));
    as_mallory(|| {
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir_all(&path);
        match what {
            0 => fs::create_dir_all(path.join("x"))?,
            1 => symlink("/etc/shadow", &path)?,
            2 => {
                fs::write(&path, "")?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?;
            }
            _ => {}
        }
        Ok(())
    })
}

/// Full folders in the place of other users' confirmations.
pub(super) fn planted_confirmations(by: &mut Adversary<'_>) -> Result<()> {
    let uids = by.lab.innocents.iter().map(|it| it.uid).chain([0]);
    let paths: Vec<_> = uids.map(|uid| by.path(&format!("genv-confirmed-{uid}.json"))).collect();
    as_mallory(|| {
        for path in paths {
            let _ = fs::remove_file(&path);
            fs::create_dir_all(path.join("x"))?;
        }
        Ok(())
    })
}

/// Processes in the queue that do not wait, with files that name them.
pub(super) fn forged_queue(by: &mut Adversary<'_>) -> Result<()> {
    let pids = by.lab.innocents.iter().map(|it| it.pid).chain([1, 2]);
    let pids: Vec<u32> = pids.collect();
    let start = |pid: &u32| -> Option<Value> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let start = stat.rsplit(')').next()?.split_whitespace().nth(19)?;
        let start: u64 = start.parse().ok()?;
        Some(json!({"pid": pid, "start_time_ticks": start}))
    };
    let queue: Vec<Value> = pids.iter().filter_map(start).collect();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let members = json!({"version": 1, "boot_id": boot.trim(), "members": [], "queue": queue});
    by.write("genv-members.json", members.to_string().as_bytes())?;
    for pid in pids {
        by.write(&format!("genv-waiting-{pid}"), b"")?;
    }
    Ok(())
}

pub(super) fn many_records(by: &mut Adversary<'_>) -> Result<()> {
    if !by.is_new {
        return Ok(());
    }
    let content = {
        let mut files = by.lab.honest.clone();
        let time = now();
        files.environments().extend((0..40_000).map(|number| {
            json!({"eid": format!("m{number}"), "uid": MALLORY, "creation": time, "username": "m",
                "config": {"name": null, "gpu_memory": null, "gpus": 1}, "pids": [1], "kernel_ids": []})
        }));
        for number in 0..40_000 {
            files.attachments(SPARE).push(json!({"eid": format!("m{number}"), "gpu_memory": null, "time": time}));
        }
        files
    };
    by.write("envs.json", content.environments.to_string().as_bytes())?;
    by.write("devices.json", content.devices.to_string().as_bytes())
}
