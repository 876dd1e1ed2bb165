//! Well-formed records that say what is not true.

use anyhow::Result;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use super::super::lab::{MALLORY, SPARE, TIME, now};
use super::super::random::Random;
use super::Adversary;

pub(super) fn changed_users(by: &mut Adversary<'_>) -> Result<()> {
    by.change_one(|environment, random| {
        let uids = [0, 1, MALLORY, MALLORY + 1, MALLORY + 6, u32::MAX];
        environment["uid"] = json!(random.one_of(&uids));
    })
}

/// The ancestor of every process, and the process that started the innocents.
pub(super) fn claimed_ancestors(by: &mut Adversary<'_>) -> Result<()> {
    let pids = [1, std::process::id(), 2];
    by.change(|files, random| {
        let pids = &pids[..=random.below(pids.len())];
        files.add("m", MALLORY, pids, &[SPARE], None);
    })
}

pub(super) fn claimed_members(by: &mut Adversary<'_>) -> Result<()> {
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

pub(super) fn members_gone(by: &mut Adversary<'_>) -> Result<()> {
    by.change_one(|environment, random| {
        environment["pids"] = random.one_of(&[json!([]), json!([4_194_303]), json!([0])]).clone();
    })
}

/// False records of the members: processes of another start, boot or pid namespace, or jobs.
pub(super) fn forged_starts(by: &mut Adversary<'_>) -> Result<()> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let boots = [boot.trim(), "00000000-0000-4000-8000-000000000000"];
    let mut members = Vec::new();
    for environment in by.lab.honest.clone().environments() {
        for pid in environment["pids"].as_array().into_iter().flatten() {
            let mut member = json!({"eid": environment["eid"], "creation": environment["creation"], "pid": pid});
            member["start_time_ticks"] = json!(by.random.one_of(&[0, 1, u64::MAX]));
            member["pid_namespace"] = json!(by.random.one_of(&[4_026_531_836_u64, 4_026_532_178, 0]));
            member["job"] = json!(by.random.below(2) == 0);
            members.push(member);
        }
    }
    let boot = by.random.one_of(&boots);
    let file = json!({"version": 1, "boot_id": boot, "members": members});
    by.write("genv-members.json", file.to_string().as_bytes())
}

pub(super) fn little_memory(by: &mut Adversary<'_>) -> Result<()> {
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

pub(super) fn old_records(by: &mut Adversary<'_>) -> Result<()> {
    change_times(by, |random| {
        let times = ["01/01/1970 00:00:00", "01/01/2001 12:00:00", "31/12/9999 23:59:59", "2026-01-01", "yesterday"];
        (*random.one_of(&times)).to_owned()
    })
}

/// Now, by the clock of a zone from 12 hours behind to 14 ahead; and as days that shift the clock.
pub(super) fn times_of_elsewhere(by: &mut Adversary<'_>) -> Result<()> {
    change_times(by, |random| {
        let hours = i64::try_from(random.below(27)).unwrap() - 12;
        let days = *random.one_of(&[0, 0, -3, 3]);
        let there = Timestamp::now() + SignedDuration::from_hours(hours + 24 * days);
        there.to_zoned(TimeZone::UTC).strftime(TIME).to_string()
    })
}

pub(super) fn devices_taken(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let device = random.below(6);
        let mut taken = std::mem::take(files.attachments(device));
        if random.below(2) == 0 {
            files.attachments(SPARE - 1).append(&mut taken);
        }
    })
}

/// More devices than a rule allows, which no process uses.
pub(super) fn devices_forced_on(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let eid = random.one_of(&["a", "b", "d", "f1", "f2"]).to_owned();
        for device in 0..=SPARE {
            let time = now();
            files.attachments(device).push(json!({"eid": eid, "gpu_memory": null, "time": time}));
        }
    })
}

/// One device, with next to no memory, attached before all others.
pub(super) fn devices_added(by: &mut Adversary<'_>) -> Result<()> {
    by.change(|files, random| {
        let eid = *random.one_of(&["a", "b", "d", "f1", "f2"]);
        let memory = random.one_of(&[json!("1mi"), Value::Null]).clone();
        let time = *random.one_of(&["01/01/2001 12:00:00", "31/12/9999 23:59:59"]);
        let device = random.below(SPARE + 1);
        files.attachments(device).push(json!({"eid": eid, "gpu_memory": memory, "time": time}));
    })
}

/// Processes in other environments of the same user.
pub(super) fn members_added(by: &mut Adversary<'_>) -> Result<()> {
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

/// Environments in the name of users who have none, with their processes and devices.
pub(super) fn records_of_outsiders(by: &mut Adversary<'_>) -> Result<()> {
    let innocents = &by.lab.innocents;
    let outside = innocents.iter().filter(|it| matches!(it.name, "carol's job" | "erin's editor"));
    let outside: Vec<(u32, u32)> = outside.map(|it| (it.uid, it.pid)).collect();
    by.change(|files, random| {
        for (number, (uid, pid)) in outside.into_iter().enumerate() {
            let memory = *random.one_of(&[None, Some("1mi")]);
            let choices: [&[usize]; 4] = [&[2], &[2, SPARE], &[SPARE], &[0, 1, 2]];
            let devices = random.one_of(&choices);
            files.add(&format!("forged{number}"), uid, &[pid], devices, memory);
        }
        for environment in files.environments() {
            if environment["eid"].as_str().is_some_and(|eid| eid.starts_with("forged")) {
                environment["creation"] = json!("01/01/2001 12:00:00");
            }
        }
    })
}

pub(super) fn removed_records(by: &mut Adversary<'_>) -> Result<()> {
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
pub(super) fn records_of_others(by: &mut Adversary<'_>) -> Result<()> {
    let innocents = &by.lab.innocents;
    let one = by.random.below(innocents.len());
    let (uid, pid) = (innocents[one].uid, innocents[one].pid);
    by.change(|files, random| {
        for number in 0..3 + random.below(3) {
            let pids = if random.below(2) == 0 { vec![pid] } else { Vec::new() };
            let eid = format!("forged{number}");
            files.add(&eid, uid, &pids, &[SPARE, number], None);
        }
    })
}

pub(super) fn same_ids(by: &mut Adversary<'_>) -> Result<()> {
    let own = std::process::id();
    by.change(|files, random| {
        let eid = *random.one_of(&["a", "b", "d", "f1", "f2"]);
        files.add(eid, *random.one_of(&[0, MALLORY]), &[own], &[SPARE], Some("1mi"));
        if random.below(2) == 0 {
            files.environments().rotate_right(1);
        }
    })
}
