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

    /// The lowest limit that any user may have. Who has no more of anything needs no look at the user's own.
    pub(super) fn lowest(&self) -> u64 {
        let overrides = self.overrides.iter().map(|(_, limit)| limit);
        let values = std::iter::once(&self.base).chain(overrides).flat_map(|limit| {
            let named = limit.groups.values().chain(limit.users.values());
            named.chain(&limit.default)
        });
        values.copied().min().unwrap_or(u64::MAX)
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
