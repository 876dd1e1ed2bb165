//! The configuration as it is written; `docs/enforcement.md` explains every key.

mod values;

use serde::Deserialize;

use super::{Action, DetachedProcesses, Mode, OutsideSchedule, Scope, Undelivered};
use crate::kinds::{KindDefinition, MemoryPer};
use genv_core::yaml::{Located, Place};

pub(crate) use values::{Amount, Count, Days, LimitEntry, LimitTable, Pairs, Ratio, Span, Text, given};
pub(super) use values::{count, span};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) version: Located<Count>,
    #[serde(default, deserialize_with = "given")]
    pub(super) mode: Option<Mode>,
    #[serde(default, deserialize_with = "given")]
    pub(super) interval: Option<Located<String>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) timezone: Option<Located<String>>,
    #[serde(default)]
    pub(super) host_groups: Pairs<Vec<Located<String>>>,
    #[serde(default)]
    pub(super) never: NeverEntry,
    #[serde(default)]
    pub(super) breaker: BreakerEntry,
    #[serde(default)]
    pub(super) defaults: DefaultsEntry,
    #[serde(default, deserialize_with = "given")]
    pub(super) notify: Option<Located<NotifyEntry>>,
    #[serde(default)]
    pub(super) maintenance: Vec<Located<MaintenanceEntry>>,
    #[serde(default)]
    pub(super) waivers: Vec<Located<WaiverEntry>>,
    #[serde(default)]
    pub(super) rules: Vec<Located<RuleEntry>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NeverEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) users: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) executables: Option<Located<Vec<Located<String>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakerEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) signals_per_minute: Option<Located<Count>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) share_of_users: Option<Located<Ratio>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) at_least_users: Option<Located<Count>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultsEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) action: Option<Located<Action>>,
    #[serde(default, rename = "for", deserialize_with = "given")]
    pub(super) for_duration: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) warn: Option<Vec<Located<Span>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) undelivered: Option<Undelivered>,
    #[serde(default, deserialize_with = "given")]
    pub(super) grace: Option<Located<Span>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NotifyEntry {
    pub(super) socket: Located<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MaintenanceEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) hosts: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host_groups: Option<Located<Vec<Located<String>>>>,
    pub(super) from: Located<String>,
    pub(super) until: Located<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaiverEntry {
    pub(super) users: Located<Vec<Located<String>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) rules: Option<Located<Vec<Located<String>>>>,
    pub(super) until: Located<String>,
    pub(super) reason: Located<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleEntry {
    #[serde(default, deserialize_with = "given")]
    pub(crate) name: Option<Located<String>>,
    pub(crate) kind: Located<&'static KindDefinition>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) action: Option<Located<Action>>,
    #[serde(default, rename = "for", deserialize_with = "given")]
    pub(crate) for_duration: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) warn: Option<Located<Vec<Located<Span>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) undelivered: Option<Located<Undelivered>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) remember: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) grace: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) processes: Option<Located<DetachedProcesses>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) limit: Option<Located<LimitEntry>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) overrides: Option<Located<Vec<Located<OverrideEntry>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) scope: Option<Located<Scope>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) per: Option<Located<MemoryPer>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) leases: Option<Located<bool>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) below: Option<Located<Ratio>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) over: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) only_if: Option<Located<OnlyIfEntry>>,
    #[serde(default, rename = "match", deserialize_with = "given")]
    pub(crate) selector: Option<Located<MatchEntry>>,
    #[serde(default, deserialize_with = "given")]
    pub(crate) when: Option<Located<WhenEntry>>,
}

impl RuleEntry {
    /// The keys of the entry that only some kinds have.
    pub(super) fn kind_keys(&self) -> impl Iterator<Item = (&'static str, Place)> {
        [
            ("limit", self.limit.as_ref().map(|entry| entry.referenced)),
            ("overrides", self.overrides.as_ref().map(|entry| entry.referenced)),
            ("scope", self.scope.as_ref().map(|entry| entry.referenced)),
            ("per", self.per.as_ref().map(|entry| entry.referenced)),
            ("leases", self.leases.as_ref().map(|entry| entry.referenced)),
            ("below", self.below.as_ref().map(|entry| entry.referenced)),
            ("over", self.over.as_ref().map(|entry| entry.referenced)),
            ("only_if", self.only_if.as_ref().map(|entry| entry.referenced)),
        ]
        .into_iter()
        .filter_map(|(key, place)| Some((key, place?)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) hosts: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host_groups: Option<Located<Vec<Located<String>>>>,
    pub(super) limit: Located<LimitEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnlyIfEntry {
    pub(crate) free_devices_below: Located<Count>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) users: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) groups: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) hosts: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host_groups: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) devices: Option<Located<Vec<Located<Count>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) except_users: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) except_groups: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) except_hosts: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) except_host_groups: Option<Located<Vec<Located<String>>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) except_devices: Option<Located<Vec<Located<Count>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhenEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) days: Option<Located<Days>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) between: Option<Located<String>>,
    #[serde(default)]
    pub(super) outside: OutsideSchedule,
}
