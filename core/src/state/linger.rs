//! The life of an environment after its last shell: one rule for commands, exporter and enforcer.
//!
//! The environment continues while one of its processes has a context on a device that the environment holds, or had
//! one within the linger time. `belonging` decides which processes are the environment's own. Processes without a
//! context, such as agents, editors and servers of terminal multiplexers, keep no device.

use std::time::Duration;

use super::{EnvironmentState, MemberState, Started};
use crate::duration::parse_duration;
use crate::proc::{Claim, ProcessFacts, ProcessTable};

/// The linger time after the last context, without `GENV_LINGER`.
const LINGER: Duration = Duration::from_secs(15 * 60);

/// The time by which a process may seem to be older than the environment in which it was started.
pub(super) const START_TOLERANCE_SECONDS: f64 = 2.0;

/// The longest chain of parents that is followed: a table that was read while pids were reused may hold a loop.
const MOST_ANCESTORS: usize = 1024;

/// The value of `GENV_LINGER`; 15 minutes if the value is not a duration.
pub fn linger_seconds() -> f64 {
    let set = std::env::var("GENV_LINGER").ok();
    let linger = set.and_then(|text| parse_duration(&text).ok());
    linger.unwrap_or(LINGER).as_secs_f64()
}

/// Whether a context at one time keeps an environment at another, both Unix time. A context in the future does not
/// count.
pub fn lingers(seen_seconds: Option<f64>, now_seconds: f64, linger_seconds: f64) -> bool {
    seen_seconds.is_some_and(|seen| (-START_TOLERANCE_SECONDS..=linger_seconds).contains(&(now_seconds - seen)))
}

/// Whether a process belongs to an environment without a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belonging {
    /// The process names the environment, is a recorded job of it, or descends from one.
    Own,
    /// The evidence is missing.
    Unclear,
    /// The process belongs to another environment or to none.
    Other,
}

/// Whether a process of `table` belongs to an environment that has no shell.
pub(crate) fn belonging(
    environment: &EnvironmentState,
    pid: u32,
    facts: &ProcessFacts,
    table: &ProcessTable,
) -> Belonging {
    if !may_be_of(facts, environment.uid, table) || table.zombies.contains(&pid) {
        return Belonging::Other;
    }
    match &facts.claim {
        Claim::Named(eid) if *eid == environment.eid => Belonging::Own,
        Claim::Named(_) => Belonging::Other,
        Claim::Absent | Claim::Missing(_) if descends(environment, pid, table) => Belonging::Own,
        Claim::Absent => Belonging::Other,
        Claim::Missing(_) => Belonging::Unclear,
    }
}

/// Whether a process may belong to a user: it runs as that user, under a subordinate uid of that user, or in a
/// container that may belong to that user.
fn may_be_of(facts: &ProcessFacts, uid: u32, table: &ProcessTable) -> bool {
    facts.uid.is_some_and(|it| it == uid || table.owner(it) == uid)
        || facts.container_id.is_some() && facts.container_owner.is_none_or(|owner| owner == uid)
}

/// Whether a process is a recorded job of an environment, or a descendant of one.
fn descends(environment: &EnvironmentState, pid: u32, table: &ProcessTable) -> bool {
    let is_job = |pid: u32| {
        let started = table.living(pid).map(|it| Started::At(it.start_time_ticks));
        let is_it = |member: &MemberState| member.is_job && Some(member.started) == started;
        environment.member(pid).is_some_and(is_it)
    };
    let (mut next, mut child_start) = (pid, u64::MAX);
    for _ in 0..MOST_ANCESTORS {
        if is_job(next) {
            return true;
        }
        // A parent that is younger than its child is another process: the parent ended, and its pid was reused.
        match table.lineage.get(&next) {
            Some(it) if it.start_time_ticks <= child_start && it.parent != 0 => {
                (next, child_start) = (it.parent, it.start_time_ticks);
            }
            _ => return false,
        }
    }
    false
}
