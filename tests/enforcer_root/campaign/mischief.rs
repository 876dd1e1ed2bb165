//! What a user can do to genv's files, to the processes of himself, and to their times; and what a driver can do.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use genv_tests::enforcer::{is_alive, sleeper_of};
use genv_tests::process::Sleeper;
use genv_tests::root::apart;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};

use super::clock::TURNS;
use super::lab::{Files, Lab, MALLORY, SPARE, TIME, now, uses};
use super::random::Random;

/// One way to do mischief, which is gone all the time of a round.
pub(super) type Mischief = (&'static str, fn(&mut Adversary<'_>) -> Result<()>);

pub(super) const ALL: &[Mischief] = &[
    ("malformed_records", malformed_records),
    ("torn_files", torn_files),
    ("removed_files", removed_files),
    ("odd_files", odd_files),
    ("changed_users", changed_users),
    ("claimed_ancestors", claimed_ancestors),
    ("claimed_members", claimed_members),
    ("members_gone", members_gone),
    ("little_memory", little_memory),
    ("old_records", old_records),
    ("times_of_elsewhere", times_of_elsewhere),
    ("devices_taken", devices_taken),
    ("devices_forced_on", devices_forced_on),
    ("devices_added", devices_added),
    ("members_added", members_added),
    ("records_of_outsiders", records_of_outsiders),
    ("removed_records", removed_records),
    ("records_of_others", records_of_others),
    ("same_ids", same_ids),
    ("many_records", many_records),
    ("held_lock", held_lock),
    ("respawns", respawns),
    ("claims_of_others", claims_of_others),
    ("cleared_environs", cleared_environs),
    ("many_processes", many_processes),
    ("hanging_driver", hanging_driver),
    ("lost_driver", lost_driver),
    ("clocks", clocks),
];

/// A user who does mischief, and what it takes.
#[derive(Debug)]
pub(super) struct Adversary<'a> {
    pub(super) lab: &'a Lab,
    random: Random,
    /// Whether this is the first time with these random numbers.
    is_new: bool,
    /// Processes of his, with the devices that they use.
    processes: Vec<(Sleeper, String)>,
    lock: Option<Sleeper>,
}

impl<'a> Adversary<'a> {
    pub(super) fn new(lab: &'a Lab) -> Self {
        Self {
            lab,
            random: Random(0),
            is_new: true,
            processes: Vec::new(),
            lock: None,
        }
    }

    /// Does from now on what these random numbers say.
    pub(super) fn choose(&mut self, choice: u64, is_new: bool) {
        (self.random, self.is_new) = (Random(choice), is_new);
    }

    /// Starts a process of his on a device, which the driver tells of.
    pub(super) fn start(&mut self, environ: &[(&str, &str)], device: usize) -> Result<u32> {
        let process = sleeper_of(MALLORY, environ)?;
        let pid = process.pid();
        self.processes
            .push((process, uses(pid, &[device], "1gi", 0.5)));
        self.show("")?;
        Ok(pid)
    }

    /// Has the driver tell of his processes too.
    fn show(&mut self, faults: &str) -> Result<()> {
        self.processes
            .retain(|(process, _)| is_alive(process.pid()));
        let uses: Vec<_> = self
            .processes
            .iter()
            .map(|(_, uses)| uses.clone())
            .collect();
        self.lab.show(&uses, faults)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab.state().join(name)
    }

    /// Writes what the honest files say, changed by this.
    fn change(&mut self, change: impl FnOnce(&mut Files, &mut Random)) -> Result<()> {
        let mut files = self.lab.honest.clone();
        change(&mut files, &mut self.random);
        let (environments, devices) = (files.environments.to_string(), files.devices.to_string());
        self.write("envs.json", environments.as_bytes())?;
        self.write("devices.json", devices.as_bytes())
    }

    /// As [`Self::change`], to one environment of another user.
    fn change_one(&mut self, change: impl FnOnce(&mut Value, &mut Random)) -> Result<()> {
        self.change(|files, random| {
            let environments = files.environments();
            let one = random.below(environments.len());
            change(&mut environments[one], random);
        })
    }

    /// Replaces a file.
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let (new, path) = (self.path(".mallory"), self.path(name));
        as_mallory(|| {
            // What he put there before.
            let _ = fs::remove_dir(&path);
            fs::write(&new, content)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
            Ok(fs::rename(new, path)?)
        })
    }

    /// One of the files.
    fn file(&mut self) -> PathBuf {
        let name = self.random.one_of(&["envs.json", "devices.json"]);
        self.path(name)
    }
}

/// Runs as [`MALLORY`].
fn as_mallory<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    apart(|| {
        let (uid, gid) = (Uid::from_raw(MALLORY), Gid::from_raw(MALLORY));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        run()
    })
}

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

fn malformed_records(by: &mut Adversary<'_>) -> Result<()> {
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

fn torn_files(by: &mut Adversary<'_>) -> Result<()> {
    let path = by.file();
    let honest = if path.ends_with("envs.json") {
        &by.lab.honest.environments
    } else {
        &by.lab.honest.devices
    };
    let mut content = honest.to_string().into_bytes();
    content.truncate(by.random.below(content.len()));
    if by.random.below(3) == 0 {
        content = (0..200)
            .map(|_| u8::try_from(by.random.below(256)).unwrap())
            .collect();
    }
    // In place, as genv 1.4.3 writes; what he put there before may be no file, or one that cannot be written.
    if path.symlink_metadata().is_ok_and(|it| it.is_file()) {
        let _ = as_mallory(|| fs::write(path, content));
    }
    Ok(())
}

fn removed_files(by: &mut Adversary<'_>) -> Result<()> {
    let path = by.file();
    as_mallory(|| {
        // It may be gone already.
        let _ = fs::remove_file(path);
    });
    Ok(())
}

fn odd_files(by: &mut Adversary<'_>) -> Result<()> {
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

fn changed_users(by: &mut Adversary<'_>) -> Result<()> {
    by.change_one(|environment, random| {
        let uids = [0, 1, MALLORY, MALLORY + 1, MALLORY + 6, u32::MAX];
        environment["uid"] = json!(random.one_of(&uids));
    })
}

/// Whom everything descends from, and what started the innocents.
fn claimed_ancestors(by: &mut Adversary<'_>) -> Result<()> {
    let pids = [1, std::process::id(), 2];
    by.change(|files, random| {
        let pids = &pids[..=random.below(pids.len())];
        files.add("m", MALLORY, pids, &[SPARE], None);
    })
}

fn claimed_members(by: &mut Adversary<'_>) -> Result<()> {
    let pids: Vec<u32> = by.lab.innocents.iter().map(|it| it.pid).collect();
    by.change(|files, random| {
        if random.below(2) == 0 {
            for environment in files.environments() {
                environment["pids"] = json!([]);
            }
        }
        // First, so that it counts if the first one does.
        let own = random.below(2) == 0;
        files.add("m", MALLORY, &pids, &[SPARE], Some("1mi"));
        if own {
            files.environments().rotate_right(1);
        }
    })
}

fn members_gone(by: &mut Adversary<'_>) -> Result<()> {
    by.change_one(|environment, random| {
        environment["pids"] = random
            .one_of(&[json!([]), json!([4_194_303]), json!([0])])
            .clone();
    })
}

fn little_memory(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let amount = json!(random.one_of(&["1mi", "0", "1b", "4095mi"]));
        let environments = files.environments();
        let one = random.below(environments.len());
        environments[one]["config"]["gpu_memory"] = amount.clone();
        let eid = environments[one]["eid"].clone();
        for device in 0..SPARE {
            for attachment in files.attachments(device) {
                if attachment["eid"] == eid {
                    attachment["gpu_memory"] = amount.clone();
                }
            }
        }
    })
}

/// Changes when all environments were made, and attached.
fn change_times(by: &mut Adversary<'_>, time: impl FnOnce(&mut Random) -> String) -> Result<()> {
    by.change(|files, random| {
        let time = time(random);
        for environment in files.environments() {
            environment["creation"] = json!(time);
        }
        for device in 0..SPARE {
            for attachment in files.attachments(device) {
                attachment["time"] = json!(time);
            }
        }
    })
}

fn old_records(by: &mut Adversary<'_>) -> Result<()> {
    change_times(by, |random| {
        let times = [
            "01/01/1970 00:00:00",
            "01/01/2001 12:00:00",
            "31/12/9999 23:59:59",
            "2026-01-01",
            "yesterday",
        ];
        (*random.one_of(&times)).to_owned()
    })
}

/// Now, by the clock of a zone from 12 hours behind to 14 ahead; and as days that shift the clock.
fn times_of_elsewhere(by: &mut Adversary<'_>) -> Result<()> {
    change_times(by, |random| {
        let hours = i64::try_from(random.below(27)).unwrap() - 12;
        let days = *random.one_of(&[0, 0, -3, 3]);
        let there = Timestamp::now() + SignedDuration::from_hours(hours + 24 * days);
        there.to_zoned(TimeZone::UTC).strftime(TIME).to_string()
    })
}

fn devices_taken(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let device = random.below(6);
        let mut taken = std::mem::take(files.attachments(device));
        if random.below(2) == 0 {
            files.attachments(SPARE - 1).append(&mut taken);
        }
    })
}

/// More than a rule allows, and of no use to anybody.
fn devices_forced_on(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let eid = random.one_of(&["a", "b", "d", "f1", "f2"]).to_owned();
        for device in 0..=SPARE {
            let time = now();
            files
                .attachments(device)
                .push(json!({"eid": eid, "gpu_memory": null, "time": time}));
        }
    })
}

/// One device, with next to no memory, attached before all others.
fn devices_added(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let eid = *random.one_of(&["a", "b", "d", "f1", "f2"]);
        let memory = random.one_of(&[json!("1mi"), Value::Null]).clone();
        let time = *random.one_of(&["01/01/2001 12:00:00", "31/12/9999 23:59:59"]);
        let device = random.below(SPARE + 1);
        files
            .attachments(device)
            .push(json!({"eid": eid, "gpu_memory": memory, "time": time}));
    })
}

/// Processes of the users themselves, in environments where they are not.
fn members_added(by: &mut Adversary<'_>) -> Result<()> {
    let innocents = &by.lab.innocents;
    let pids = |uid: u64| -> Vec<u32> {
        let own = innocents.iter().filter(|it| u64::from(it.uid) == uid);
        own.map(|it| it.pid).collect()
    };
    by.change(|files, random| {
        for environment in files.environments() {
            let mut all = pids(environment["uid"].as_u64().unwrap_or_default());
            if random.below(2) == 0 {
                all.rotate_right(1);
            }
            environment["pids"] = json!(all);
        }
    })
}

/// Environments of those who have none, with their processes and their devices.
fn records_of_outsiders(by: &mut Adversary<'_>) -> Result<()> {
    let innocents = &by.lab.innocents;
    let outside = innocents
        .iter()
        .filter(|it| matches!(it.name, "carol's job" | "erin's editor"));
    let outside: Vec<(u32, u32)> = outside.map(|it| (it.uid, it.pid)).collect();
    by.change(|files, random| {
        for (number, (uid, pid)) in outside.into_iter().enumerate() {
            let memory = *random.one_of(&[None, Some("1mi")]);
            let choices: [&[usize]; 4] = [&[2], &[2, SPARE], &[SPARE], &[0, 1, 2]];
            let devices = random.one_of(&choices);
            files.add(&format!("forged{number}"), uid, &[pid], devices, memory);
        }
        for environment in files.environments() {
            if environment["eid"]
                .as_str()
                .is_some_and(|eid| eid.starts_with("forged"))
            {
                environment["creation"] = json!("01/01/2001 12:00:00");
            }
        }
    })
}

fn removed_records(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let environments = files.environments();
        let one = random.below(environments.len());
        environments.remove(one);
        if random.below(3) == 0 {
            environments.clear();
        }
    })
}

/// Environments in the name of another user, empty or with a process of that user.
fn records_of_others(by: &mut Adversary<'_>) -> Result<()> {
    let innocents = &by.lab.innocents;
    let one = by.random.below(innocents.len());
    let (uid, pid) = (innocents[one].uid, innocents[one].pid);
    by.change(|files, random| {
        for number in 0..3 + random.below(3) {
            let pids = if random.below(2) == 0 {
                vec![pid]
            } else {
                Vec::new()
            };
            let eid = format!("forged{number}");
            files.add(&eid, uid, &pids, &[SPARE, number], None);
        }
    })
}

fn same_ids(by: &mut Adversary<'_>) -> Result<()> {
    let own = std::process::id();
    by.change(|files, random| {
        let eid = *random.one_of(&["a", "b", "d", "f1", "f2"]);
        files.add(
            eid,
            *random.one_of(&[0, MALLORY]),
            &[own],
            &[SPARE],
            Some("1mi"),
        );
        if random.below(2) == 0 {
            files.environments().rotate_right(1);
        }
    })
}

fn many_records(by: &mut Adversary<'_>) -> Result<()> {
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
            files
                .attachments(SPARE)
                .push(json!({"eid": format!("m{number}"), "gpu_memory": null, "time": time}));
        }
        files
    };
    by.write("envs.json", content.environments.to_string().as_bytes())?;
    by.write("devices.json", content.devices.to_string().as_bytes())
}

/// The lock, while environments of his hold too many devices.
fn held_lock(by: &mut Adversary<'_>) -> Result<()> {
    if by.lock.is_none() {
        let mut holder = Command::new("sh");
        let script = "exec 9>\"$1\"; flock 9; exec sleep 1000000";
        holder
            .args(["-c", script, "sh"])
            .arg(by.path("genv.lock"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        by.lock = Some(Sleeper::spawn(holder.uid(MALLORY).gid(MALLORY))?);
    }
    let member = by.start(&[("A", "1")], SPARE)?;
    by.change(|files, _| {
        for number in 0..10 {
            files.add(
                &format!("m{number}"),
                MALLORY,
                &[member],
                &[SPARE, SPARE - 1],
                None,
            );
        }
    })
}

fn respawns(by: &mut Adversary<'_>) -> Result<()> {
    by.processes.clear();
    by.start(&[("A", "1")], SPARE)?;
    Ok(())
}

fn claims_of_others(by: &mut Adversary<'_>) -> Result<()> {
    let (eid, device) = (
        *by.random.one_of(&["a", "b", "d", "f1", "zz"]),
        by.random.below(8),
    );
    by.start(&[("GENV_ENVIRONMENT_ID", eid)], device)?;
    Ok(())
}

fn cleared_environs(by: &mut Adversary<'_>) -> Result<()> {
    let device = by.random.below(8);
    by.start(&[], device)?;
    Ok(())
}

fn many_processes(by: &mut Adversary<'_>) -> Result<()> {
    for _ in 0..10 {
        let device = by.random.below(8);
        by.start(&[("A", "1")], device)?;
    }
    Ok(())
}

fn hanging_driver(by: &mut Adversary<'_>) -> Result<()> {
    let faults = *by.random.one_of(&[
        "{hang: all}",
        "{hang: nvmlDeviceGetComputeRunningProcesses_v3}",
        "",
    ]);
    by.show(faults)
}

fn lost_driver(by: &mut Adversary<'_>) -> Result<()> {
    let faults = [
        "{init: driver_not_loaded}",
        "{reload: 7}",
        "{insufficient_size: 3}",
        "",
    ];
    let faults = *by.random.one_of(&faults);
    by.show(faults)
}

/// The time of day, forth and back.
fn clocks(by: &mut Adversary<'_>) -> Result<()> {
    let by_so_much = *by.random.one_of(&TURNS);
    by.lab.clock.turn(by_so_much)
}
