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

use super::data::{DeviceState, EnvironmentState, KnownEnvironments, LostMember, ProcessId};
use super::strangers::Strangers;
use crate::model::Joined;

/// The start of no process.
pub(super) const NEVER_TICKS: u64 = u64::MAX;

/// An environment and the pid of a member, in the member's pid namespace.
pub(super) type MemberKey = (String, u32);

/// The records of members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedMembers {
    members: HashMap<MemberKey, MemberRecord>,
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
    /// Listed processes that are not members, whatever the records claim.
    pub(super) strangers: Strangers,
}

/// The most lost members: every user may write the file.
const MOST_LOST: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct MemberRecord {
    /// When the environment was created, Unix time: a later environment may have the same id.
    created_seconds: Option<i64>,
    /// Absent: the record is from before the last boot.
    start_time_ticks: Option<u64>,
    /// The inode of its pid namespace.
    pid_namespace: u64,
    is_job: bool,
    /// Whether the user of the environment confirmed this record.
    is_confirmed: bool,
}

/// The record of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// No record: genv 1.x wrote the member.
    Unknown,
    /// The member is the process that started at this time, clock ticks since boot.
    Started(u64),
    /// The member was a process before the last boot.
    BeforeThisBoot,
}
impl RecordedMembers {
    /// Whether a member is a *job*: a process that started in the environment and that a command recorded. For genv 1.x
    /// a living job keeps the environment; here it does so only while it works on a device (see docs/files.md).
    pub fn is_job(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> bool {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.is_some_and(|it| it.is_job && it.is_confirmed)
    }

    fn record_of(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Option<&MemberRecord> {
        if self.members.is_empty() {
            return None;
        }
        let record = self.members.get(&(eid.to_owned(), pid));
        record.filter(|it| it.created_seconds == whole(created_timestamp_seconds))
    }

    /// The inode of a member's pid namespace; `None` if genv 1.x wrote the member.
    pub(super) fn pid_namespace(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Option<u64> {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.map(|it| it.pid_namespace)
    }

    /// Whether the user of an environment confirmed the record of a member.
    pub(super) fn is_confirmed(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> bool {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.is_some_and(|it| it.is_confirmed)
    }

    /// The facts for the confirmation of a member.
    pub(super) fn joined(&self, eid: &str, pid: u32) -> Option<Joined> {
        let record = self.members.get(&(eid.to_owned(), pid))?;
        Some(Joined {
            start_time_ticks: record.start_time_ticks?,
            pid_namespace: record.pid_namespace,
            is_job: record.is_job,
        })
    }

    /// Replaces the file's record of a member with the confirmation of the environment's user.
    pub(super) fn confirm(&mut self, environment: &EnvironmentState, pid: u32, joined: Joined) {
        let record = MemberRecord {
            created_seconds: whole(environment.created_timestamp_seconds),
            start_time_ticks: Some(joined.start_time_ticks),
            pid_namespace: joined.pid_namespace,
            is_job: joined.is_job,
            is_confirmed: true,
        };
        self.members.insert((environment.eid.clone(), pid), record);
    }

    /// The records as another program reads them, in this boot or a later one, without any confirmation.
    #[cfg(test)]
    pub(super) fn unconfirmed(mut self, is_of_this_boot: bool) -> Self {
        for record in self.members.values_mut() {
            record.is_confirmed = false;
            record.start_time_ticks = record.start_time_ticks.filter(|_| is_of_this_boot);
        }
        self
    }

    /// The record of a member of the environment that was created at this time.
    pub fn of(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Recorded {
        match self.record_of(eid, created_timestamp_seconds, pid) {
            Some(record) => record.start_time_ticks.map_or(Recorded::BeforeThisBoot, Recorded::Started),
            None => Recorded::Unknown,
        }
    }

    /// Whether there is no record at all.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
            && self.queue.is_empty()
            && self.lost.is_empty()
            && self.simulated.is_none()
            && self.copy.is_empty()
            && self.bare.is_empty()
            && self.known.is_empty()
    }

    /// Records the members of environments that `envs.json` lost, if it is `damaged`. Removes the members of
    /// environments that it has again.
    pub(super) fn find_lost(&mut self, environments: &[EnvironmentState], damaged: bool) {
        let known: HashSet<&str> = environments.iter().map(|it| it.eid.as_str()).collect();
        self.lost.retain(|member| !known.contains(member.eid.as_str()));
        let before: HashSet<(String, u32)> = self.lost.iter().map(|it| (it.eid.clone(), it.process.pid)).collect();
        let missing = self.members.iter().filter(|((eid, pid), _)| {
            damaged && !known.contains(eid.as_str()) && !before.contains(&(eid.clone(), *pid))
        });
        self.lost.extend(missing.filter_map(|((eid, pid), record)| {
            Some(LostMember {
                eid: eid.clone(),
                created_seconds: record.created_seconds,
                process: ProcessId { pid: *pid, start_time_ticks: record.start_time_ticks? },
                pid_namespace: record.pid_namespace,
                is_job: record.is_job,
            })
        }));
        self.lost.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        self.lost.truncate(MOST_LOST);
    }

    /// Adds the recorded members to environments without a member: no program writes such an environment.
    pub(super) fn fill_empty(&self, environments: &mut [EnvironmentState]) {
        let is_empty = |it: &&mut EnvironmentState| it.pids.is_empty() && it.kernel_ids.is_empty();
        let empty = environments.iter_mut().filter(is_empty);
        let mut empty: HashMap<String, &mut EnvironmentState> = empty.map(|it| (it.eid.clone(), it)).collect();
        if empty.is_empty() {
            return;
        }
        for ((eid, pid), record) in &self.members {
            let Some(environment) = empty.get_mut(eid) else {
                continue;
            };
            let created = whole(environment.created_timestamp_seconds);
            if created.is_none() || created == record.created_seconds {
                environment.pids.push(*pid);
            }
        }
        for environment in empty.into_values() {
            environment.pids.sort_unstable();
        }
    }

    /// Records a member with this program's own facts.
    pub(super) fn record(
        &mut self,
        eid: &str,
        created_timestamp_seconds: Option<f64>,
        process: ProcessId,
        pid_namespace: u64,
        is_job: bool,
    ) {
        let record = MemberRecord {
            created_seconds: whole(created_timestamp_seconds),
            start_time_ticks: Some(process.start_time_ticks),
            pid_namespace,
            is_job,
            is_confirmed: true,
        };
        let place = (eid.to_owned(), process.pid);
        self.strangers.remove(&place);
        self.members.insert(place, record);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "times of files are whole seconds of the years to 9999")]
fn whole(timestamp_seconds: Option<f64>) -> Option<i64> {
    timestamp_seconds.map(|seconds| seconds.floor() as i64)
}
