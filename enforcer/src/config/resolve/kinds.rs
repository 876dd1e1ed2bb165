//! What each kind of rule knows and can do.

use std::time::Duration;

use crate::config::format::{KindWord, RuleEntry};
use crate::config::{Action, RuleKind};
use genv_core::yaml::Place;

impl KindWord {
    /// As the file says it.
    pub(in crate::config) const fn word(self) -> &'static str {
        match self {
            Self::NonEnvProcesses => "non-env-processes",
            Self::EnvDevices => "env-devices",
            Self::EnvMemory => "env-memory",
            Self::MaxDevicesPerUser => "max-devices-per-user",
            Self::MaxEnvironmentsPerUser => "max-environments-per-user",
            Self::MaxHostsPerUser => "max-hosts-per-user",
            Self::MaxProcessesPerEnvironment => "max-processes-per-environment",
            Self::MaxMemoryPerUser => "max-memory-per-user",
            Self::MaxAge => "max-age",
            Self::Idle => "idle",
            Self::UnknownProcesses => "unknown-processes",
        }
    }

    /// Whether a violation itself takes time to come, so that a time of `for` adds to it.
    pub(in crate::config) const fn measures_time(self) -> bool {
        matches!(self, Self::MaxAge | Self::Idle)
    }

    /// How long a violation is seen before anything follows, unless the file says.
    pub(in crate::config) const fn default_for(self) -> Duration {
        if self.measures_time() { Duration::ZERO } else { Duration::from_secs(300) }
    }

    /// The keys that only some kinds know, and this one does.
    pub(in crate::config) const fn own_keys(self) -> &'static [&'static str] {
        match self {
            Self::NonEnvProcesses | Self::EnvDevices | Self::EnvMemory => &[],
            Self::MaxDevicesPerUser | Self::MaxEnvironmentsPerUser => &["limit", "overrides", "scope"],
            Self::MaxHostsPerUser => &["limit"],
            Self::MaxProcessesPerEnvironment => &["limit", "overrides"],
            Self::MaxAge => &["limit", "overrides", "leases"],
            Self::MaxMemoryPerUser => &["limit", "overrides", "per", "scope"],
            Self::Idle => &["below", "over", "only_if"],
            Self::UnknownProcesses => &["over"],
        }
    }

    /// Why an action would not end what this kind forbids. Where it forbids holding a device, that is taken whatever else is
    /// done.
    pub(in crate::config) const fn cannot(self, action: Action) -> Option<&'static str> {
        match (self, action) {
            (_, Action::Report | Action::Warn) => None,
            (Self::NonEnvProcesses, Action::Detach) => Some(
                "a process outside all environments is on no device that could be taken from one: choose terminate or kill",
            ),
            (Self::EnvDevices, Action::Detach) => {
                Some("the environment is not attached to the device that its process uses: choose terminate or kill")
            }
            (Self::EnvMemory | Self::MaxMemoryPerUser | Self::MaxProcessesPerEnvironment, Action::Detach) => {
                Some("processes are too many or too large, not devices: choose terminate or kill")
            }
            (Self::UnknownProcesses, _) => Some(
                "where a process belongs is not known, and what is unknown is never acted upon: choose report or warn",
            ),
            _ => None,
        }
    }
}

impl RuleKind {
    /// What the kind is called in a configuration: `idle`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::NonEnvProcesses => KindWord::NonEnvProcesses,
            Self::EnvDevices => KindWord::EnvDevices,
            Self::EnvMemory => KindWord::EnvMemory,
            Self::MaxDevicesPerUser { .. } => KindWord::MaxDevicesPerUser,
            Self::MaxEnvironmentsPerUser { .. } => KindWord::MaxEnvironmentsPerUser,
            Self::MaxHostsPerUser { .. } => KindWord::MaxHostsPerUser,
            Self::MaxProcessesPerEnvironment { .. } => KindWord::MaxProcessesPerEnvironment,
            Self::MaxMemoryPerUser { .. } => KindWord::MaxMemoryPerUser,
            Self::MaxAge { .. } => KindWord::MaxAge,
            Self::Idle { .. } => KindWord::Idle,
            Self::UnknownProcesses { .. } => KindWord::UnknownProcesses,
        }
        .word()
    }
}

impl RuleEntry {
    /// The keys that are there and only some kinds know.
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
