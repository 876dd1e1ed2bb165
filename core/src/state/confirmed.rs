//! `genv-confirmed-N.json`: what commands of a user took from environments.
//!
//! Everybody may write the state files, so that they do not show whose command changed an environment. The kernel does:
//! this file belongs to the user who wrote it, and nobody else may write to it. A reader believes it about environments
//! of that user alone; of root and of the enforcer's user about all.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::atomic::{Disk, Prepared};
use super::{DeviceState, EnvironmentState};
use crate::model::MemoryAmount;

/// How many changes a file keeps, the newest.
const MOST_CHANGES: usize = 256;
/// A file that is larger was not written here.
const MOST_BYTES: u64 = 64 << 10;
const VERSION: u32 = 1;

/// Something that a command took from an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmed {
    /// The environment.
    pub eid: String,
    /// When the state was written with it, Unix time.
    pub at_seconds: f64,
    /// What was taken.
    #[serde(flatten)]
    pub change: ConfirmedChange,
}

/// What was taken from an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum ConfirmedChange {
    /// It ended.
    Ended,
    /// A process left it.
    Left {
        /// The process.
        pid: u32,
    },
    /// It was detached from a device.
    Released {
        /// The device.
        gpu: u32,
    },
    /// It reserves less memory of a device.
    Reserved {
        /// The device.
        gpu: u32,
        /// How much it reserves now.
        bytes: u64,
    },
    /// Its configuration asks for less memory.
    Configured {
        /// How much it asks for now.
        bytes: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    changes: Vec<Confirmed>,
}

/// The environments and devices of a state.
pub(super) type Sides<'a> = (&'a [EnvironmentState], &'a [DeviceState]);

/// What a change of the state took from environments.
pub(super) fn taken(before: Sides<'_>, after: Sides<'_>) -> Vec<(String, ConfirmedChange)> {
    let left: HashMap<&str, &EnvironmentState> =
        after.0.iter().map(|it| (it.eid.as_str(), it)).collect();
    let (held, holds) = (reservations(before.1), reservations(after.1));
    let mut taken = Vec::new();
    for was in before.0 {
        let mut note = |change| taken.push((was.eid.clone(), change));
        let Some(is) = left.get(was.eid.as_str()).filter(|is| is.uid == was.uid) else {
            note(ConfirmedChange::Ended);
            continue;
        };
        for &pid in was.pids.iter().filter(|pid| !is.pids.contains(pid)) {
            note(ConfirmedChange::Left { pid });
        }
        if let Some(bytes) = lowered(was.gpu_memory, is.gpu_memory) {
            note(ConfirmedChange::Configured { bytes });
        }
        let first = (was.eid.as_str(), 0);
        let of_it = held
            .range(first..)
            .take_while(|((eid, _), _)| *eid == was.eid);
        for (&(eid, gpu), &memory) in of_it {
            match holds.get(&(eid, gpu)) {
                None => note(ConfirmedChange::Released { gpu }),
                Some(&now) => {
                    if let Some(bytes) = lowered(memory, now) {
                        note(ConfirmedChange::Reserved { gpu, bytes });
                    }
                }
            }
        }
    }
    taken
}

/// What each environment reserves of each device.
fn reservations(devices: &[DeviceState]) -> BTreeMap<(&str, u32), Option<MemoryAmount>> {
    let mut all = BTreeMap::new();
    for device in devices {
        for attachment in &device.attachments {
            let place = (attachment.eid.as_str(), device.index);
            all.entry(place).or_insert(attachment.gpu_memory);
        }
    }
    all
}

/// The new amount, if it is less; none is all of a device.
fn lowered(was: Option<MemoryAmount>, is: Option<MemoryAmount>) -> Option<u64> {
    let is = is?.bytes();
    was.is_none_or(|was| is < was.bytes()).then_some(is)
}

/// Adds to the caller's file what its change took. Without it the enforcer lets count what was before.
pub(super) fn write(
    directory: BorrowedFd<'_>,
    taken: Vec<(String, ConfirmedChange)>,
    now_seconds: f64,
) {
    if taken.is_empty() {
        return;
    }
    let own = geteuid().as_raw();
    let mut changes = read(directory, own);
    changes.extend(taken.into_iter().map(|(eid, change)| Confirmed {
        eid,
        at_seconds: now_seconds,
        change,
    }));
    let surplus = changes.len().saturating_sub(MOST_CHANGES);
    changes.drain(..surplus);
    let content = Content {
        version: VERSION,
        changes,
    };
    let content = serde_json::to_vec(&content).unwrap_or_default();
    let name = name(own);
    if content.len() as u64 <= MOST_BYTES {
        // What stands in the way of this file stands in the way of nothing else.
        let _ = Prepared::new(&OwnFile, directory, &name, &content).and_then(Prepared::commit);
    }
}

/// What commands of this user took from environments of a state directory, the oldest first; nothing where there is no
/// file that this user wrote.
#[must_use]
pub fn read_confirmed(directory: &Path, uid: u32) -> Vec<Confirmed> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, directory, flags, Mode::empty()) {
        Ok(directory) => read(directory.as_fd(), uid),
        Err(_) => Vec::new(),
    }
}

fn read(directory: BorrowedFd<'_>, uid: u32) -> Vec<Confirmed> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = openat(directory, name(uid), flags, Mode::empty()) else {
        return Vec::new();
    };
    let is_own = fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == uid
            && stat.st_mode & 0o022 == 0
    });
    let mut text = Vec::new();
    let mut limited = File::from(file).take(MOST_BYTES + 1);
    if !is_own || limited.read_to_end(&mut text).is_err() || text.len() as u64 > MOST_BYTES {
        return Vec::new();
    }
    match serde_json::from_slice::<Content>(&text) {
        Ok(content) if content.version == VERSION => content.changes,
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn name(uid: u32) -> String {
    format!("genv-confirmed-{uid}.json")
}

/// The disk, with files that their owner alone may write.
#[derive(Debug)]
struct OwnFile;

impl Disk for OwnFile {
    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        fchmod(file, Mode::from_raw_mode(0o644))
    }
}

#[cfg(test)]
mod tests;
