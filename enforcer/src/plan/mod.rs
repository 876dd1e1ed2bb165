//! What is wrong, and what would be done about it.

mod counted;
mod explain;
pub(crate) mod facts;
pub(crate) mod freshness;
pub(crate) mod history;
mod hold;
mod judge;
mod ladder;
pub(crate) mod left_behind;
pub(crate) mod limits;
mod reach;
mod relief;
pub(crate) mod selector;
#[cfg(test)]
pub(crate) mod tests;
mod unconfirmed;
pub(crate) mod unknown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use genv_core::model::{DeviceIndex, HostSnapshot};
use serde::{Deserialize, Serialize};

use crate::config::{Action, Config, Waiver};
use crate::kinds::SharedFact;
pub(crate) use crate::present::words;
pub use counted::{Counted, counted};
pub use explain::{Explanation, RuleExplanation, Standing, explain};
use facts::Facts;
pub use history::{Frozen, History, HistoryError};
pub use left_behind::LeftBehind;
pub(crate) use left_behind::Since;
pub use unconfirmed::Unconfirmed;

/// What is wrong now, and what is to be done about it. The same input and history always make the same plan: it asks no
/// clock, and does not look at the mode. See [`History`] for what a cycle consists of.
///
/// Facts that did not change since the last cycle, are too old or are missing cause nothing: a violation that they show
/// stays where it is.
pub fn plan(input: &Input<'_>, history: &History) -> Plan {
    let facts = Facts::new(input, history);
    let views = selector::views(&facts, &input.config.rules);
    judge::plan(input, history, &facts, &views)
}

impl History {
    /// Plans as [`plan()`] does, and notes the findings: present violations with their starts, ended violations, and
    /// the use of attachments. The history of a silent host stays unchanged.
    pub fn plan(&mut self, input: &Input<'_>) -> Plan {
        let facts = Facts::new(input, self);
        let views = selector::views(&facts, &input.config.rules);
        let plan = judge::plan(input, self, &facts, &views);
        self.follow(input, &facts, &views, &plan);
        plan
    }
}

/// All that a plan depends on besides the history.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Every host, reachable or not.
    pub hosts: &'a [HostSnapshot],
    /// The rules.
    pub config: &'a Config,
    /// The Unix groups of each user who appears, by name. Of a user who is absent they could not be told: the user may be
    /// a member of any, and so be excepted, or have a higher limit.
    pub groups: &'a BTreeMap<String, BTreeSet<String>>,
    /// Exemptions given while the daemon ran.
    pub waivers: &'a [Waiver],
    /// Attachments that nothing shows to be their user's doing; absent: there are none.
    pub unconfirmed: Option<&'a Unconfirmed>,
    /// Unix time until which everything waits, if it was paused.
    pub paused_until_seconds: Option<f64>,
    /// Unix time now.
    pub now_seconds: f64,
}

/// What is wrong and what to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Everything that breaks a rule, also what is waived or too young; by rule, in the order of the file, then by subject.
    pub violations: Vec<Violation>,
    /// Violations that were found before, and of which it is not known whether they are over.
    pub frozen: Vec<Frozen>,
    /// What is to be done now, in this order.
    pub steps: Vec<Step>,
    /// Processes whose environment nobody knows, by host: never acted upon.
    pub unknown_processes: BTreeMap<String, u64>,
    /// The same by host and user; `(unknown)` has those whose user is not known.
    pub unknown_processes_by_user: BTreeMap<String, BTreeMap<String, u64>>,
    /// GPUs that a rule about idle devices cannot judge, since the driver does not measure their utilization, by rule
    /// and host.
    pub not_judged: BTreeMap<(String, String), BTreeSet<u32>>,
    /// Contexts that a detach left behind; they break no rule.
    pub left_behind: Vec<LeftBehind>,
    /// Hosts without fresh facts: nothing is done there, and nothing is counted over all hosts.
    pub missing_hosts: BTreeSet<String>,
    /// Violations that a pause, maintenance, a waiver or the hours of their rule put off, now or before. It is no surprise if
    /// many of these fall due together.
    pub put_off: BTreeSet<Key>,
}

/// What makes a violation the same one in the next cycle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Name of the rule.
    pub rule: String,
    /// What breaks it.
    pub subject: Subject,
}

/// What can break a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// A process, on a device where it may not be.
    Process {
        /// Host.
        hostname: String,
        /// Process id.
        pid: u32,
        /// Field 22 of `/proc/PID/stat`.
        start_time_ticks: u64,
    },
    /// An environment.
    Environment {
        /// Host.
        hostname: String,
        /// Environment id.
        eid: String,
    },
    /// An environment on one device.
    EnvironmentDevice {
        /// Host.
        hostname: String,
        /// Environment id.
        eid: String,
        /// Device.
        index: DeviceIndex,
    },
    /// A user.
    User {
        /// Username of the snapshots.
        username: String,
        /// Host; absent where all hosts count together.
        hostname: Option<String>,
    },
    /// A user on one device.
    UserDevice {
        /// Username of the snapshots.
        username: String,
        /// Host.
        hostname: String,
        /// Device.
        index: DeviceIndex,
    },
}

impl Subject {
    /// The host; absent where all hosts count together.
    pub fn hostname(&self) -> Option<&str> {
        match self {
            Self::Process { hostname, .. }
            | Self::Environment { hostname, .. }
            | Self::EnvironmentDevice { hostname, .. }
            | Self::UserDevice { hostname, .. } => Some(hostname),
            Self::User { hostname, .. } => hostname.as_deref(),
        }
    }
}

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// What it is known by.
    pub key: Key,
    /// Who is responsible.
    pub username: String,
    /// The uid, where the snapshot knows it.
    pub uid: Option<u32>,
    /// The host, unless all hosts count together.
    pub hostname: Option<String>,
    /// What the rule does in the end.
    pub action: Action,
    /// Unix time at which it was first seen without a break.
    pub since_seconds: f64,
    /// How far it is.
    pub stage: Stage,
    /// What was found and what is allowed.
    pub(crate) fact: SharedFact,
    /// What would be ended or taken to end it, the newest first.
    pub targets: Vec<Target>,
    /// Whether it consists only of attachments that nothing shows to be made by their user.
    pub unconfirmed: bool,
}

/// How far a violation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// It is too young.
    Pending {
        /// Unix time at which the first warning, or without one the action, is due.
        until_seconds: f64,
    },
    /// Warnings are being given.
    Warned {
        /// How many were given.
        given: usize,
        /// Unix time of the action, as announced.
        end_seconds: f64,
    },
    /// The action is due.
    Due,
    /// The action was taken, or would have been.
    Acted {
        /// Unix time.
        at_seconds: f64,
        /// Unix time of the SIGKILL that follows SIGTERM; absent if no signal follows.
        kill_seconds: Option<f64>,
    },
    /// It waits where it is.
    Held {
        /// Why, in one clause: `waived until 2026-12-15: deadline`.
        why: String,
    },
}

/// What ends a violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "target", rename_all = "snake_case")]
pub enum Target {
    /// A process ends.
    Process(Arc<ProcessTarget>),
    /// An environment loses a device.
    Attachment(Arc<AttachmentTarget>),
}

impl Target {
    /// The host that it is on.
    pub fn hostname(&self) -> &str {
        match self {
            Self::Process(target) => &target.hostname,
            Self::Attachment(target) => &target.hostname,
        }
    }

    /// The processes that end with it.
    pub(crate) fn processes(&self) -> &[Arc<ProcessTarget>] {
        match self {
            Self::Process(target) => std::slice::from_ref(target),
            Self::Attachment(target) => &target.processes,
        }
    }
}

/// A process, with all that must still be true of it when it is signalled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessTarget {
    /// Host.
    pub hostname: String,
    /// Process id.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
    /// Effective uid.
    pub uid: u32,
    /// Its name in the snapshot.
    pub username: String,
    /// Command name.
    pub comm: Option<String>,
    /// Environment that it is in; absent: known to be outside of all.
    pub eid: Option<String>,
    /// Container that it runs in.
    pub container_id: Option<String>,
}

/// One device of one environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttachmentTarget {
    /// Host.
    pub hostname: String,
    /// Environment id.
    pub eid: String,
    /// Its user.
    pub username: String,
    /// The whole GPU.
    pub gpu: u32,
    /// Its UUID in the snapshot: another GPU may take the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// When it was attached by the snapshot, Unix time in whole seconds as the state has it: an attachment that was made
    /// since is another one.
    pub attached_seconds: Option<i64>,
    /// The environment's processes on it that end with it, or none if they may stay.
    pub processes: Vec<Arc<ProcessTarget>>,
    /// Whether nothing shows that its user made the attachment: no user loses anything by the detach.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl AttachmentTarget {
    /// What makes it the same one in the next cycle.
    fn identity(&self) -> Subject {
        Subject::EnvironmentDevice {
            hostname: self.hostname.clone(),
            eid: self.eid.clone(),
            index: DeviceIndex::gpu(self.gpu),
        }
    }
}

/// One thing to do now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The violation that it is for.
    pub key: Key,
    /// What to do.
    pub kind: StepKind,
}

impl Step {
    /// Whether the step takes back an attachment that nothing shows to be made by its user.
    pub(crate) fn takes_back(&self) -> bool {
        matches!(&self.kind, StepKind::Detach(target) if target.unconfirmed)
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum StepKind {
    /// Say that the rule is broken: once a violation.
    Report,
    /// Tell the user.
    Warn {
        /// Which warning it is, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Unix time of the action; absent if nothing follows.
        end_seconds: Option<f64>,
    },
    /// Take a device from an environment, and end what the target says.
    Detach(Arc<AttachmentTarget>),
    /// SIGTERM.
    Terminate(Arc<ProcessTarget>),
    /// SIGKILL, after SIGTERM and the grace.
    Kill(Arc<ProcessTarget>),
}

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Done,
    /// It would have been done.
    Would,
    /// It may not be done: `reason` says why. `again` if that can change by itself.
    Refused {
        /// In one clause.
        reason: String,
        /// Whether to try again next cycle, as when too many signals were sent this minute.
        again: bool,
    },
    /// It could not be done; it is not tried again.
    Failed {
        /// In one clause.
        reason: String,
    },
}
