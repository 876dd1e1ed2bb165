//! Which environment a process belongs to, and which environments live.
//!
//! There are three answers, by four rules, and the third answer is honest: a process of which evidence is missing, or
//! contradicts itself, is unknown, and whoever acts upon attribution leaves it alone.
//!
//! The state is written by users, each of whom can write anything. What a record says of a process counts
//! only where the kernel agrees: a *member* is a process that the record lists and that runs as the environment's user.
//!
//! 1. *In E*, by a credible claim: the process's environ names E, E exists, and the process runs as E's user, or in a
//!    container (a user who may start containers is root anyway; a rootless container is worth as much as its owner).
//!    The process is not older than E: E may have the id of an ended environment.
//! 2. *In E*, by membership: it is a member of E; or its nearest member ancestor is one of E, it runs as E's user, and
//!    its own environ does not claim another environment.
//! 3. *Outside*: it makes no claim, and none of its ancestors is a member; or its claim is refuted: there
//!    is no such environment, or it is another user's.
//! 4. *Unknown*: anything that these rules need is missing, or contradicts another part of it:
//!    - Its nearest member ancestor is of another user: sudo, su, setuid programs and spawners start such processes.
//!      Root's members are an exception: they are ancestors of everybody's processes, and anybody can list them in a record.
//!      Below one of them a process is unknown if it also claims that environment.
//!    - Its real and effective users differ.
//!    - It claims another user's environment, whose record lists it, or an ancestor of it, all the same: that record may
//!      have been changed by another user than its own.
//!    - Its claim is credible, but the process started before that environment was made, and neither the process nor
//!      its nearest member ancestor is a member there: the claim may name an ended environment that had this id.
//!    - It claims its user's environment that was left out only because its Jupyter kernels were not found: they may run
//!      elsewhere.
//!    - It would be outside, and a damaged record, which was left out, names the environment that it claims, or names its
//!      user and lists it or an ancestor of that user. Such a record says nothing of other processes.
//!
//! Only freshly read state shows that something is not in it: from state that is kept because it
//! cannot be read now, nothing is ever concluded to be outside.

mod unknown;

pub use unknown::{changed_user, unknown_owner};

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use crate::model::{Attribution, Member};
use crate::proc::{Claim, MissingEvidence, ProcessFacts, ProcessRead, ProcessTable};
use crate::state::liveness::{self, Standing};
use crate::state::{EnvironmentState, State};

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
    /// Unknown: its uid may be a subordinate one of a user whom only a directory service knows.
    pub const OWNER_UNKNOWN: &str = "owner_unknown";
    /// Unknown: its real and effective users differ, as while a setuid program runs.
    pub const USERS_DIFFER: &str = "users_differ";
    /// Unknown: it descends from a member of an environment, and runs as another user (sudo, su, spawners).
    pub const USER_CHANGED: &str = "user_changed";
    /// Unknown: it claims another user's environment, which lists it, or an ancestor of it, as a member.
    pub const MEMBERSHIP_CONTRADICTED: &str = "membership_contradicted";
    /// Unknown: an ancestor ended while it was read, or may not be read.
    pub const ANCESTOR_UNREADABLE: &str = "ancestor_unreadable";
    /// Unknown: the environment that it claims is its user's and would live by Jupyter kernels, of which none was found;
    /// where they are looked for, only their user's programs know for sure.
    pub const KERNELS_NOT_FOUND: &str = "kernels_not_found";
    /// Unknown, to the enforcer alone: the record of the environment that it seems to be in is disputed.
    pub const RECORD_DISPUTED: &str = "record_disputed";
    /// Unknown: a damaged record names the environment that it claims, it, or an ancestor of its user.
    pub const RECORD_DAMAGED: &str = "record_damaged";
    /// Unknown: the process claims an environment that is younger than the process. The claim may name an ended
    /// environment with the same id.
    pub const OLDER_THAN_ENVIRONMENT: &str = "older_than_environment";
    /// Unknown: the state cannot be read now, so that nothing shows it to be outside.
    pub const STATE_UNREADABLE: &str = "state_unreadable";
}

/// The longest chain of parents that is followed: the kernel nests deeper in no sane system, and
/// a table that was read while pids were reused may hold a loop.
const MOST_ANCESTORS: usize = 1024;

/// An environment that lives: a member that is no job is alive, or it has Jupyter kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveEnvironment<'a> {
    /// The environment.
    pub environment: &'a EnvironmentState,
    /// Its members that are alive, without those that are hidden, and without its jobs.
    pub members: Vec<Member>,
    /// Its jobs that are alive: they are in it, and do not keep it alive ([`RecordedMembers::is_job`]).
    ///
    /// [`RecordedMembers::is_job`]: crate::state::RecordedMembers::is_job
    pub jobs: Vec<Member>,
    /// Living processes that its record lists and that run as other users: they keep it alive, but are no members.
    pub foreign: Vec<Member>,
    /// When the oldest of `members` was started, Unix time.
    pub oldest_member_started_timestamp_seconds: Option<f64>,
}

impl<'a> LiveEnvironment<'a> {
    /// An environment without known living members.
    #[must_use]
    pub fn without_members(environment: &'a EnvironmentState) -> Self {
        Self {
            environment,
            members: Vec::new(),
            jobs: Vec::new(),
            foreign: Vec::new(),
            oldest_member_started_timestamp_seconds: None,
        }
    }
}

/// The environments of a state that live; the others ended without anybody clearing them away.
///
/// A member is alive if its pid exists, its process has not ended, and it is the one that was recorded. If none was, it
/// must have started before the state was written: a bare pid means the process that had it
/// then. A member that is hidden counts as alive, as does a kernel that is listed: those that ended are left out
/// when the state is read. A listed process of another user keeps its environment alive: that environment is
/// disputed, and what is disputed does not end.
#[must_use]
pub fn live_environments<'a>(state: &'a State, table: &ProcessTable) -> Vec<LiveEnvironment<'a>> {
    let listed = state.environments.iter();
    let shown = listed.map(|environment| listed_members(state, environment, table));
    shown.filter_map(|(environment, lives)| lives.then_some(environment)).collect()
}

/// The environments of processes of a table, by pid. Processes that are in none are left out.
#[must_use]
pub fn environments_of(state: &State, table: &ProcessTable, pids: &[u32]) -> BTreeMap<u32, String> {
    let live = live_environments(state, table);
    let attributor = Attributor::new(state, &live, true, table);
    let of = |pid: &u32| attributor.attribute(*pid).eid().map(|eid| (*pid, eid.to_owned()));
    pids.iter().filter_map(of).collect()
}

/// An environment with its members that are alive, and whether they keep it alive.
pub(crate) fn listed_members<'a>(
    state: &'a State,
    environment: &'a EnvironmentState,
    table: &ProcessTable,
) -> (LiveEnvironment<'a>, bool) {
    let written = state.written_timestamp_seconds;
    let (mut members, mut jobs, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    let mut may_live = false;
    for &pid in &environment.pids {
        let listed = liveness::Member::new(environment, pid, &state.recorded);
        let living = match listed.standing(table, written) {
            Standing::Lives(living) => living,
            Standing::MayLive => {
                may_live |= !listed.is_job();
                continue;
            }
            Standing::Ended => continue,
        };
        let user = table.owner(environment.uid);
        let borne_out = living.uid.is_none_or(|uid| table.owner(uid) == user);
        let list = match borne_out {
            true if listed.is_job() => &mut jobs,
            true => &mut members,
            false => &mut foreign,
        };
        list.push(Member { pid: living.pid, start_time_ticks: living.start_time_ticks });
    }
    let lives = !members.is_empty() || !foreign.is_empty() || !environment.kernel_ids.is_empty() || may_live;
    let started = members.iter().filter_map(|member: &Member| {
        let lineage = table.lineage.get(&member.pid)?;
        Some(lineage.start_timestamp_seconds)
    });
    let oldest_member_started_timestamp_seconds = started.reduce(f64::min);
    let environment = LiveEnvironment { environment, members, jobs, foreign, oldest_member_started_timestamp_seconds };
    (environment, lives)
}

/// Answers for every process of one table.
#[derive(Debug)]
pub struct Attributor<'a> {
    table: &'a ProcessTable,
    state_is_whole: bool,
    claimed: HashMap<&'a str, Claimed>,
    state: &'a State,
    members: HashMap<u32, Membership<'a>>,
    /// Processes that records list though they run as other users, with the environments of these records.
    foreign: HashSet<(u32, &'a str)>,
}

/// An environment that processes may claim.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    user: u32,
    /// Its creation, Unix time.
    created: Option<f64>,
}

/// A member's environment and its user.
#[derive(Clone, Copy, Debug)]
struct Membership<'a> {
    eid: &'a str,
    user: u32,
    /// Whether the kernel told that the member runs as that user.
    user_is_known: bool,
}

/// What the chain of parents says.
enum Descent<'a> {
    /// It, or its nearest member ancestor, is a member of its own user's environment.
    Member { eid: &'a str, itself: bool },
    /// Its nearest member ancestor is of another user.
    UserChanged,
    /// Its user, or that of its nearest member ancestor, is not known.
    UserUnreadable,
    /// There is no member up to the root.
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
        let mut claimed = HashMap::with_capacity(environments.len());
        let mut members = HashMap::with_capacity(environments.len());
        let mut foreign = HashSet::new();
        for live in environments {
            let eid = live.environment.eid.as_str();
            let user = table.owner(live.environment.uid);
            let created = live.environment.created_timestamp_seconds;
            claimed.insert(eid, Claimed { user, created });
            for member in live.members.iter().chain(&live.jobs) {
                let lineage = table.lineage.get(&member.pid);
                members.entry(member.pid).or_insert(Membership {
                    eid,
                    user,
                    user_is_known: lineage.is_some_and(|lineage| lineage.uid.is_some()),
                });
            }
            foreign.extend(live.foreign.iter().map(|listed| (listed.pid, eid)));
        }
        Self { table, state, state_is_whole: state_is_fresh && !state.incomplete, claimed, members, foreign }
    }

    /// Where a process belongs.
    #[must_use]
    pub fn attribute(&self, pid: u32) -> Attribution {
        let facts = match self.table.processes.get(&pid) {
            Some(ProcessRead::Present(facts)) => facts,
            Some(ProcessRead::Unreadable) => return unknown(reason::UNREADABLE),
            Some(ProcessRead::Vanished) | None => return unknown(reason::VANISHED),
        };
        self.judge(pid, facts)
    }

    /// Whether a process is in none of the environments that hold a device by `holds`. Users cannot read the claims of
    /// other users' processes. A process without a known claim is outside only if every possible claim leads to the
    /// same answer, for example where its user has no such environment.
    #[must_use]
    pub fn is_without(&self, pid: u32, holds: impl Fn(&str) -> bool) -> bool {
        let Some(ProcessRead::Present(facts)) = self.table.processes.get(&pid) else {
            return false;
        };
        let is_without = |facts: &_| match self.judge(pid, facts) {
            Attribution::Outside { .. } => true,
            Attribution::Environment { eid } => !holds(&eid),
            Attribution::Unknown { .. } => false,
        };
        if !matches!(facts.claim, Claim::Missing(_)) {
            return is_without(facts);
        }
        let may_live = self.state.kernels_not_found.keys().map(String::as_str);
        let claims = self.claimed.keys().copied().chain(may_live);
        let claims = claims.map(|eid| Claim::Named(eid.to_owned()));
        // Any claimable environment may be the one of a damaged record.
        self.state.left_out.is_empty()
            && claims.chain([Claim::Absent]).all(|claim| is_without(&ProcessFacts { claim, ..facts.clone() }))
    }

    fn judge(&self, pid: u32, facts: &ProcessFacts) -> Attribution {
        if let Claim::Named(eid) = &facts.claim
            && let Some(&Claimed { user, created }) = self.claimed.get(eid.as_str())
            && self.is_credible(facts, user)
        {
            return match self.is_older(pid, created) && !self.is_in(pid, facts, eid) {
                true => unknown(reason::OLDER_THAN_ENVIRONMENT),
                false => inside(eid),
            };
        }
        let user = self.table.user(facts);
        if facts.uid.is_some_and(|uid| self.table.ownerless.contains(&uid)) {
            return unknown(reason::OWNER_UNKNOWN);
        }
        if user.is_none() && facts.uid.is_some() {
            return unknown(reason::USERS_DIFFER);
        }
        let descent = self.descent(pid, facts, user);
        match &facts.claim {
            Claim::Named(eid) => self.refute(pid, facts, eid, &descent),
            Claim::Absent => match descent {
                Descent::Member { eid, .. } => inside(eid),
                Descent::UserChanged => unknown(reason::USER_CHANGED),
                Descent::UserUnreadable => unknown(reason::USER_UNREADABLE),
                Descent::None => self.outside(pid, facts, reason::NO_CLAIM),
                Descent::Broken => unknown(reason::ANCESTOR_UNREADABLE),
            },
            Claim::Missing(missing) => match descent {
                Descent::Member { eid, .. } => inside(eid),
                Descent::UserChanged => unknown(reason::USER_CHANGED),
                Descent::UserUnreadable => unknown(reason::USER_UNREADABLE),
                Descent::None | Descent::Broken => unknown(match missing {
                    MissingEvidence::EnvironUnreadable => reason::ENVIRON_UNREADABLE,
                    MissingEvidence::EnvironEmpty => reason::ENVIRON_EMPTY,
                    MissingEvidence::EnvironOverwritten => reason::ENVIRON_OVERWRITTEN,
                    MissingEvidence::Zombie => reason::ZOMBIE,
                }),
            },
        }
    }

    /// Where a process belongs whose claim is not credible.
    fn refute(&self, pid: u32, facts: &ProcessFacts, claimed: &str, descent: &Descent<'_>) -> Attribution {
        let exists = self.claimed.contains_key(claimed);
        match descent {
            // The state names the process itself, after its environ was made.
            Descent::Member { eid, itself: true } => inside(eid),
            _ if !exists && self.may_live_for(facts, claimed) => unknown(reason::KERNELS_NOT_FOUND),
            Descent::UserChanged => unknown(reason::USER_CHANGED),
            Descent::UserUnreadable => unknown(reason::USER_UNREADABLE),
            Descent::Broken if exists => unknown(reason::ANCESTOR_UNREADABLE),
            _ if exists && facts.uid.is_none() => unknown(reason::USER_UNREADABLE),
            _ if exists && self.is_listed_by(pid, claimed) => unknown(reason::MEMBERSHIP_CONTRADICTED),
            _ if exists && self.is_below_member_of(pid, claimed) => unknown(reason::USER_CHANGED),
            _ if exists => self.outside(pid, facts, reason::OTHER_USERS_ENVIRONMENT),
            _ => self.outside(pid, facts, reason::NO_SUCH_ENVIRONMENT),
        }
    }

    /// Whether the record of another user's environment lists a process or an ancestor of it.
    fn is_listed_by(&self, pid: u32, eid: &str) -> bool {
        !self.foreign.is_empty()
            && self.ancestors(pid).flatten().any(|ancestor| self.foreign.contains(&(ancestor, eid)))
    }

    /// Whether an ancestor of a process is a member of another user's environment: what it claims, it inherited. So it is
    /// with what a spawner of root's starts for users.
    fn is_below_member_of(&self, pid: u32, eid: &str) -> bool {
        let mut ancestors = self.ancestors(pid).flatten();
        ancestors.any(|ancestor| self.members.get(&ancestor).is_some_and(|it| it.eid == eid))
    }

    /// Whether an environment that was left out may live all the same, and be this process's then.
    fn may_live_for(&self, facts: &ProcessFacts, eid: &str) -> bool {
        let user = self.state.kernels_not_found.get(eid);
        user.is_some_and(|&user| facts.uid.is_none() || self.is_credible(facts, self.table.owner(user)))
    }

    /// The nearest member among a process and its ancestors.
    fn descent(&self, pid: u32, facts: &ProcessFacts, user: Option<u32>) -> Descent<'a> {
        // Root of another container is not this machine's root.
        let roots_members_count = facts.container_id.is_none();
        for ancestor in self.ancestors(pid) {
            let Some(current) = ancestor else {
                return Descent::Broken;
            };
            let Some(&member) = self.members.get(&current) else {
                continue;
            };
            if user == Some(member.user) && member.user_is_known && (member.user != 0 || roots_members_count) {
                return Descent::Member { eid: member.eid, itself: current == pid };
            }
            // Root's processes are ancestors of everybody's, and anybody can list them in a record that names root.
            if member.user == 0 {
                continue;
            }
            return if user.is_some() && member.user_is_known { Descent::UserChanged } else { Descent::UserUnreadable };
        }
        Descent::None
    }

    /// A process and its ancestors, nearest first, up to the root; the last is absent where the chain breaks.
    fn ancestors(&self, pid: u32) -> impl Iterator<Item = Option<u32>> {
        let mut next = Some(pid);
        let mut child_start = u64::MAX;
        let mut followed = 0;
        std::iter::from_fn(move || {
            let current = next.take()?;
            followed += 1;
            let lineage = self.table.lineage.get(&current).filter(|lineage| {
                // Nobody is younger than their child: then the parent ended, and another process has its pid.
                lineage.start_time_ticks <= child_start && followed <= MOST_ANCESTORS
            });
            let Some(lineage) = lineage else {
                return Some(None);
            };
            child_start = lineage.start_time_ticks;
            next = (lineage.parent != 0).then_some(lineage.parent);
            Some(Some(current))
        })
    }

    /// Whether a process started before an environment was made.
    fn is_older(&self, pid: u32, created: Option<f64>) -> bool {
        let written = self.state.written_timestamp_seconds;
        // A creation in the future is a wrong record.
        let created = created.filter(|&at| written.is_none_or(|written| at <= written));
        let started = self.table.lineage.get(&pid);
        let started = started.map(|it| it.start_timestamp_seconds);
        started.zip(created).is_some_and(|(started, created)| started < created - liveness::START_TOLERANCE_SECONDS)
    }

    /// Whether the state shows a process in an environment. The claim of the process does not count.
    fn is_in(&self, pid: u32, facts: &ProcessFacts, eid: &str) -> bool {
        let descent = self.descent(pid, facts, self.table.user(facts));
        matches!(descent, Descent::Member { eid: of, .. } if of == eid)
    }

    /// Whether a process may claim an environment of this user.
    fn is_credible(&self, facts: &ProcessFacts, user: u32) -> bool {
        self.table.user(facts) == Some(user)
            || facts.container_id.is_some() && facts.container_owner.is_none_or(|owner| self.table.owner(owner) == user)
    }

    fn outside(&self, pid: u32, facts: &ProcessFacts, reason: &str) -> Attribution {
        if !self.state_is_whole {
            unknown(reason::STATE_UNREADABLE)
        } else if self.is_left_out(pid, facts) {
            unknown(reason::RECORD_DAMAGED)
        } else {
            Attribution::Outside { reason: reason.to_owned() }
        }
    }

    /// Whether a record that was left out may be of a process: it names the claimed environment, the process or an ancestor.
    fn is_left_out(&self, pid: u32, facts: &ProcessFacts) -> bool {
        let left_out = &self.state.left_out;
        if left_out.is_empty() {
            return false;
        }
        if matches!(&facts.claim, Claim::Named(eid) if left_out.eids.contains(eid)) {
            return true;
        }
        let user = self.table.user(facts);
        let written = self.state.written_timestamp_seconds;
        let is_listed = |ancestor: &u32| {
            let Some(lineage) = self.table.lineage.get(ancestor) else {
                return false;
            };
            let of_user = lineage.uid.map(|uid| self.table.owner(uid));
            // Root's processes are ancestors of everybody's, as in records that can be read.
            let may_be_members = *ancestor == pid || user != Some(0);
            let is_or_unknown = |known: Option<u32>, user: u32| known.is_none_or(|it| it == user);
            let mut users = left_out.uids_of(*ancestor).map(|uid| self.table.owner(uid));
            may_be_members
                && users.any(|it| is_or_unknown(user, it) && is_or_unknown(of_user, it))
                && liveness::is_older(lineage, written)
        };
        self.ancestors(pid).flatten().any(|ancestor| is_listed(&ancestor))
    }
}

fn inside(eid: &str) -> Attribution {
    Attribution::Environment { eid: eid.to_owned() }
}

fn unknown(reason: &str) -> Attribution {
    Attribution::Unknown { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
