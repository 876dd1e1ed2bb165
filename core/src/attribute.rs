//! Which environment a process belongs to, and which environments live.
//!
//! There are three answers, by four rules, and the third answer is honest: a process of which evidence is missing is
//! unknown, and whoever acts upon attribution leaves it alone.
//!
//! 1. *In E*, by a credible claim: the process's environ names E, E exists, and the process runs as
//!    E's user, or in a container (who may start containers is root anyway; a rootless
//!    container is worth as much as its owner).
//! 2. *In E*, by membership: it is a member of E; or its nearest member ancestor is one of E, and its
//!    own environ does not claim another environment.
//! 3. *Outside*: it makes no claim, and none of its ancestors is a member; or its claim is refuted: there
//!    is no such environment, or it is another user's.
//! 4. *Unknown*: anything that these rules need is missing. So is the claim of its user's environment that was
//!    left out only because its Jupyter kernels were not found: they may run elsewhere.
//!
//! Only freshly read state shows that something is not in it: from state that is kept because it
//! cannot be read now, nothing is ever concluded to be outside.

use std::collections::HashMap;

use crate::model::{Attribution, Member};
use crate::proc::{Claim, MissingEvidence, ProcessFacts, ProcessRead, ProcessTable};
use crate::state::{EnvironmentState, State, liveness};

/// The words that [`Attribution`] gives as its reason.
pub mod reason {
    /// Outside: its environ names no environment, and no ancestor is a member of one.
    pub const NO_CLAIM: &str = "no_claim";
    /// Outside: it claims an environment that does not exist.
    pub const NO_SUCH_ENVIRONMENT: &str = "no_such_environment";
    /// Outside: it claims an environment of another user.
    pub const OTHER_USERS_ENVIRONMENT: &str = "other_users_environment";
    /// Unknown: the process ended before it was read.
    pub const VANISHED: &str = "vanished";
    /// Unknown: nothing of it may be read (`hidepid`).
    pub const UNREADABLE: &str = "unreadable";
    /// Unknown: its environ may not be read.
    pub const ENVIRON_UNREADABLE: &str = "environ_unreadable";
    /// Unknown: its environ is empty.
    pub const ENVIRON_EMPTY: &str = "environ_empty";
    /// Unknown: its environ was overwritten, as setproctitle does.
    pub const ENVIRON_OVERWRITTEN: &str = "environ_overwritten";
    /// Unknown: it is a zombie, which has no environ.
    pub const ZOMBIE: &str = "zombie";
    /// Unknown: its user could not be read, so that its claim cannot be judged.
    pub const USER_UNREADABLE: &str = "user_unreadable";
    /// Unknown: an ancestor ended while it was read, or may not be read.
    pub const ANCESTOR_UNREADABLE: &str = "ancestor_unreadable";
    /// Unknown: the environment that it claims is its user's and would live by Jupyter kernels, of which none was found;
    /// where they are looked for, only their user's programs know for sure.
    pub const KERNELS_NOT_FOUND: &str = "kernels_not_found";
    /// Unknown: the state cannot be read now, so that nothing shows it to be outside.
    pub const STATE_UNREADABLE: &str = "state_unreadable";
}

/// The longest chain of parents that is followed: the kernel nests deeper in no sane system, and
/// a table that was read while pids were reused may hold a loop.
const MOST_ANCESTORS: usize = 1024;

/// An environment that lives: a member is alive, or it has Jupyter kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveEnvironment<'a> {
    /// The environment.
    pub environment: &'a EnvironmentState,
    /// Its members that are alive, without those that are hidden.
    pub members: Vec<Member>,
}

/// The environments of a state that live; the others ended without anybody clearing them away.
///
/// A member is alive if its pid exists and its process is the one that was recorded. If none was, it
/// must have started before the state was written: a bare pid means the process that had it
/// then. A member that is hidden counts as alive, as does a kernel that is listed: those that ended are left out
/// when the state is read.
#[must_use]
pub fn live_environments<'a>(state: &'a State, table: &ProcessTable) -> Vec<LiveEnvironment<'a>> {
    let written = state.written_timestamp_seconds;
    let live = |environment: &'a EnvironmentState| {
        let pids = &environment.pids;
        let recorded = |pid: u32| {
            let created = environment.created_timestamp_seconds;
            state.recorded.of(&environment.eid, created, pid)
        };
        let alive = |&pid: &u32| {
            let lineage = table.lineage.get(&pid)?;
            liveness::is_member(recorded(pid), lineage, written).then_some(Member {
                pid,
                start_time_ticks: lineage.start_time_ticks,
            })
        };
        let hidden =
            |&pid: &u32| table.hidden.contains(&pid) && liveness::may_be_member(recorded(pid));
        let members: Vec<Member> = pids.iter().filter_map(alive).collect();
        let lives =
            !members.is_empty() || !environment.kernel_ids.is_empty() || pids.iter().any(hidden);
        lives.then_some(LiveEnvironment {
            environment,
            members,
        })
    };
    state.environments.iter().filter_map(live).collect()
}

/// Answers for every process of one table.
#[derive(Debug)]
pub struct Attributor<'a> {
    table: &'a ProcessTable,
    state_is_whole: bool,
    users: HashMap<&'a str, u32>,
    state: &'a State,
    members: HashMap<u32, &'a str>,
}

/// What the chain of parents says.
enum Descent<'a> {
    /// This member, the process itself or an ancestor, comes first.
    Member { eid: &'a str, itself: bool },
    /// There is none up to the root.
    None,
    /// The chain breaks before its root.
    Broken,
}

impl<'a> Attributor<'a> {
    /// Prepares to judge by a state, those of its environments that live (see [`live_environments`]) and this table.
    ///
    /// `state_is_fresh` tells whether the state was read in this cycle, rather than kept from an earlier
    /// one, after the pids were learned. Only then, and if it is whole ([`State::incomplete`]), did an environment
    /// that is missing from it not exist when the process was started.
    #[must_use]
    pub fn new(
        state: &'a State,
        environments: &[LiveEnvironment<'a>],
        state_is_fresh: bool,
        table: &'a ProcessTable,
    ) -> Self {
        let mut users = HashMap::with_capacity(environments.len());
        let mut members = HashMap::with_capacity(environments.len());
        for LiveEnvironment {
            environment,
            members: alive,
        } in environments
        {
            let eid = environment.eid.as_str();
            users.insert(eid, environment.uid);
            for &member in alive {
                members.entry(member.pid).or_insert(eid);
            }
        }
        Self {
            table,
            state,
            state_is_whole: state_is_fresh && !state.incomplete,
            users,
            members,
        }
    }

    /// Where a process belongs.
    #[must_use]
    pub fn attribute(&self, pid: u32) -> Attribution {
        let facts = match self.table.processes.get(&pid) {
            Some(ProcessRead::Present(facts)) => facts,
            Some(ProcessRead::Unreadable) => return unknown(reason::UNREADABLE),
            Some(ProcessRead::Vanished) | None => return unknown(reason::VANISHED),
        };
        match &facts.claim {
            Claim::Named(eid) => self.judge_claim(pid, facts, eid),
            Claim::Absent => match self.descent(pid) {
                Descent::Member { eid, .. } => inside(eid),
                Descent::None => self.outside(reason::NO_CLAIM),
                Descent::Broken => unknown(reason::ANCESTOR_UNREADABLE),
            },
            Claim::Missing(missing) => match self.descent(pid) {
                Descent::Member { eid, .. } => inside(eid),
                Descent::None | Descent::Broken => unknown(match missing {
                    MissingEvidence::EnvironUnreadable => reason::ENVIRON_UNREADABLE,
                    MissingEvidence::EnvironEmpty => reason::ENVIRON_EMPTY,
                    MissingEvidence::EnvironOverwritten => reason::ENVIRON_OVERWRITTEN,
                    MissingEvidence::Zombie => reason::ZOMBIE,
                }),
            },
        }
    }

    fn judge_claim(&self, pid: u32, facts: &ProcessFacts, claimed: &str) -> Attribution {
        let refuted = match self.users.get(claimed) {
            None => reason::NO_SUCH_ENVIRONMENT,
            Some(&user) if credible(facts, user) => return inside(claimed),
            Some(_) => reason::OTHER_USERS_ENVIRONMENT,
        };
        match self.descent(pid) {
            // The state names the process itself, after its environ was made.
            Descent::Member { eid, itself: true } => inside(eid),
            // Claim and descent agree, as under `sudo --preserve-env`.
            Descent::Member { eid, .. } if eid == claimed => inside(eid),
            Descent::Broken if refuted == reason::OTHER_USERS_ENVIRONMENT => {
                unknown(reason::ANCESTOR_UNREADABLE)
            }
            _ if facts.uid.is_none() && refuted == reason::OTHER_USERS_ENVIRONMENT => {
                unknown(reason::USER_UNREADABLE)
            }
            _ if self.may_live_for(facts, claimed) => unknown(reason::KERNELS_NOT_FOUND),
            _ => self.outside(refuted),
        }
    }

    /// Whether an environment that was left out may live all the same, and be this process's then.
    fn may_live_for(&self, facts: &ProcessFacts, eid: &str) -> bool {
        let user = self.state.kernels_not_found.get(eid);
        user.is_some_and(|&user| facts.uid.is_none() || credible(facts, user))
    }

    fn descent(&self, pid: u32) -> Descent<'a> {
        let mut current = pid;
        let mut child_start = u64::MAX;
        for _ in 0..MOST_ANCESTORS {
            let Some(lineage) = self.table.lineage.get(&current) else {
                return Descent::Broken;
            };
            if lineage.start_time_ticks > child_start {
                // Nobody is younger than their child: the parent ended, and another process has its pid.
                return Descent::Broken;
            }
            if let Some(&eid) = self.members.get(&current) {
                return Descent::Member {
                    eid,
                    itself: current == pid,
                };
            }
            if lineage.parent == 0 {
                return Descent::None;
            }
            child_start = lineage.start_time_ticks;
            current = lineage.parent;
        }
        Descent::Broken
    }

    fn outside(&self, reason: &str) -> Attribution {
        if self.state_is_whole {
            Attribution::Outside {
                reason: reason.to_owned(),
            }
        } else {
            unknown(reason::STATE_UNREADABLE)
        }
    }
}

/// Whether a process may claim an environment of this user.
fn credible(facts: &ProcessFacts, user: u32) -> bool {
    facts.uid == Some(user)
        || facts.container_id.is_some() && facts.container_owner.is_none_or(|owner| owner == user)
}

fn inside(eid: &str) -> Attribution {
    Attribution::Environment {
        eid: eid.to_owned(),
    }
}

fn unknown(reason: &str) -> Attribution {
    Attribution::Unknown {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
