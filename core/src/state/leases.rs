//! `genv-leases-N.json`: the leases of a user's environments.
//!
//! Only its user may write the file: a lease counts for environments of that user alone.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::EnvironmentState;
use super::change::EditableState;
use super::data::Leases;
use super::own_file;
use super::written::LATEST_SECONDS;

const PREFIX: &str = "genv-leases-";
const VERSION: u32 = 1;

/// The time until which a user wants an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    eid: String,
    /// When the end was set, Unix time.
    granted_seconds: i64,
    /// Its end, Unix time.
    end_seconds: i64,
}

impl Lease {
    /// Whether this is a lease of this environment, and not of an ended one with the same id.
    fn is_of(&self, environment: &EnvironmentState) -> bool {
        let created = environment.created_timestamp_seconds.unwrap_or_default();
        self.eid == environment.eid && seconds(self.granted_seconds) >= created.floor()
    }
}

#[derive(Serialize, Deserialize)]
struct LeasesFile {
    version: u32,
    leases: Vec<Lease>,
}

/// The leases of these environments, each by the file of the environment's user.
pub(super) fn find(environments: &[EnvironmentState], directory: BorrowedFd<'_>) -> Leases {
    let mut by_user: HashMap<u32, Vec<Lease>> = HashMap::new();
    let found = environments.iter().filter_map(|environment| {
        let uid = environment.uid;
        let of_user = by_user.entry(uid).or_insert_with(|| read(directory, uid));
        let lease = of_user.iter().find(|lease| lease.is_of(environment))?;
        Some((environment.eid.clone(), seconds(lease.end_seconds)))
    });
    found.collect()
}

/// Writes the leases of the caller's environments, and drops those of ended ones.
pub(super) fn write(directory: BorrowedFd<'_>, state: &EditableState) -> Result<(), Errno> {
    let own = geteuid().as_raw();
    let before = read(directory, own);
    let environments = state.environments.iter().filter(|it| it.uid == own);
    let leases: Vec<Lease> = environments
        .filter_map(|environment| {
            let end_seconds = whole(*state.leases.get(&environment.eid)?);
            let same = |it: &&Lease| it.is_of(environment) && it.end_seconds == end_seconds;
            let known = before.iter().find(same).cloned();
            Some(known.unwrap_or_else(|| Lease {
                eid: environment.eid.clone(),
                granted_seconds: whole(state.now_seconds),
                end_seconds,
            }))
        })
        .collect();
    if leases == before {
        return Ok(());
    }
    let name = name(own);
    if leases.is_empty() {
        return unlinkat(directory, &name, AtFlags::empty());
    }
    let version = VERSION;
    let content = serde_json::to_vec(&LeasesFile { version, leases }).map_err(|_| Errno::INVAL)?;
    if content.len() as u64 > own_file::MOST_BYTES {
        return Err(Errno::FBIG);
    }
    let obstacle = own_file::replace(directory, &name, &content);
    obstacle.map_or(Ok(()), |it| it.outcome.map(drop))
}

/// The leases in the file of a user. A file that another user wrote, an invalid file and a moved file count as empty: a
/// moved older file could end an extended lease.
fn read(directory: BorrowedFd<'_>, uid: u32) -> Vec<Lease> {
    let content = own_file::read(directory, &name(uid), uid);
    let content = content.filter(|it| !it.was_moved);
    let content = content.and_then(|it| serde_json::from_slice::<LeasesFile>(&it.bytes).ok());
    let mut leases = match content {
        Some(content) if content.version == VERSION => content.leases,
        _ => Vec::new(),
    };
    leases.retain(|it| (0.0..=LATEST_SECONDS).contains(&seconds(it.end_seconds)));
    leases
}

/// Whether a file is a leftover of a killed command of any user.
pub(super) fn is_leftover(file: &str) -> bool {
    own_file::is_leftover(file, PREFIX)
}

/// The name of the caller's file.
pub(super) fn own_name() -> String {
    name(geteuid().as_raw())
}

fn name(uid: u32) -> String {
    format!("{PREFIX}{uid}.json")
}

#[expect(clippy::cast_precision_loss, reason = "times have fewer digits")]
const fn seconds(whole: i64) -> f64 {
    whole as f64
}

#[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
const fn whole(seconds: f64) -> i64 {
    seconds as i64
}

#[cfg(test)]
mod tests;
