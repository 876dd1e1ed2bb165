//! Limits of the kinds that count something.

use std::collections::BTreeMap;
use std::time::Duration;

use genv_core::duration::format_duration;
use genv_core::model::MemoryAmount;

use crate::config::HostSet;
use crate::plan::words;

/// A limit that may differ by user, by group and by host.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits<T> {
    /// Where no override is for the host.
    pub base: Limit<T>,
    /// The first whose hosts hold the host wins, value by value: what it leaves open is the base's. Where a rule counts
    /// over all hosts, the sum is held against `base`, and what is on one of these hosts against its override besides.
    pub overrides: Vec<(HostSet, Limit<T>)>,
}

impl Limits<u64> {
    /// No user has a limit.
    pub(crate) const fn none() -> Self {
        let mut limits = Self::nothing();
        limits.base.default = None;
        limits
    }

    /// Nothing is allowed, to any user.
    pub(crate) const fn nothing() -> Self {
        Self {
            base: Limit { default: Some(0), groups: BTreeMap::new(), users: BTreeMap::new() },
            overrides: Vec::new(),
        }
    }

    /// The lowest limit of all users on all hosts. An amount up to it breaks no user's limit.
    pub(super) fn lowest(&self) -> u64 {
        let overrides = self.overrides.iter().map(|(_, limit)| limit);
        let limits = std::iter::once(&self.base).chain(overrides);
        limits.filter_map(Limit::lowest).min().unwrap_or(u64::MAX)
    }
}

/// A user's own limit, else the largest of the user's groups, else the default.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit<T> {
    /// For all other users; absent: they have no limit.
    pub default: Option<T>,
    /// By Unix group.
    pub groups: BTreeMap<String, T>,
    /// By user.
    pub users: BTreeMap<String, T>,
}

impl Limit<u64> {
    /// The lowest limit that a user may have; absent: no user has one.
    pub(crate) fn lowest(&self) -> Option<u64> {
        let named = self.groups.values().chain(self.users.values());
        named.chain(&self.default).copied().min()
    }
}

/// Where something is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// On each host by itself.
    #[default]
    Host,
    /// On all hosts together.
    AllHosts,
}

impl Scope {
    /// The end of a clause about an amount.
    pub(super) const fn place(self) -> &'static str {
        match self {
            Self::Host => "on a host",
            Self::AllHosts => "on all hosts together",
        }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Things of this name.
    Number(&'static str),
    /// Bytes.
    Memory,
    /// Seconds.
    Time,
}

impl Quantity {
    /// A limit, as a configuration has it.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Self::Number(_) => "2",
            Self::Memory => "40gi",
            Self::Time => "7d",
        }
    }

    /// An amount in words: `2 devices`, `40 GiB`.
    pub(crate) fn amount(self, value: u64) -> String {
        match self {
            Self::Number(noun) => words::count(value, noun),
            Self::Memory => words::memory(value),
            Self::Time => words::duration(value),
        }
    }

    /// An amount as a configuration has it.
    pub(crate) fn written(self, value: u64) -> String {
        match self {
            Self::Number(_) => value.to_string(),
            Self::Memory => MemoryAmount::in_largest_unit(value).to_string(),
            Self::Time => format_duration(Duration::from_secs(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(default: Option<u64>, students: Option<u64>, alice: Option<u64>) -> Limit<u64> {
        let named = |name: &str, value: Option<u64>| value.map(|value| (name.to_owned(), value)).into_iter().collect();
        Limit { default, groups: named("students", students), users: named("alice", alice) }
    }

    #[test]
    fn the_lowest_limit_is_that_of_any_user_group_or_host() {
        let none = || limit(None, None, None);
        for (base, of_host, expected) in [
            (limit(Some(3), None, Some(2)), none(), 2),
            (limit(Some(3), Some(2), None), none(), 2),
            (limit(Some(2), Some(3), Some(4)), none(), 2),
            (limit(Some(3), None, None), limit(Some(2), None, None), 2),
            (limit(Some(3), None, None), limit(None, None, Some(2)), 2),
            (limit(Some(2), None, None), limit(Some(3), None, None), 2),
            (none(), limit(None, Some(2), None), 2),
            (limit(Some(1), None, Some(0)), none(), 0),
            (none(), none(), u64::MAX),
        ] {
            let hosts = || HostSet(["gpu02".to_owned()].into());
            let limits = Limits { base, overrides: vec![(hosts(), none()), (hosts(), of_host)] };
            assert_eq!(limits.lowest(), expected, "{limits:?}");
        }
        assert_eq!(Limits::none().lowest(), u64::MAX);
        assert_eq!(Limits::nothing().lowest(), 0);
    }
}
