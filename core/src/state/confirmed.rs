//! `genv-confirmed-N.json`: changes that commands of a user made in environments.
//!
//! Every user may write the state, so they do not show whose command changed an environment. The kernel does:
//! this file belongs to the user who wrote it, and no other user may write to it. It counts for environments of that
//! user alone; the files of root and of the enforcer's user count for all environments.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::own_file::{self, MOST_BYTES};
use super::{DeviceState, EnvironmentState, MemberState, ProcessId, Started};
use crate::files::{io_error, write_remedy};
use crate::model::{Confirmed, ConfirmedChange, Joined, MemoryAmount};
use crate::proc::username;

/// The number of changes that a file keeps, the newest ones.
const MOST_CHANGES: usize = 256;
const PREFIX: &str = "genv-confirmed-";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct ConfirmedFile {
    version: u32,
    changes: Vec<Confirmed>,
}

/// The environments and devices of a state.
pub(super) type Sides<'a> = (&'a [EnvironmentState], &'a [DeviceState]);

/// A member of an environment: the eid and the pid.
type MemberKey = (String, u32);

/// All members of environments.
pub(super) fn member_keys(environments: &[EnvironmentState]) -> HashSet<MemberKey> {
    environments.iter().flat_map(|it| it.pids().map(|pid| (it.eid.clone(), pid))).collect()
}

/// The members of environments that are jobs.
pub(super) fn job_keys(environments: &[EnvironmentState]) -> HashSet<MemberKey> {
    let jobs = environments.iter().flat_map(|environment| {
        let jobs = environment.members.iter().filter(|it| it.is_job);
        jobs.map(|it| (environment.eid.clone(), it.pid))
    });
    jobs.collect()
}

/// The changes of environments between two states. `newcomers` are additional members: new jobs, and jobs that became
/// shells.
pub(super) fn changes(
    before: Sides<'_>,
    after: Sides<'_>,
    newcomers: &HashSet<MemberKey>,
) -> Vec<(String, ConfirmedChange)> {
    // Another user may have written a second record with the same id.
    let (had_been, has_become) = (by_user(before.0), by_user(after.0));
    let (held, holds) = (reservations(before.1), reservations(after.1));
    let mut changes = Vec::new();
    for was in before.0 {
        let mut note = |change| changes.push((was.eid.clone(), change));
        let Some(is) = has_become.get(&(was.eid.as_str(), was.uid)) else {
            note(ConfirmedChange::Ended);
            continue;
        };
        for pid in missing(was, Some(is)) {
            note(ConfirmedChange::Left { pid });
        }
        if let Some(bytes) = lowered(was.gpu_memory, is.gpu_memory) {
            note(ConfirmedChange::Configured { bytes });
        }
        for (gpu, memory) in of(&held, &was.eid) {
            match holds.get(&(was.eid.as_str(), gpu)) {
                None => note(ConfirmedChange::Released { gpu }),
                Some(&now) => {
                    if let Some(bytes) = lowered(memory, now) {
                        note(ConfirmedChange::Reserved { gpu, bytes });
                    }
                }
            }
        }
    }
    for is in after.0 {
        let mut note = |change| changes.push((is.eid.clone(), change));
        let was = had_been.get(&(is.eid.as_str(), is.uid));
        let came = missing(is, was.copied());
        let others = newcomers.iter().filter(|(eid, pid)| *eid == is.eid && !came.contains(pid));
        let pids: Vec<u32> = others.map(|(_, pid)| *pid).chain(came.iter().copied()).collect();
        for pid in pids {
            note(ConfirmedChange::Joined { pid });
        }
        for (gpu, _) in of(&holds, &is.eid) {
            if was.is_none() || !held.contains_key(&(is.eid.as_str(), gpu)) {
                note(ConfirmedChange::Attached { gpu });
            }
        }
    }
    changes
}

/// The members of `all` that `others` lacks. A set keeps this fast for lists of any length.
fn missing(all: &EnvironmentState, others: Option<&EnvironmentState>) -> Vec<u32> {
    let others: HashSet<u32> = others.into_iter().flat_map(EnvironmentState::pids).collect();
    all.pids().filter(|pid| !others.contains(pid)).collect()
}

fn by_user(environments: &[EnvironmentState]) -> HashMap<(&str, u32), &EnvironmentState> {
    let all = environments.iter();
    all.map(|it| ((it.eid.as_str(), it.uid), it)).collect()
}

/// Memory by environment and device.
type Reservations<'a> = BTreeMap<(&'a str, u32), Option<MemoryAmount>>;

/// The reservations of one environment.
fn of<'r>(all: &'r Reservations<'_>, eid: &'r str) -> impl Iterator<Item = (u32, Option<MemoryAmount>)> + 'r {
    let of_it = all.range((eid, 0)..=(eid, u32::MAX));
    of_it.map(|(&(_, gpu), &memory)| (gpu, memory))
}

/// The reservations of each environment on each device.
fn reservations(devices: &[DeviceState]) -> Reservations<'_> {
    let mut all = BTreeMap::new();
    for device in devices {
        for attachment in &device.attachments {
            let key = (attachment.eid.as_str(), device.index);
            all.entry(key).or_insert(attachment.gpu_memory);
        }
    }
    all
}

/// The new amount, if it is less. An absent amount is the whole device.
fn lowered(was: Option<MemoryAmount>, is: Option<MemoryAmount>) -> Option<u64> {
    let is = is?.bytes();
    was.is_none_or(|was| is < was.bytes()).then_some(is)
}

/// Adds changes to the caller's file. `environments` are the environments after the change. Without a confirmation, the
/// enforcer ignores changes to the disadvantage of the user.
pub(super) fn write(
    directory: BorrowedFd<'_>,
    new: Vec<(String, ConfirmedChange)>,
    environments: &[EnvironmentState],
    now_seconds: f64,
) -> Option<UnwrittenFile> {
    if new.is_empty() {
        return None;
    }
    let own = geteuid().as_raw();
    let mut changes = read(directory, own);
    // Changes that gave members or devices to ended environments are not needed.
    let live: HashSet<&str> = environments.iter().map(|it| it.eid.as_str()).collect();
    changes.retain(|old| !old.change.gives() || live.contains(old.eid.as_str()));
    for (eid, change) in new {
        changes.retain(|old| old.eid != eid || !replaces(&change, &old.change));
        let process = match change {
            ConfirmedChange::Joined { pid } => joined(environments, &eid, pid),
            _ => None,
        };
        changes.push(Confirmed { eid, at_seconds: now_seconds, process, change });
    }
    drop_surplus(&mut changes);
    let name = name(own);
    let content = content(changes);
    let obstacle = own_file::replace(directory, &name, &content)?;
    Some(UnwrittenFile { name, obstacle })
}

/// The facts of a new member.
fn joined(environments: &[EnvironmentState], eid: &str, pid: u32) -> Option<Joined> {
    let member = environments.iter().find(|it| it.eid == eid)?.member(pid)?;
    let Started::At(start_time_ticks) = member.started else {
        return None;
    };
    Some(Joined { start_time_ticks, pid_namespace: member.pid_namespace?, is_job: member.is_job })
}

/// The content of a file with these changes. Long ids leave room for the newest changes alone.
fn content(mut changes: Vec<Confirmed>) -> Vec<u8> {
    loop {
        let older = changes.len().div_ceil(2);
        let mut content = ConfirmedFile { version: VERSION, changes };
        let text = serde_json::to_vec(&content).unwrap_or_default();
        if text.len() as u64 <= MOST_BYTES || older == 0 {
            return text;
        }
        changes = content.changes.split_off(older);
    }
}

/// Drops the oldest changes beyond the limit. In the older half, changes that give a member or a device stay longest:
/// without such a change the member is not confirmed any more.
fn drop_surplus(changes: &mut Vec<Confirmed>) {
    let mut surplus = changes.len().saturating_sub(MOST_CHANGES);
    let newer = changes.split_off(changes.len().saturating_sub(MOST_CHANGES / 2));
    changes.retain(|older| {
        let is_dropped = surplus > 0 && !older.change.gives();
        surplus -= usize::from(is_dropped);
        !is_dropped
    });
    changes.drain(..surplus);
    changes.extend(newer);
}

/// The obstacle that kept the caller's file from being written.
#[derive(Debug)]
pub(super) struct UnwrittenFile {
    name: String,
    obstacle: own_file::Obstacle,
}

impl UnwrittenFile {
    /// A message for the user; asks the name service.
    pub(super) fn notice(&self, directory: &Path) -> String {
        let path = directory.join(&self.name);
        let path = path.display();
        let folder = self.obstacle.owner.map(|uid| format!("a folder of user {}", username(uid)));
        match (&self.obstacle.outcome, folder) {
            (Ok(aside), folder) => format!(
                "{path} was {}: it is kept as {aside}, and the file is written again",
                folder.unwrap_or_default()
            ),
            (Err(errno), Some(folder)) => format!(
                "cannot write {path}: {}. It is {folder}: have it removed, for the enforcer does not see what this command \
                 changed",
                io_error(*errno)
            ),
            (Err(errno), None) => format!(
                "cannot write {path}: {}: {}. The enforcer does not see what this command changed",
                io_error(*errno),
                write_remedy(*errno)
            ),
        }
    }
}

/// Whether a change replaces an older one of the same environment. So thousands of commands do not fill the file.
fn replaces(new: &ConfirmedChange, old: &ConfirmedChange) -> bool {
    use ConfirmedChange::{Attached, Ended, Joined, Left, Released};
    match (new, old) {
        (Ended, _) => true,
        (Joined { pid } | Left { pid }, Joined { pid: old }) => pid == old,
        (Attached { gpu } | Released { gpu }, Attached { gpu: old }) => gpu == old,
        _ => false,
    }
}

/// Replaces the recorded facts of members, which every user may write, with confirmed facts. For each environment its
/// user, root and this program's user may confirm.
pub(super) fn confirm_members(environments: &mut [EnvironmentState], directory: BorrowedFd<'_>) {
    let mut by_user: HashMap<u32, HashMap<String, Vec<Confirmed>>> = HashMap::new();
    for environment in environments {
        let mut users = [environment.uid, 0, geteuid().as_raw()];
        users.sort_unstable();
        let created = environment.created_timestamp_seconds.unwrap_or_default();
        let mut confirmed: HashMap<u32, (f64, Joined)> = HashMap::new();
        for uid in users.chunk_by(|a, b| a == b).map(|it| it[0]) {
            let of_user = by_user.entry(uid).or_insert_with(|| by_environment(read(directory, uid)));
            for Confirmed { at_seconds, process, change, .. } in of_user.get(&environment.eid).into_iter().flatten() {
                // An ended environment may have had the same id.
                if let (ConfirmedChange::Joined { pid }, Some(joined)) = (change, process)
                    && at_seconds.floor() >= created.floor()
                    && confirmed.get(pid).is_none_or(|(at, _)| at <= at_seconds)
                {
                    confirmed.insert(*pid, (*at_seconds, *joined));
                }
            }
        }
        for member in &mut environment.members {
            if let Some((_, Joined { start_time_ticks, pid_namespace, is_job })) = confirmed.get(&member.pid) {
                let process = ProcessId { pid: member.pid, start_time_ticks: *start_time_ticks };
                *member = MemberState::found(process, *pid_namespace, *is_job);
            }
        }
    }
}

fn by_environment(changes: Vec<Confirmed>) -> HashMap<String, Vec<Confirmed>> {
    let mut by_environment: HashMap<String, Vec<Confirmed>> = HashMap::new();
    for change in changes {
        by_environment.entry(change.eid.clone()).or_default().push(change);
    }
    by_environment
}

/// The changes that commands of this user made in environments of a state directory, the oldest first; empty without a
/// file that this user wrote.
pub fn read_confirmed(directory: &Path, uid: u32) -> Vec<Confirmed> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, directory, flags, Mode::empty()) {
        Ok(directory) => read(directory.as_fd(), uid),
        Err(_) => Vec::new(),
    }
}

pub(super) fn read(directory: BorrowedFd<'_>, uid: u32) -> Vec<Confirmed> {
    let content = own_file::read(directory, &name(uid), uid);
    let content = content.and_then(|it| serde_json::from_slice::<ConfirmedFile>(&it.bytes).ok());
    match content {
        Some(content) if content.version == VERSION => content.changes,
        _ => Vec::new(),
    }
}

/// Whether a file is a leftover of a killed command of any user.
pub(super) fn is_leftover(file: &str) -> bool {
    own_file::is_leftover(file, PREFIX)
}

fn name(uid: u32) -> String {
    format!("{PREFIX}{uid}.json")
}

#[cfg(test)]
mod tests;
