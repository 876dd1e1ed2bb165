//! The environment of each process of one table, by the rules of this [module](super).

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};

use super::{LiveEnvironment, live_environments, reason};
use crate::model::Attribution;
use crate::proc::{Claim, MissingEvidence, ProcessFacts, ProcessRead, ProcessTable};
use crate::state::{State, standing};

/// The longest chain of parents that is followed. No sane system nests deeper, and a table that was read while pids
/// were reused may contain a loop.
const MOST_ANCESTORS: usize = 1024;
/// The environments of processes of a table, by pid. Processes without an environment are left out.
pub fn environments_of(state: &State, table: &ProcessTable, pids: &[u32]) -> BTreeMap<u32, String> {
    let live = live_environments(state, table);
    let attributor = Attributor::new(state, &live, true, table);
    let of = |pid: &u32| attributor.attribute(*pid).eid().map(|eid| (*pid, eid.to_owned()));
    pids.iter().filter_map(of).collect()
}

/// Attributes the processes of one table.
#[derive(Debug)]
pub struct Attributor<'a> {
    table: &'a ProcessTable,
    state_is_whole: bool,
    claimable: HashMap<&'a str, Claimable>,
    state: &'a State,
    members: HashMap<u32, Membership<'a>>,
    /// Processes that records list and that run as other users, with the environments of these records.
    foreign: HashSet<(u32, &'a str)>,
}

/// An environment that processes may claim.
#[derive(Clone, Copy, Debug)]
struct Claimable {
    user: u32,
    /// Its creation, Unix time.
    created: Option<f64>,
}

/// A member's environment and its user.
#[derive(Clone, Copy, Debug)]
struct Membership<'a> {
    eid: &'a str,
    user: u32,
    /// Whether the kernel shows that the member runs as that user.
    user_is_known: bool,
}

/// The evidence of the chain of parents.
enum Descent<'a> {
    /// The process, or its nearest member ancestor, is a member of an environment of its user.
    Member { eid: &'a str, itself: bool },
    /// Its nearest member ancestor runs as another user.
    UserChanged,
    /// Its user, or the user of its nearest member ancestor, is not known.
    UserUnreadable,
    /// There is no member up to the root.
    NoMember,
    /// The chain breaks before the root.
    Broken,
}

impl<'a> Attributor<'a> {
    /// Prepares the attribution by a state, its living environments (see [`live_environments`]) and a table.
    ///
    /// `state_is_fresh`: the state was read in this cycle, after the pids were read. Only a fresh and whole state
    /// ([`State::incomplete`]) shows that an environment did not exist when the process was started.
    pub fn new(
        state: &'a State,
        environments: &[LiveEnvironment<'a>],
        state_is_fresh: bool,
        table: &'a ProcessTable,
    ) -> Self {
        let mut claimable = HashMap::with_capacity(environments.len());
        let mut members = HashMap::with_capacity(environments.len());
        let mut foreign = HashSet::new();
        for live in environments {
            let eid = live.environment.eid.as_str();
            let user = table.owner(live.environment.uid);
            let created = live.environment.created_timestamp_seconds;
            claimable.insert(eid, Claimable { user, created });
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
        Self { table, state, state_is_whole: state_is_fresh && !state.incomplete, claimable, members, foreign }
    }

    /// The environment of a process, or the reason why it is outside or unknown.
    pub fn attribute(&self, pid: u32) -> Attribution {
        let facts = match self.table.processes.get(&pid) {
            Some(ProcessRead::Present(facts)) => facts,
            Some(ProcessRead::Unreadable) => return unknown(reason::UNREADABLE),
            Some(ProcessRead::Vanished) => return unknown(reason::VANISHED),
            None => return unknown(reason::NOT_READ),
        };
        self.judge(pid, facts)
    }

    /// Whether a process is in none of the environments that hold a device by `holds`. Users cannot read the claims of
    /// other users' processes. A process without a known claim is outside only if every possible claim leads to the
    /// same answer, for example where its user has no such environment.
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
        let claims = self.claimable.keys().copied().chain(may_live);
        let claims = claims.map(|eid| Claim::Named(eid.to_owned()));
        claims.chain([Claim::Absent]).all(|claim| is_without(&ProcessFacts { claim, ..facts.clone() }))
    }

    fn judge(&self, pid: u32, facts: &ProcessFacts) -> Attribution {
        if let Claim::Named(eid) = &facts.claim
            && let Some(&Claimable { user, created }) = self.claimable.get(eid.as_str())
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
                Descent::NoMember => self.outside(reason::NO_CLAIM),
                Descent::Broken => unknown(reason::ANCESTOR_UNREADABLE),
            },
            Claim::Missing(missing) => match descent {
                Descent::Member { eid, .. } => inside(eid),
                Descent::UserChanged => unknown(reason::USER_CHANGED),
                Descent::UserUnreadable => unknown(reason::USER_UNREADABLE),
                Descent::NoMember | Descent::Broken => unknown(match missing {
                    MissingEvidence::EnvironUnreadable => reason::ENVIRON_UNREADABLE,
                    MissingEvidence::EnvironEmpty => reason::ENVIRON_EMPTY,
                    MissingEvidence::EnvironOverwritten => reason::ENVIRON_OVERWRITTEN,
                    MissingEvidence::Zombie => reason::ZOMBIE,
                }),
            },
        }
    }

    /// The attribution of a process whose claim is not credible.
    fn refute(&self, pid: u32, facts: &ProcessFacts, claimed: &str, descent: &Descent<'_>) -> Attribution {
        let exists = self.claimable.contains_key(claimed);
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
            _ if exists => self.outside(reason::OTHER_USERS_ENVIRONMENT),
            _ => self.outside(reason::NO_SUCH_ENVIRONMENT),
        }
    }

    /// Whether the record of another user's environment lists a process or an ancestor of it.
    fn is_listed_by(&self, pid: u32, eid: &str) -> bool {
        !self.foreign.is_empty()
            && self.ancestors(pid).flatten().any(|ancestor| self.foreign.contains(&(ancestor, eid)))
    }

    /// Whether an ancestor of a process is a member of the claimed environment of another user: the process inherited
    /// the claim, as a process that root's spawner starts for a user.
    fn is_below_member_of(&self, pid: u32, eid: &str) -> bool {
        let mut ancestors = self.ancestors(pid).flatten();
        ancestors.any(|ancestor| self.members.get(&ancestor).is_some_and(|it| it.eid == eid))
    }

    /// Whether an environment that was left out may live, and may be the environment of this process.
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
            // Root's processes are ancestors of all processes, and every user can list them in a record that names
            // root.
            if member.user == 0 {
                continue;
            }
            return if user.is_some() && member.user_is_known { Descent::UserChanged } else { Descent::UserUnreadable };
        }
        Descent::NoMember
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
                // A parent that is younger than its child is another process: the parent ended, and its pid was reused.
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

    /// Whether a process started before an environment was created.
    fn is_older(&self, pid: u32, created: Option<f64>) -> bool {
        let written = self.state.written_timestamp_seconds;
        // A creation in the future is a wrong record.
        let created = created.filter(|&at| written.is_none_or(|written| at <= written));
        let started = self.table.lineage.get(&pid);
        let started = started.map(|it| it.start_timestamp_seconds);
        started.zip(created).is_some_and(|(started, created)| started < created - standing::START_TOLERANCE_SECONDS)
    }

    /// Whether the state alone, without the claim of the process, shows the process in an environment.
    fn is_in(&self, pid: u32, facts: &ProcessFacts, eid: &str) -> bool {
        let descent = self.descent(pid, facts, self.table.user(facts));
        matches!(descent, Descent::Member { eid: of, .. } if of == eid)
    }

    /// Whether a process may claim an environment of this user.
    fn is_credible(&self, facts: &ProcessFacts, user: u32) -> bool {
        self.table.user(facts) == Some(user)
            || facts.container_id.is_some() && facts.container_owner.is_none_or(|owner| self.table.owner(owner) == user)
    }

    fn outside(&self, reason: &str) -> Attribution {
        if !self.state_is_whole {
            unknown(reason::STATE_UNREADABLE)
        } else {
            Attribution::Outside { reason: reason.to_owned() }
        }
    }
}

fn inside(eid: &str) -> Attribution {
    Attribution::Environment { eid: eid.to_owned() }
}

pub(super) fn unknown(reason: &str) -> Attribution {
    Attribution::Unknown { reason: reason.to_owned() }
}
