//! The kinds of mischief: what a user can do to genv's state and with processes, and what can happen to a machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Command};

use anyhow::{Context as _, Result};
use genv_tests::enforcer::{is_alive, sleeper_of};
use genv_tests::process::Sleeper;
use genv_tests::root::apart;
use genv_tests::state;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};

use super::lab::{Document, Innocent, Lab, MALLORY, OUTSIDE, Random, SPARE, members, time_in, turn_clock, uses};

/// One kind of mischief, which goes on all the time of a round.
pub(super) type Mischief = (&'static str, Deed);

#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// Records that say what is not true, made of the honest ones.
    Lie(Lie),
    Act(Act),
}

type Lie = fn(&mut Document, &mut Random, &[Innocent]);
type Act = fn(&mut Adversary<'_>) -> Result<()>;

pub(super) fn all() -> Vec<Mischief> {
    let lies = LIES.iter().map(|(name, lie)| (*name, Deed::Lie(*lie)));
    lies.chain(ACTS.iter().map(|(name, act)| (*name, Deed::Act(*act)))).collect()
}

const LIES: &[(&str, Lie)] = &[
    ("changed_users_and_members", |files, random, _| {
        let uids = [0, 1, MALLORY, MALLORY + 1, MALLORY + 6, u32::MAX].map(|uid| ("uid", json!(uid)));
        let listed: [&[u32]; 3] = [&[], &[4_194_303], &[0]];
        let listed = listed.map(|pids| ("members", members(pids)));
        let (key, value) = random.one_of(&[&uids[..], &listed].concat()).clone();
        files.one(random)[key] = value;
    }),
    // The ancestor of every process, and the process that started the innocents.
    ("claimed_ancestors", |files, random, _| {
        let pids = [1, process::id(), 2];
        files.add(&json!("m"), MALLORY, &pids[..=random.below(3)], &[SPARE], None);
    }),
    ("claimed_members", |files, random, innocents| {
        if random.below(2) == 0 {
            files.environments().iter_mut().for_each(|environment| environment["members"] = json!([]));
        }
        let pids: Vec<u32> = innocents.iter().map(|innocent| innocent.pid).collect();
        files.add(&json!("m"), MALLORY, &pids, &[SPARE], Some("1mi"));
        // First, so that it counts if the first one does.
        files.environments().rotate_right(random.below(2));
    }),
    // Processes in other environments of the same user.
    ("members_added", |files, random, innocents| {
        for environment in files.environments() {
            let own = innocents.iter().filter(|innocent| environment["uid"] == innocent.uid);
            let mut pids: Vec<u32> = own.map(|innocent| innocent.pid).collect();
            pids.rotate_right(random.below(2));
            environment["members"] = members(&pids);
        }
    }),
    ("little_memory", |files, random, _| {
        let memory = json!(random.one_of(&["1mi", "0", "1b", "4095mi"]));
        let environment = files.one(random);
        environment["gpu_memory"] = memory.clone();
        let eid = environment["eid"].clone();
        for device in 0..=SPARE {
            let own = files.on(device).iter_mut().filter(|attachment| attachment["eid"] == eid);
            own.for_each(|attachment| attachment["gpu_memory"] = memory.clone());
        }
    }),
    // Old, far ahead, no time, or hours and days before or after now.
    ("changed_times", |files, random, _| {
        let hours = i64::try_from(random.below(27)).unwrap() - 12;
        let elsewhere = json!(time_in(hours + 24 * *random.one_of(&[0, 0, -3, 3])));
        let times = json!([0, LONG_AGO, FAR_AHEAD, -1e300, 1e300, null, "yesterday"]);
        let time = if random.below(2) == 0 { elsewhere } else { random.one_of(times.as_array().unwrap()).clone() };
        let creations = files.environments().iter_mut();
        creations.for_each(|environment| environment["created_timestamp_seconds"] = time.clone());
        for device in 0..=SPARE {
            let attachments = files.on(device).iter_mut();
            attachments.for_each(|attachment| attachment["attached_timestamp_seconds"] = time.clone());
        }
    }),
    // False facts of the members: processes of another start, boot or pid namespace.
    ("forged_starts", |files, random, _| {
        for environment in files.environments() {
            for member in environment["members"].as_array_mut().unwrap() {
                member["start_time_ticks"] = json!(random.one_of(&[0, 1, u64::MAX]));
                member["pid_namespace"] = json!(random.one_of(&[4_026_531_836_u64, 4_026_532_178, 0]));
            }
        }
        if random.below(2) == 0 {
            files.0["boot_id"] = json!("00000000-0000-4000-8000-000000000000");
        }
    }),
    ("another_version", |files, random, _| files.0["version"] = json!(random.one_of(&[0, 2, u32::MAX]))),
    ("devices_taken", |files, random, _| {
        let mut taken = std::mem::take(files.on(random.below(6)));
        if random.below(2) == 0 {
            files.on(SPARE - 1).append(&mut taken);
        }
    }),
    // More devices than a rule allows, which no process uses.
    ("devices_forced_on", |files, random, _| {
        let eid = files.one(random)["eid"].clone();
        (0..=SPARE).for_each(|device| files.attach(device, &eid, None, time_in(0)));
    }),
    // One device, with next to no memory, attached before all others.
    ("devices_added", |files, random, _| {
        let (eid, memory) = (files.one(random)["eid"].clone(), *random.one_of(&[Some("1mi"), None]));
        let time = *random.one_of(&[LONG_AGO, FAR_AHEAD]);
        files.attach(random.below(SPARE + 1), &eid, memory, time);
    }),
    // Environments in the name of users who have none, with their processes and devices.
    ("records_of_outsiders", |files, random, innocents| {
        for (number, innocent) in innocents.iter().filter(|innocent| innocent.is_outside).enumerate() {
            let choices: [&[usize]; 4] = [&[2], &[2, SPARE], &[SPARE], &[0, 1, 2]];
            let (devices, memory) = (*random.one_of(&choices), *random.one_of(&[None, Some("1mi")]));
            files.add(&json!(format!("forged{number}")), innocent.uid, &[innocent.pid], devices, memory);
            files.environments().last_mut().unwrap()["created_timestamp_seconds"] = json!(LONG_AGO);
        }
    }),
    ("removed_records", |files, random, _| {
        let environments = files.environments();
        environments.remove(random.below(environments.len()));
        if random.below(3) == 0 {
            environments.clear();
        }
    }),
    // Environments in the name of another user, empty or with a process of that user.
    ("records_of_others", |files, random, innocents| {
        let innocent = random.one_of(innocents);
        for number in 0..3 + random.below(3) {
            let (eid, pids) = (json!(format!("forged{number}")), [innocent.pid]);
            files.add(&eid, innocent.uid, &pids[..random.below(2)], &[SPARE, number], None);
        }
    }),
    ("same_ids", |files, random, _| {
        let (eid, uid) = (files.one(random)["eid"].clone(), *random.one_of(&[0, MALLORY]));
        files.add(&eid, uid, &[process::id()], &[SPARE], Some("1mi"));
        files.environments().rotate_right(random.below(2));
    }),
    ("malformed_records", |files, random, _| {
        for _ in 0..=random.below(3) {
            let keys = ["eid", "uid", "created_timestamp_seconds", "gpu_memory", "members", "username", ""];
            let key = *random.one_of(&keys);
            let environment = files.one(random);
            match environment {
                Value::Object(fields) if !key.is_empty() => drop(fields.insert(key.to_owned(), junk(random))),
                _ => *environment = junk(random),
            }
            let (device, key) = (random.below(SPARE), *random.one_of(&["index", "total_memory", "attachments"]));
            files.0["devices"][device][key] = junk(random);
        }
    }),
    ("malformed_document", |files, random, _| {
        let keys = ["version", "boot_id", "simulated", "environments", "devices", "queue"];
        let (key, junk) = (*random.one_of(&keys), junk(random));
        files.0[key] = junk;
    }),
];

/// 2001-01-01 12:00:00 UTC.
const LONG_AGO: i64 = 978_350_400;
/// 9999-12-31 23:59:59 UTC.
const FAR_AHEAD: i64 = 253_402_300_799;

fn junk(random: &mut Random) -> Value {
    let (control, long) = ("\u{1b}[2J\u{202e}\n", "x".repeat(100_000));
    let junk = json!([null, -1, 1e300, "none", "", [], [null, "x", {}, -7], {}, true, control, long]);
    junk[random.below(11)].clone()
}

const ACTS: &[(&str, Act)] = &[
    ("torn_files", |by| {
        let name = by.file();
        let mut content = by.lab.honest.0.to_string().into_bytes();
        content.truncate(by.random.below(content.len()));
        if by.random.below(3) == 0 {
            content = (0..200).map(|_| u8::try_from(by.random.below(256)).unwrap()).collect();
        }
        let path = by.lab.state().join(name);
        // In place; an earlier mischief may have left no file, or one that cannot be written.
        if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            let _ = as_mallory(|| fs::write(path, content));
        }
        Ok(())
    }),
    ("odd_files", |by| by.plant(None, &[NOTHING, NOTHING, LINK, ENDLESS, PIPE, FOLDER, UNREADABLE])),
    ("odd_locks", |by| by.plant(Some("genv.lock"), &[NOTHING, LINK, FOLDER, UNREADABLE])),
    ("many_records", |by| {
        if !by.is_new {
            return Ok(());
        }
        let (mut files, time) = (by.lab.honest.clone(), time_in(0));
        for number in 0..40_000 {
            let eid = json!(format!("m{number}"));
            files.attach(SPARE, &eid, None, time);
            files.environments().push(json!({"eid": eid, "uid": MALLORY, "created_timestamp_seconds": time,
                "username": "m", "members": [{"pid": 1}]}));
        }
        by.write_state(&files)
    }),
    // The lock, while environments of the adversary hold too many devices.
    ("held_lock", |by| {
        if by.lock.is_none() {
            let mut holder = Command::new("sh");
            let script = "exec 9>\"$1\"; flock 9; exec sleep 1000000";
            let lock = by.lab.state().join("genv.lock");
            holder.args(["-c", script, "sh"]).arg(lock).env_clear().env("PATH", "/usr/bin:/bin");
            by.lock = Some(Sleeper::spawn(holder.uid(MALLORY).gid(MALLORY))?);
        }
        by.start(&OUTSIDE)?;
        let (member, _) = by.processes.last().context("it has ended")?;
        let mut files = by.lab.honest.clone();
        for number in 0..10 {
            files.add(&json!(format!("m{number}")), MALLORY, &[member.pid()], &[SPARE, SPARE - 1], None);
        }
        by.write_state(&files)
    }),
    ("respawns", |by| {
        by.processes.clear();
        by.start(&OUTSIDE)
    }),
    ("claims_of_others", |by| {
        let eid = *by.random.one_of(&["a", "b", "d", "f1", "zz"]);
        by.start(&[("GENV_ENVIRONMENT_ID", eid)])
    }),
    ("cleared_environs", |by| by.start(&[])),
    ("many_processes", |by| (0..10).try_for_each(|_| by.start(&OUTSIDE))),
    ("hanging_driver", |by| by.fail(&["{hang: all}", "{hang: nvmlDeviceGetComputeRunningProcesses_v3}", ""])),
    ("lost_driver", |by| by.fail(&["{init: driver_not_loaded}", "{reload: 7}", "{insufficient_size: 3}", ""])),
    // Hours, days, years; before 1970, and beyond what a state file can hold.
    ("clocks", |by| {
        let turns = ["+0", "+61", "-61", "+3h", "-3h", "+14h", "-2d", "+8d", "+3y", "-40y", "-60y", "+8000y"];
        turn_clock(by.lab.enforcer.setup(), by.random.one_of::<&str>(&turns))
    }),
];

/// What can be put into the place of a file.
type Plant = fn(&Path) -> Result<()>;

const NOTHING: Plant = |_| Ok(());
const LINK: Plant = |path| Ok(symlink("/etc/shadow", path)?);
const ENDLESS: Plant = |path| Ok(symlink("/dev/zero", path)?);
const PIPE: Plant = |path| Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?);
const FOLDER: Plant = |path| Ok(fs::create_dir_all(path.join("x"))?);
const UNREADABLE: Plant = |path| {
    fs::write(path, "{}")?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o000))?)
};

/// A user who does mischief.
#[derive(Debug)]
pub(super) struct Adversary<'a> {
    lab: &'a Lab,
    random: Random,
    /// Whether this is the first time with these random numbers.
    is_new: bool,
    /// The adversary's processes, with the devices that they use.
    processes: Vec<(Sleeper, String)>,
    lock: Option<Sleeper>,
}

impl<'a> Adversary<'a> {
    pub(super) fn new(lab: &'a Lab) -> Self {
        Self { lab, random: Random(0), is_new: true, processes: Vec::new(), lock: None }
    }

    /// Does this, with choices from these random numbers.
    pub(super) fn does(&mut self, deed: Deed, choice: u64, is_new: bool) -> Result<()> {
        (self.random, self.is_new) = (Random(choice), is_new);
        match deed {
            Deed::Act(act) => act(self),
            Deed::Lie(lie) => {
                let mut files = self.lab.honest.clone();
                lie(&mut files, &mut self.random, &self.lab.innocents);
                self.write_state(&files)
            }
        }
    }

    /// Starts a process of the adversary on a device, and has the driver list it.
    fn start(&mut self, environ: &[(&str, &str)]) -> Result<()> {
        let process = sleeper_of(MALLORY, environ)?;
        let uses = uses(process.pid(), self.random.below(SPARE + 1), "1gi", 0.5);
        self.processes.push((process, uses));
        self.show("")
    }

    fn show(&mut self, faults: &str) -> Result<()> {
        self.processes.retain(|(process, _)| is_alive(process.pid()));
        let uses: Vec<_> = self.processes.iter().map(|(_, uses)| uses.clone()).collect();
        self.lab.show(&uses, faults)
    }

    /// Has the driver fail in one of these ways.
    fn fail(&mut self, faults: &[&str]) -> Result<()> {
        let faults = self.random.one_of(faults);
        self.show(faults)
    }

    /// The name of the state's file, or of its copy.
    fn file(&mut self) -> &'static str {
        self.random.one_of::<&str>(&[state::FILE, state::COPY])
    }

    /// Replaces the state, now and then with its copy.
    fn write_state(&mut self, files: &Document) -> Result<()> {
        let content = files.0.to_string().into_bytes();
        if self.random.below(2) == 0 {
            self.write(state::COPY, &content)?;
        }
        self.write(state::FILE, &content)
    }

    /// Replaces a file.
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let (new, path) = (self.lab.state().join(".mallory"), self.lab.state().join(name));
        as_mallory(|| {
            // A folder that an earlier mischief put there.
            let _ = fs::remove_dir_all(&path);
            fs::write(&new, content)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
            Ok(fs::rename(new, path)?)
        })
    }

    /// Puts one of these into the place of a file: of this one, or of the state's file or its copy.
    fn plant(&mut self, name: Option<&str>, choices: &[Plant]) -> Result<()> {
        let path = self.lab.state().join(name.unwrap_or_else(|| self.file()));
        let plant = self.random.one_of(choices);
        as_mallory(|| {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            plant(&path)
        })
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
