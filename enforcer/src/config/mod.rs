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
pub(crate) mod zone;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::kinds::RuleKind;
pub use crate::kinds::{KIND_WORDS, Limit, Limits, Scope};
pub use accounts::{AccountTable, Accounts, NameService};
pub use check::check;
pub(crate) use format::RuleEntry;
pub use load::{WrittenConfig, read};
pub use peer_flags::{ParseUserMaximumError, PeerFlags, UserMaximum};
pub(crate) use resolve::KindReader;
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
    /// For schedules, maintenance windows and waivers that say no zone; unknown only if nothing needs it.
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
    pub(crate) kind: RuleKind,
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
