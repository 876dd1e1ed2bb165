//! What a plan remembers: since when each violation is seen, which warnings were given, what was ended, refused or
//! detached, and how busy each attachment was.

mod contexts;
mod evidence;
mod follow;
mod frozen;
mod gone;
mod hidden;
mod idle;
mod of_rule;
mod past;
mod progress;
mod settle;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::Occupants;
use serde::{Deserialize, Serialize};

use super::freshness::{LastRead, ObservedTime};
use super::{Key, Subject};
use crate::by_gpu::ByGpu;
use crate::config::Rule;
pub(super) use contexts::ContextHistory;
use evidence::About;
pub(super) use follow::wants_new_round;
pub use frozen::Frozen;
pub(super) use frozen::MOST_FROZEN;
pub(crate) use idle::{Average, IdleWindow, Sample};
pub(crate) use past::Past;
use windows::Windows;
pub(crate) use windows::holding;

/// The memory of the planning, from the first cycle to the last, also over a restart: [`History::to_json`] and
/// [`History::parse`].
///
/// A cycle is: [`History::plan`], then [`History::settle`] for each step of that plan that was tried. A warning that
/// was only logged does not count: call [`History::forget_rehearsal`] before a plan whose steps are carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    version: u32,
    #[serde(with = "pairs")]
    pub(super) violations: BTreeMap<Key, ViolationHistory>,
    /// What each rule forbade, by its name: one that forbids something else now is another rule.
    kinds: BTreeMap<String, String>,
    pub(super) hosts: BTreeMap<String, HostHistory>,
    /// Progress of violations that are over.
    #[serde(default, with = "pairs", skip_serializing_if = "BTreeMap::is_empty")]
    remembered: BTreeMap<progress::Place, progress::Remembered>,
}

/// [`History::version`] of what is written.
const VERSION: u32 = 1;

/// A text that is not a history; its reader sets it aside and begins anew.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// It is damaged.
    #[error("cannot read the history of violations: it is damaged ({0})")]
    Damaged(#[from] serde_json::Error),
    /// It is of another version of this program.
    #[error("cannot read the history of violations: it has version {0}, and this program knows 1")]
    Version(u32),
}

/// How far a violation is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ViolationHistory {
    /// First seen, Unix time.
    pub(super) since_seconds: f64,
    /// For how long it was seen, since the first time or since its round began.
    pub(super) seen: ObservedTime,
    pub(super) reported: bool,
    /// The time of the report, Unix time; earlier versions did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reported_seconds: Option<f64>,
    pub(super) warnings_given: usize,
    /// Of `seen`, when the announced end comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end_seen_seconds: Option<f64>,
    /// Why the user could not be warned: without that nothing follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) not_warned: Option<String>,
    /// Why the next warning has not reached its user yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undelivered: Option<String>,
    /// When something was last done, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) acted_seconds: Option<f64>,
    /// What this round is for; whatever comes later needs warnings of its own.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) chosen: BTreeSet<Subject>,
    /// Whether a pause, maintenance, a waiver or the hours of its rule put it off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) put_off: bool,
    /// Whether any of this was only rehearsed.
    pub(super) rehearsed: bool,
    /// Whether it exists only by attachments that nothing shows to be their user's doing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unconfirmed: bool,
    /// Since when it is not known whether it goes on, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown_seconds: Option<f64>,
    /// What it was concluded from when it was last seen.
    #[serde(default)]
    pub(super) about: About,
}

/// What is remembered of one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostHistory {
    pub(super) read: LastRead,
    /// The GPU at each index.
    #[serde(default, skip_serializing_if = "Occupants::is_empty")]
    pub(super) occupants: Occupants,
    /// By pid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) processes: BTreeMap<u32, ProcessHistory>,
    /// By eid and GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) attachments: BTreeMap<String, BTreeMap<u32, AttachmentHistory>>,
    /// By pid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    contexts: BTreeMap<u32, contexts::ProcessContexts>,
    /// By pid: listed processes that `/proc` lacks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gone: BTreeMap<u32, gone::Gone>,
    /// By user and GPU: for how long the user's unknown processes hide what the user makes of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    hidden: BTreeMap<String, BTreeMap<u32, hidden::Hidden>>,
    /// By rule, eid and GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) idle: BTreeMap<String, Windows>,
    /// By rule, user and GPU: windows of attachments that are gone, for as long as the rule remembers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    idle_left: BTreeMap<String, Windows>,
}

/// A process that was signalled, or may not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessHistory {
    pub(super) start_time_ticks: u64,
    /// SIGTERM was sent, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) terminated_seconds: Option<f64>,
    /// How long it was seen since.
    pub(super) seen: ObservedTime,
    /// SIGKILL was sent, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) killed_seconds: Option<f64>,
    /// Why it may not be ended, for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    pub(super) rehearsed: bool,
}

/// An attachment that was detached, or may not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachmentHistory {
    /// When it was attached, Unix time: one that was made since is another.
    pub(super) attached_seconds: Option<i64>,
    /// Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) detached_seconds: Option<f64>,
    /// Why it may not be detached, for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    pub(super) rehearsed: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            version: VERSION,
            violations: BTreeMap::new(),
            kinds: BTreeMap::new(),
            hosts: BTreeMap::new(),
            remembered: BTreeMap::new(),
        }
    }
}

impl History {
    /// Violations of which something fell due, and which are not over.
    pub(crate) fn due(&self) -> impl Iterator<Item = &Key> {
        let due = self.violations.iter();
        due.filter(|(_, known)| !known.chosen.is_empty()).map(|(key, _)| key)
    }

    /// The UUIDs of the GPUs seen at each index of each host.
    pub(crate) fn gpu_positions(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        let hosts = self.hosts.iter();
        hosts.flat_map(|(hostname, host)| host.occupants.uuids().map(move |(index, uuid)| (&**hostname, index, uuid)))
    }

    /// Reads what [`History::to_json`] wrote.
    ///
    /// # Errors
    /// The text is damaged, or of another version.
    pub fn parse(text: &str) -> Result<Self, HistoryError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(HistoryError::Version(version));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// For a file.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Forgets all warnings and actions that were only said and not done, so that whatever follows from now on has its
    /// full time and all its warnings. Costs nothing where there are none: call it before each plan that will be carried
    /// out.
    pub fn forget_rehearsal(&mut self) {
        for violation in self.violations.values_mut() {
            if violation.rehearsed {
                violation.begin_round(violation.since_seconds);
                violation.seen.wait();
            }
        }
        self.remembered.retain(|_, it| !it.is_rehearsed());
        for host in self.hosts.values_mut() {
            host.processes.retain(|_, process| !process.rehearsed);
            for attachments in host.attachments.values_mut() {
                attachments.retain(|_, attachment| !attachment.rehearsed);
            }
            host.attachments.retain(|_, attachments| !attachments.is_empty());
        }
    }

    /// Whether a violation is not forgotten: it is there, or nobody can tell whether it is.
    pub fn remembers(&self, key: &Key) -> bool {
        self.violations.contains_key(key)
    }

    /// How far a violation of a rule is.
    pub(super) fn violation(&self, rule: &Rule, key: &Key) -> Option<&ViolationHistory> {
        self.violations.get(key).filter(|_| self.knows(rule))
    }

    /// Whether what is remembered under the name of a rule is of this rule.
    fn knows(&self, rule: &Rule) -> bool {
        let kind = self.kinds.get(&rule.name);
        kind.is_none_or(|kind| kind == rule.kind.word())
    }

    /// A process that was signalled or refused.
    pub(super) fn process(&self, hostname: &str, pid: u32, start_time_ticks: u64) -> Option<&ProcessHistory> {
        self.hosts.get(hostname)?.process(pid, start_time_ticks)
    }
}

impl ViolationHistory {
    pub(super) fn begin(now_seconds: f64) -> Self {
        Self { since_seconds: now_seconds, seen: ObservedTime::begin(now_seconds), ..Self::default() }
    }

    /// Begins the ladder anew, without saying again that the rule is broken.
    pub(super) fn begin_round(&mut self, now_seconds: f64) {
        *self = Self {
            since_seconds: self.since_seconds,
            reported: self.reported,
            reported_seconds: self.reported_seconds,
            unconfirmed: self.unconfirmed,
            about: std::mem::take(&mut self.about),
            ..Self::begin(now_seconds)
        };
    }
}

/// Maps of which the keys are no texts, as lists of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<K, V>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
