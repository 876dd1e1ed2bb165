//! The kinds of rules, a file for each: its keys, its limit, the check, what is found and what its user can do.

mod count;
mod env_devices;
mod env_memory;
mod finding;
mod idle;
mod limits;
mod max_age;
mod max_devices_per_user;
mod max_environments_per_user;
mod max_hosts_per_user;
mod max_memory_per_user;
mod max_processes_per_environment;
mod non_env_processes;
mod processes;
#[cfg(test)]
pub(crate) mod tests;
mod units;
mod unknown_processes;
mod word;

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use genv_core::yaml::{self, Place};

use crate::config::{Action, KindReader, Rule, RuleEntry};
use crate::plan::history::Past;
use crate::plan::left_behind::{Busy, Contexts};
use crate::plan::selector::View;

pub(crate) use env_devices::EnvDevices;
pub(crate) use env_memory::EnvMemory;
pub(crate) use finding::{Finding, Piece, SharedFact, Unit, ViolationFact};
pub(crate) use idle::{is_unmeasured, sample, unmeasured, window_now};
pub(crate) use limits::Quantity;
pub use limits::{Limit, Limits, Scope};
pub(crate) use max_devices_per_user::MaxDevicesPerUser;
pub(crate) use max_memory_per_user::MemoryPer;
pub(crate) use non_env_processes::NonEnvProcesses;

/// All kinds, in the order of the documentation.
pub(crate) const KINDS: [&KindDefinition; 11] = [
    &non_env_processes::DEFINITION,
    &env_devices::DEFINITION,
    &env_memory::DEFINITION,
    &max_devices_per_user::DEFINITION,
    &max_environments_per_user::DEFINITION,
    &max_hosts_per_user::DEFINITION,
    &max_processes_per_environment::DEFINITION,
    &max_memory_per_user::DEFINITION,
    &max_age::DEFINITION,
    &idle::DEFINITION,
    &unknown_processes::DEFINITION,
];

/// The words of all kinds in a configuration.
pub const KIND_WORDS: [&str; KINDS.len()] = {
    let mut words = [""; KINDS.len()];
    let mut position = 0;
    while position < KINDS.len() {
        words[position] = KINDS[position].word;
        position += 1;
    }
    words
};

/// What holds for all rules of a kind.
#[derive(Debug)]
pub(crate) struct KindDefinition {
    /// Its name in a configuration: `idle`.
    pub(crate) word: &'static str,
    /// Keys of a rule that only some kinds have, and this one does.
    pub(crate) keys: &'static [&'static str],
    /// What its limit counts; absent: it has no limit.
    pub(crate) limit: Option<Quantity>,
    /// Whether a violation itself takes time to come, so that a time of `for` adds to it.
    pub(crate) measures_time: bool,
    /// The actions that end a violation.
    pub(crate) ended_by: EndedBy,
    /// Reads a rule's own keys.
    pub(crate) read: fn(&KindReader<'_>) -> Result<RuleKind, yaml::Error>,
}

/// Which actions end what a kind forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// All: it forbids to hold a device, which every action takes.
    TakingDevices,
    /// Those that end processes; `not_detach` is the reason why a detach ends no violation.
    EndingProcesses { not_detach: &'static str },
    /// None, for this reason.
    Nothing { why: &'static str },
}

impl KindDefinition {
    /// How long a violation is seen before anything follows, unless the file has a time.
    pub(crate) const fn default_for(&self) -> Duration {
        if self.measures_time { Duration::ZERO } else { Duration::from_secs(300) }
    }

    /// Why an action would not end what this kind forbids.
    pub(crate) const fn cannot(&self, action: Action) -> Option<&'static str> {
        match (self.ended_by, action) {
            (_, Action::Report | Action::Warn) => None,
            (EndedBy::EndingProcesses { not_detach }, Action::Detach) => Some(not_detach),
            (EndedBy::Nothing { why }, _) => Some(why),
            _ => None,
        }
    }

    /// Whether every action that ends a violation takes devices.
    pub(crate) const fn takes_devices(&self) -> bool {
        matches!(self.ended_by, EndedBy::TakingDevices)
    }
}

/// What a rule forbids: a kind, with the values of its keys.
pub(crate) trait Kind: Any + Same + fmt::Debug + Send + Sync {
    /// What holds for all rules of this kind.
    fn definition(&self) -> &'static KindDefinition;

    /// Everything that breaks the rule, in any order.
    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding>;

    /// What the rule finds, for a summary of the configuration.
    fn summary(&self) -> String;

    /// Why a process that the rule looks at does not break it, for `explain`.
    fn kept(&self) -> &'static str {
        "this is no more than is allowed"
    }

    /// The limit, of the kinds that have one.
    fn limits(&self) -> Option<&Limits<u64>> {
        None
    }

    /// The same with other limits, of the kinds that have any.
    fn with_limits(&self, _limits: Limits<u64>) -> Option<RuleKind> {
        None
    }

    /// Where the rule counts.
    fn scope(&self) -> Scope {
        Scope::Host
    }

    /// The processes that the rule looks at.
    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::All
    }

    /// Whether the rule judges each process by itself, so that a process that no rule may end breaks none.
    fn judges_each_process(&self) -> bool {
        false
    }

    /// Whether the rule looks at more than environments and attachments, which need no driver.
    fn needs_processes(&self) -> bool {
        true
    }

    /// Whether a violation shows in several snapshots only, and not in one.
    fn needs_history(&self) -> bool {
        false
    }

    /// Whether the rule looks at processes of which the environment is not known.
    fn looks_at_unknown(&self) -> bool {
        false
    }

    /// Whether the rule compares amounts of memory.
    fn counts_memory(&self) -> bool {
        false
    }

    /// Whether the rule forbids the use of devices to which the environment is not attached.
    fn forbids_unattached_use(&self) -> bool {
        false
    }

    /// When a device is idle, of the kind that looks for idle devices.
    fn idle_limit(&self) -> Option<IdleLimit> {
        None
    }

    /// When a process that loses a device is busy on another one.
    fn busy(&self, for_duration: Duration) -> Busy {
        Busy::at_least_recently(for_duration)
    }

    /// A kind that finds, on each host by itself, all that may count for this one.
    fn counting_all(&self) -> Option<RuleKind> {
        None
    }

    /// Whether what breaks a rule of the kind `other` breaks this one too, apart from limits.
    fn counts_as(&self, other: &dyn Kind) -> bool {
        self.definition().word == other.definition().word && self.scope() == other.scope()
    }

    /// A value that does less than its author may think.
    fn warning(&self, _entry: &RuleEntry, _interval: Duration) -> Option<(Place, String)> {
        None
    }
}

impl dyn Kind {
    /// The kind, if it is of this type.
    fn downcast<K: Kind>(&self) -> Option<&K> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The processes that a kind looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JudgedProcesses {
    /// In an environment or not.
    All,
    /// Those in an environment.
    InEnvironments,
    /// Those in no environment.
    OutsideEnvironments,
}

/// When a device is idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IdleLimit {
    /// Average utilization by the environment's processes, 0–1, below which it is idle.
    pub(crate) below: f64,
    /// The window of the average.
    pub(crate) over: Duration,
}

/// What a rule is checked on.
#[derive(Debug)]
pub(crate) struct Check<'c, 'f, 'a> {
    pub(crate) view: &'c View<'f, 'a>,
    pub(crate) past: &'c Past<'c>,
    contexts: Contexts<'c, 'a>,
    now_seconds: f64,
}

/// Everything that breaks the rule of a view, in any order.
pub(crate) fn findings(view: &View<'_, '_>, past: &Past<'_>, now_seconds: f64) -> Vec<Finding> {
    let contexts = Contexts::new(view.facts, past, now_seconds);
    view.rule.kind.findings(&Check { view, past, contexts, now_seconds })
}

#[derive(Clone)]
pub(crate) struct RuleKind(Arc<dyn Kind>);

impl RuleKind {
    /// The word of the kind in a configuration: `idle`.
    pub(crate) fn word(&self) -> &'static str {
        self.definition().word
    }
}

impl Deref for RuleKind {
    type Target = dyn Kind;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl<K: Kind> From<K> for RuleKind {
    fn from(kind: K) -> Self {
        Self(Arc::new(kind))
    }
}

impl fmt::Debug for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for RuleKind {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&*other.0)
    }
}

/// Equality of values behind a trait.
pub(crate) trait Same {
    /// Whether the other value has the same type and is equal.
    fn is_same(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Same for T {
    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

impl Rule {
    /// When a process is busy for this rule.
    pub(crate) fn busy(&self) -> Busy {
        self.kind.busy(self.for_duration)
    }
}
