//! What the rules are, read from YAML and checked: values that cannot be are refused with their place, names are
//! resolved, and defaults are filled in, so that nobody after this asks again.

mod accounts;
mod check;
pub(crate) mod format;
mod load;
mod peer_flags;
mod resolve;
mod schedule;
mod summary;
#[cfg(test)]
mod tests;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;

pub use accounts::{AccountTable, Accounts, NameService};
pub use check::check;
pub use load::{WrittenConfig, read};
pub use peer_flags::{ParseUserMaximumError, PeerFlags, UserMaximum};
pub use schedule::{OutsideSchedule, Schedule};
pub use summary::Summary;
pub use warnings::Warning;

/// A configuration that can be worked with.
#[derive(Clone, Debug)]
pub struct Config {
    /// SHA-256 of the file's bytes, in hexadecimal; of genv 1.4.3's flags, of their canonical text.
    pub hash: String,
    /// Whether anything is done, or only said.
    pub mode: Mode,
    /// Time between cycles; zero is one cycle.
    pub interval: Duration,
    /// For schedules, maintenance windows and waivers that say no zone.
    pub timezone: TimeZone,
    /// Out of reach of every rule.
    pub never: Never,
    /// When to stop acting.
    pub breaker: BreakerLimits,
    /// The socket of the service that delivers notices besides terminals.
    pub notify_socket: Option<PathBuf>,
    /// When hosts are left alone.
    pub maintenance: Vec<Maintenance>,
    /// Whom rules leave alone.
    pub waivers: Vec<Waiver>,
    /// In the order of the file; names are distinct.
    pub rules: Vec<Rule>,
}

/// Whether anything is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Users are not told and nothing is done; log, metrics and audit say what would have been.
    #[default]
    DryRun,
    /// Users are told, and rules act.
    Enforce,
}

/// What no rule, flag or waiver can reach; always also uid 0 outside containers, pid 1, kernel threads, sshd and the
/// enforcer itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Never {
    /// Users by name, or `uid:1234`.
    pub users: BTreeSet<String>,
    /// Absolute paths that root owns, as `/proc/PID/exe` shows them.
    pub executables: BTreeSet<PathBuf>,
}

/// How fast the enforcer acts, and when it stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerLimits {
    /// Signals, and devices taken, within any minute; half of them within a cycle, and of both three quarters for one user.
    pub signals_per_minute: u32,
    /// Part of the users who use or hold a device, 0–1, that one cycle may hit. If more fall due at once, that is a mistake of
    /// the rules, not of the users.
    pub share_of_users: f64,
    /// The share is not looked at for fewer users than these.
    pub at_least_users: u32,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        Self { signals_per_minute: 20, share_of_users: 0.5, at_least_users: 3 }
    }
}

/// A time during which hosts are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Maintenance {
    /// Which hosts.
    pub hosts: HostSet,
    /// Unix time of its begin.
    pub from_seconds: f64,
    /// Unix time of its end.
    pub until_seconds: f64,
}

/// An exemption for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiver {
    /// Whom it is for, by name or `uid:1234`.
    pub users: BTreeSet<String>,
    /// Names of the rules that it is from; empty: from all.
    pub rules: BTreeSet<String>,
    /// Unix time of its end.
    pub until_seconds: f64,
    /// Why, for the log and for `explain`.
    pub reason: String,
}

/// Names of hosts, patterns resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSet(pub BTreeSet<String>);

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Distinct; the kind's word unless the file says another.
    pub name: String,
    /// What it forbids.
    pub kind: RuleKind,
    /// What is done in the end.
    pub action: Action,
    /// How long a violation is seen before anything follows.
    pub for_duration: Duration,
    /// How long before the end each warning is given, the longest first. Empty for [`Action::Report`], which tells
    /// nobody, and [`Action::Warn`], which nothing follows.
    pub warn: Vec<Duration>,
    /// What follows from a warning that reached nobody.
    pub undelivered: Undelivered,
    /// For how long the progress of a violation is remembered after it is over.
    pub remember: Duration,
    /// From SIGTERM to SIGKILL, for [`Action::Kill`].
    pub grace: Duration,
    /// What detaching does to the environment's processes on the device.
    pub processes: DetachedProcesses,
    /// Whom and what it looks at.
    pub selector: Selector,
    /// When it acts.
    pub schedule: Option<Schedule>,
}

/// What a rule forbids.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleKind {
    /// Processes outside any environment.
    NonEnvProcesses,
    /// Processes on devices that their environment is not attached to.
    EnvDevices,
    /// More memory on a device than the environment's attachment has.
    EnvMemory,
    /// More devices attached to a user's environments.
    MaxDevicesPerUser {
        /// Devices.
        limits: Limits<u64>,
        /// Counted where.
        scope: Scope,
    },
    /// More environments of a user that hold or use a device.
    MaxEnvironmentsPerUser {
        /// Environments.
        limits: Limits<u64>,
        /// Counted where.
        scope: Scope,
    },
    /// More hosts on which a user holds a device.
    MaxHostsPerUser {
        /// Hosts.
        limits: Limits<u64>,
    },
    /// More processes of an environment that use a device.
    MaxProcessesPerEnvironment {
        /// Processes.
        limits: Limits<u64>,
    },
    /// More device memory used by a user's processes.
    MaxMemoryPerUser {
        /// Bytes.
        limits: Limits<u64>,
        /// On each device, or on all.
        per: MemoryPer,
        /// Counted where; of each device always on its host.
        scope: Scope,
    },
    /// Environments that are older, or of which the lease has ended, and that hold a device.
    MaxAge {
        /// Seconds.
        limits: Limits<u64>,
        /// Whether an environment is too old once its lease has ended.
        leases: bool,
    },
    /// Attached devices that their environment leaves idle.
    Idle {
        /// Average utilization by the environment's processes, 0–1, below which it is idle.
        below: f64,
        /// The window of the average.
        over: Duration,
        /// Only if fewer devices than this are free on the host.
        only_if_free_devices_below: Option<u64>,
    },
    /// Users of processes of which it is not known where they belong.
    UnknownProcesses {
        /// How long such processes of a user may hide whether a device that the user holds is idle.
        over: Duration,
    },
}

impl RuleKind {
    /// The limit, of the kinds that have one.
    #[must_use]
    pub const fn limits(&self) -> Option<&Limits<u64>> {
        match self {
            Self::MaxDevicesPerUser { limits, .. }
            | Self::MaxEnvironmentsPerUser { limits, .. }
            | Self::MaxHostsPerUser { limits }
            | Self::MaxProcessesPerEnvironment { limits }
            | Self::MaxMemoryPerUser { limits, .. }
            | Self::MaxAge { limits, .. } => Some(limits),
            Self::NonEnvProcesses
            | Self::EnvDevices
            | Self::EnvMemory
            | Self::Idle { .. }
            | Self::UnknownProcesses { .. } => None,
        }
    }

    /// As [`limits`](Self::limits), to be changed.
    pub(crate) const fn limits_mut(&mut self) -> Option<&mut Limits<u64>> {
        match self {
            Self::MaxDevicesPerUser { limits, .. }
            | Self::MaxEnvironmentsPerUser { limits, .. }
            | Self::MaxHostsPerUser { limits }
            | Self::MaxProcessesPerEnvironment { limits }
            | Self::MaxMemoryPerUser { limits, .. }
            | Self::MaxAge { limits, .. } => Some(limits),
            Self::NonEnvProcesses
            | Self::EnvDevices
            | Self::EnvMemory
            | Self::Idle { .. }
            | Self::UnknownProcesses { .. } => None,
        }
    }

    /// Where it counts, of the kinds that can count over all hosts.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        match self {
            Self::MaxDevicesPerUser { scope, .. }
            | Self::MaxEnvironmentsPerUser { scope, .. }
            | Self::MaxMemoryPerUser { scope, .. } => *scope,
            Self::MaxHostsPerUser { .. } => Scope::AllHosts,
            _ => Scope::Host,
        }
    }

    /// What its memory is summed over; of other kinds, each device.
    const fn per(&self) -> MemoryPer {
        match self {
            Self::MaxMemoryPerUser { per, .. } => *per,
            _ => MemoryPer::Device,
        }
    }

    /// Whether it looks at leases.
    const fn leases(&self) -> bool {
        matches!(self, Self::MaxAge { leases: true, .. })
    }

    /// Whether it counts what another counts, in the same way.
    fn counts_as(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.scope() == other.scope()
            && self.per() == other.per()
            && (self.leases() || !other.leases())
    }
}

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

    /// Nothing is allowed, to anybody.
    pub(crate) const fn nothing() -> Self {
        Self {
            base: Limit { default: Some(0), groups: BTreeMap::new(), users: BTreeMap::new() },
            overrides: Vec::new(),
        }
    }
}

/// A user's own limit, else the largest of the user's groups, else the default.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit<T> {
    /// For everybody else; without it they have none.
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

/// What memory is summed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPer {
    /// Each device by itself.
    #[default]
    Device,
    /// All devices of the scope.
    Total,
}

/// What a rule does in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Says so in log and metrics.
    #[default]
    Report,
    /// Tells the user.
    Warn,
    /// Takes devices from environments.
    Detach,
    /// SIGTERM.
    Terminate,
    /// SIGTERM, and SIGKILL after the grace.
    Kill,
}

impl Action {
    /// As configurations and logs say it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Warn => "warn",
            Self::Detach => "detach",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
        }
    }

    /// Whether it takes anything from anybody.
    #[must_use]
    pub const fn acts(self) -> bool {
        matches!(self, Self::Detach | Self::Terminate | Self::Kill)
    }
}

/// What follows from a warning that did not reach its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undelivered {
    /// The violation waits; the time of the warning runs from its delivery.
    Hold,
    /// The warning counts as given.
    #[default]
    Act,
}

/// What detaching does to the environment's processes on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DetachedProcesses {
    /// SIGTERM, as genv 1.4.3 does.
    #[default]
    Terminate,
    /// They go on.
    Keep,
}

/// Whom and what a rule looks at; absent: everything. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Users by name, or `uid:1234`.
    pub users: Option<BTreeSet<String>>,
    /// Unix groups: members of any.
    pub groups: Option<BTreeSet<String>>,
    /// Hosts.
    pub hosts: Option<HostSet>,
    /// GPUs by NVML index.
    pub devices: Option<BTreeSet<u32>>,
    /// But not these users.
    pub except_users: BTreeSet<String>,
    /// But not members of any of these.
    pub except_groups: BTreeSet<String>,
    /// But not these hosts.
    pub except_hosts: HostSet,
    /// But not these GPUs.
    pub except_devices: BTreeSet<u32>,
}
