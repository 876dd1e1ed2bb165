//! `genv-members.json`: facts about members of environments that genv 1.x does not have.
//!
//! A pid alone is ambiguous: another process may have the pid by now, and another pid namespace has its own process
//! with the pid. This file, which only this project writes, has the start times and namespaces of members, and the
//! queue. It adds to `envs.json` and never contradicts it: a record without a counterpart in `envs.json` is dropped
//! here, unless a damaged file lost the counterpart.
//!
//! Every user may write this file. Confirmations by an environment's user replace its facts, and the file alone ends no
//! member ([`super::liveness`]).

mod format;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

pub(super) use format::{FORMAT, boot_id};

use super::data::{DeviceState, EnvironmentState, KnownEnvironments, LostMember, MemberState, ProcessId, Started};

/// The start of no process.
pub(super) const NEVER_TICKS: u64 = u64::MAX;

/// An environment and the pid of a member, in the member's pid namespace.
type MemberKey = (String, u32);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MembersFile {
    members: HashMap<MemberKey, MemberRecord>,
    others: OtherRecords,
}

/// What `genv-members.json` has besides the members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherRecords {
    /// Processes that wait for devices, first come first.
    pub(super) queue: Vec<ProcessId>,
    /// Members of environments that a damaged `envs.json` has lost.
    pub(super) lost: Vec<LostMember>,
    /// Whether the devices of the state are invented, if that is known.
    pub(super) simulated: Option<bool>,
    /// A copy of the devices as last written, in case `devices.json` is lost.
    pub(super) copy: Vec<DeviceState>,
    /// Environments whose devices a damaged `devices.json` may have lost.
    pub(super) bare: BTreeSet<String>,
    /// The last known facts of environments that hold devices.
    pub(super) known: KnownEnvironments,
}

/// The most lost members: every user may write the file.
const MOST_LOST: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct MemberRecord {
    /// When the environment was created, Unix time: a later environment may have the same id.
    created_seconds: Option<i64>,
    started: Started,
    /// The inode of its pid namespace.
    pid_namespace: u64,
    is_job: bool,
}

impl MembersFile {
    /// Gives the members of environments their recorded facts, which nobody has confirmed. Returns the other records,
    /// with the members of environments that `envs.json` lost, if it is `damaged`.
    pub(super) fn give_facts(self, environments: &mut [EnvironmentState], damaged: bool) -> OtherRecords {
        let Self { members, mut others } = self;
        others.find_lost(&members, environments, damaged);
        fill_empty(&members, environments);
        for environment in environments {
            let created = whole(environment.created_timestamp_seconds);
            for member in &mut environment.members {
                if members.is_empty() {
                    return others;
                }
                let record = members.get(&(environment.eid.clone(), member.pid));
                if let Some(record) = record.filter(|it| it.created_seconds == created) {
                    (member.started, member.pid_namespace) = (record.started, Some(record.pid_namespace));
                }
            }
        }
        others
    }
}

impl OtherRecords {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
            && self.lost.is_empty()
            && self.simulated.is_none()
            && self.copy.is_empty()
            && self.bare.is_empty()
            && self.known.is_empty()
    }

    /// Records the members of environments that `envs.json` lost, if it is `damaged`. Removes the members of
    /// environments that it has again.
    fn find_lost(
        &mut self,
        members: &HashMap<MemberKey, MemberRecord>,
        environments: &[EnvironmentState],
        damaged: bool,
    ) {
        let known: HashSet<&str> = environments.iter().map(|it| it.eid.as_str()).collect();
        self.lost.retain(|member| !known.contains(member.eid.as_str()));
        let before: HashSet<(String, u32)> = self.lost.iter().map(|it| (it.eid.clone(), it.process.pid)).collect();
        let missing = members.iter().filter(|((eid, pid), _)| {
            damaged && !known.contains(eid.as_str()) && !before.contains(&(eid.clone(), *pid))
        });
        self.lost.extend(missing.filter_map(|((eid, pid), record)| {
            let Started::At(start_time_ticks) = record.started else {
                return None;
            };
            Some(LostMember {
                eid: eid.clone(),
                created_seconds: record.created_seconds,
                process: ProcessId { pid: *pid, start_time_ticks },
                pid_namespace: record.pid_namespace,
                is_job: record.is_job,
            })
        }));
        self.lost.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        self.lost.truncate(MOST_LOST);
    }
}

/// Adds the recorded members to environments without a member: no program writes such an environment.
fn fill_empty(members: &HashMap<MemberKey, MemberRecord>, environments: &mut [EnvironmentState]) {
    let is_empty = |it: &&mut EnvironmentState| it.members.is_empty() && it.kernel_ids.is_empty();
    let empty = environments.iter_mut().filter(is_empty);
    let mut empty: HashMap<String, &mut EnvironmentState> = empty.map(|it| (it.eid.clone(), it)).collect();
    if empty.is_empty() {
        return;
    }
    for ((eid, pid), record) in members {
        let Some(environment) = empty.get_mut(eid) else {
            continue;
        };
        let created = whole(environment.created_timestamp_seconds);
        if created.is_none() || created == record.created_seconds {
            environment.members.push(MemberState::from(*pid));
        }
    }
    for environment in empty.into_values() {
        environment.members.sort_unstable_by_key(|it| it.pid);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "times of files are whole seconds of the years to 9999")]
fn whole(timestamp_seconds: Option<f64>) -> Option<i64> {
    timestamp_seconds.map(|seconds| seconds.floor() as i64)
}
