//! Which limit applies to whom, and why.

use std::collections::BTreeMap;
use std::fmt;

use super::facts::{Facts, HostId, UserId};
use crate::config::{Limit, Limits};

/// A limit that applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AppliedLimit<S> {
    pub(crate) value: u64,
    source: LimitSource<S>,
    /// Whether it is a host's own.
    is_of_host: bool,
    /// The host that has a limit of its own.
    pub(crate) host: Option<S>,
}

/// A limit with names of the facts.
pub(crate) type Applied<'a> = AppliedLimit<&'a str>;

/// A limit that outlives the facts.
pub(crate) type OwnedLimit = AppliedLimit<String>;

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LimitSource<S> {
    User(S),
    Group(S),
    Default,
}

impl Applied<'_> {
    pub(crate) fn to_owned(self) -> OwnedLimit {
        OwnedLimit {
            value: self.value,
            source: match self.source {
                LimitSource::User(name) => LimitSource::User(name.to_owned()),
                LimitSource::Group(name) => LimitSource::Group(name.to_owned()),
                LimitSource::Default => LimitSource::Default,
            },
            is_of_host: self.is_of_host,
            host: self.host.map(str::to_owned),
        }
    }
}

impl OwnedLimit {
    /// A limit of a number, in words: `2 for alice`.
    pub(crate) fn number(&self) -> String {
        format!("{} {self}", self.value)
    }
}

impl<S: AsRef<str>> fmt::Display for AppliedLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            LimitSource::User(name) => write!(f, "for {}", name.as_ref().escape_debug())?,
            LimitSource::Group(name) => write!(f, "for members of {}", name.as_ref().escape_debug())?,
            LimitSource::Default => write!(f, "by default")?,
        }
        match &self.host {
            Some(host) => write!(f, " on {}", host.as_ref().escape_debug()),
            None => Ok(()),
        }
    }
}

/// The limits of one rule for all users, worked out from the names in the rule.
#[derive(Debug)]
pub(crate) struct LimitTable<'a> {
    /// By host, the position in `by_place` of its limits: 0 without an override, else 1 and the position of the
    /// override.
    places: Vec<usize>,
    /// By place and user.
    by_place: Vec<Vec<Option<Applied<'a>>>>,
}

impl<'a> LimitTable<'a> {
    pub(crate) fn new(limits: &'a Limits<u64>, facts: &Facts<'a>) -> Self {
        let mut places = vec![0; facts.hosts.len()];
        // The first of several overrides wins.
        for (position, (hosts, _)) in limits.overrides.iter().enumerate().rev() {
            let own = places.iter_mut().zip(facts.are_in(hosts));
            own.filter(|(_, is_in)| *is_in).for_each(|(place, _)| *place = position + 1);
        }
        let own = limits.overrides.iter().map(|(_, limit)| Some(limit));
        let by_place = std::iter::once(None).chain(own).map(|own| limits_of_users(&limits.base, own, facts));
        Self { places, by_place: by_place.collect() }
    }

    /// The limit of a user, on a host or over all; absent: none.
    pub(crate) fn get(&self, facts: &Facts<'a>, user: UserId, host: Option<HostId>) -> Option<Applied<'a>> {
        let place = host.map_or(0, |host| self.places[host]);
        let applied = self.by_place[place][user]?;
        let named = host.filter(|_| applied.is_of_host);
        Some(Applied { host: named.map(|host| facts.hosts[host].hostname), ..applied })
    }
}

/// The limits of all users, where hosts have `own` limits besides those of all; absent: none.
fn limits_of_users<'a>(
    base: &'a Limit<u64>,
    own: Option<&'a Limit<u64>>,
    facts: &Facts<'a>,
) -> Vec<Option<Applied<'a>>> {
    let limits = || std::iter::once((base, false)).chain(own.map(|own| (own, true)));
    let mut default = None;
    let mut by_group = BTreeMap::new();
    // A host's own limit replaces the limit of all hosts.
    for (limit, is_of_host) in limits() {
        let with = |value, source| Applied { value, source, is_of_host, host: None };
        default = limit.default.map(|value| with(value, LimitSource::Default)).or(default);
        let groups = limit.groups.iter();
        by_group.extend(groups.map(|(name, value)| (name.as_str(), with(*value, LimitSource::Group(name.as_str())))));
    }
    // The largest last, and of equals the one with the first name.
    let mut by_group: Vec<(&str, Applied<'a>)> = by_group.into_iter().rev().collect();
    by_group.sort_by_key(|(_, limit)| limit.value);
    // Who may be a member, or not, has the larger one; who is no member and has none is not limited at all.
    let largest = by_group.last().map(|(_, limit)| *limit);
    let of_unknown = default.map(|default| largest.filter(|largest| largest.value >= default.value).unwrap_or(default));
    let users = facts.users.iter();
    let mut by_user: Vec<_> = users.map(|user| if user.groups.is_some() { default } else { of_unknown }).collect();
    for (name, limit) in by_group {
        for &user in facts.members(name) {
            by_user[user] = Some(limit);
        }
    }
    for (limit, is_of_host) in limits() {
        let mut set_limit = |user: UserId, value: u64| {
            let source = LimitSource::User(facts.users[user].name);
            by_user[user] = Some(Applied { value, source, is_of_host, host: None });
        };
        // A limit by name replaces one by alias.
        for (name, value) in &limit.users {
            facts.with_alias(name).iter().for_each(|user| set_limit(*user, *value));
        }
        for (name, value) in &limit.users {
            facts.user(name).into_iter().for_each(|user| set_limit(user, *value));
        }
    }
    by_user
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::plan::History;
    use crate::plan::facts::UserFacts;
    use crate::plan::tests::daemon::{Daemon, Lab, names};

    const USERS: [&str; 4] = ["alice", "bob", "carol", "uid:1001"];
    const GROUPS: [&str; 3] = ["staff", "students", "unused"];

    /// One user's limit, found by asking every name: the model for `limits_of_users`.
    fn limit_of_user<'a>(
        base: &'a Limit<u64>,
        own: Option<&'a Limit<u64>>,
        user: &UserFacts<'a>,
    ) -> Option<Applied<'a>> {
        let pick = |of: &dyn Fn(&'a Limit<u64>) -> Option<u64>| {
            if let Some(value) = own.and_then(of) {
                return Some((value, true));
            }
            of(base).map(|value| (value, false))
        };
        let with = |source, (value, is_of_host)| Applied { value, source, is_of_host, host: None };

        if let Some(found) = pick(&|limit| user.names().find_map(|name| limit.users.get(name).copied())) {
            return Some(with(LimitSource::User(user.name), found));
        }
        let own_groups = own.into_iter().flat_map(|limit| limit.groups.keys());
        let names = own_groups.chain(base.groups.keys());
        let largest = names
            .filter(|name| user.groups.is_none_or(|groups| groups.contains(*name)))
            .filter_map(|name| Some((name, pick(&|limit| limit.groups.get(name).copied())?)))
            .max_by(|(a_name, a), (b_name, b)| a.0.cmp(&b.0).then_with(|| b_name.cmp(a_name)));
        let default = pick(&|limit| limit.default).map(|found| with(LimitSource::Default, found));
        if let Some((name, found)) = largest {
            let of_group = with(LimitSource::Group(name), found);
            // Who may be a member, or not, has the larger one; who is no member and has none is not limited at all.
            return match user.groups {
                Some(_) => Some(of_group),
                None => default.map(|default| if default.value > of_group.value { default } else { of_group }),
            };
        }
        default
    }

    fn limit() -> impl Strategy<Value = Limit<u64>> {
        let names = select(vec!["alice", "bob", "uid:1000", "uid:1001", "uid:01000"]).prop_map(str::to_owned);
        let groups = select(GROUPS.to_vec()).prop_map(str::to_owned);
        (
            prop::option::of(0..4_u64),
            prop::collection::btree_map(groups, 0..4_u64, 0..4),
            prop::collection::btree_map(names, 0..4_u64, 0..3),
        )
            .prop_map(|(default, groups, users)| Limit { default, groups, users })
    }

    proptest! {
        #[test]
        fn the_limits_of_all_users_are_those_of_each_alone(
            base in limit(),
            own in limit(),
            users in prop::collection::vec(
                (0..3_u32, prop::option::of(subsequence(GROUPS.to_vec(), 0..=3))),
                USERS.len(),
            ),
        ) {
            let mut lab = Lab::new(1, 1);
            for (username, (number, groups)) in USERS.into_iter().zip(users) {
                lab = lab.environment("gpu01", username, username);
                // Several names may be of one uid.
                lab.eid("gpu01", username).uid = Some(1000 + number);
                match groups {
                    Some(groups) => _ = lab.groups.insert(username.to_owned(), names(&groups)),
                    None => _ = lab.groups.remove(username),
                }
            }
            let daemon = Daemon::new(Vec::new());
            let hosts = lab.at(daemon.now_seconds);
            let facts = Facts::new(&daemon.input(&hosts, &lab), &History::default());
            prop_assert_eq!(facts.users.len(), USERS.len());
            for own in [None, Some(&own)] {
                let expected: Vec<_> = facts.users.iter().map(|user| limit_of_user(&base, own, user)).collect();
                prop_assert_eq!(limits_of_users(&base, own, &facts), expected);
            }
        }
    }
}
