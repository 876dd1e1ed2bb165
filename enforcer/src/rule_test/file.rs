//! The file of tests as it is written.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::DeviceIndex;
use genv_core::yaml::Located;
use genv_simulator::WrittenScenario;
use serde::Deserialize;

use crate::config::format::{Count, Pairs, Span, Text, given};
use crate::config::{Action, WrittenConfig};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleTestFile {
    #[serde(default, deserialize_with = "given")]
    pub(super) config: Option<Located<WrittenConfig>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) config_file: Option<Located<String>>,
    pub(super) tests: Located<Vec<Located<TestEntry>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestEntry {
    pub(super) name: Located<Text>,
    #[serde(default, deserialize_with = "given")]
    pub(super) interval: Option<Located<String>>,
    #[serde(default)]
    pub(super) groups: Pairs<Vec<String>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) scenario: Option<Located<WrittenScenario>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) scenario_file: Option<Located<String>>,
    #[serde(default)]
    pub(super) stubborn: Vec<Located<Count>>,
    #[serde(default)]
    pub(super) missing: Vec<Located<MissingEntry>>,
    #[serde(default)]
    pub(super) pauses: Vec<PauseEntry>,
    #[serde(default)]
    pub(super) waivers: Vec<WaiverEntry>,
    pub(super) expect: Located<Vec<Located<ExpectEntry>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MissingEntry {
    pub(super) host: Located<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) from: Option<Located<Span>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) until: Option<Located<Span>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) from: Option<Located<Span>>,
    pub(super) until: Located<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaiverEntry {
    pub(super) user: Located<Text>,
    pub(super) rules: Located<Vec<Located<String>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) from: Option<Located<Span>>,
    pub(super) until: Located<Span>,
    #[serde(default, deserialize_with = "given")]
    pub(super) reason: Option<Text>,
}

impl TestEntry {
    /// The Unix groups of each user whose groups are said.
    pub(super) fn groups(&self) -> BTreeMap<String, BTreeSet<String>> {
        let groups = self.groups.0.iter().map(|(user, groups)| {
            let names = groups.value.iter().cloned().collect();
            (user.value.clone(), names)
        });
        groups.collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectEntry {
    pub(super) at: Located<Span>,
    #[serde(default, deserialize_with = "given")]
    pub(super) violations: Option<Vec<Located<ViolationEntry>>>,
    #[serde(default)]
    pub(super) warnings: Vec<Located<WarningEntry>>,
    #[serde(default)]
    pub(super) actions: Vec<Located<ActionEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ViolationEntry {
    #[serde(default, deserialize_with = "given")]
    pub(super) stage: Option<StageEntry>,
    pub(super) rule: Located<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) user: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) eid: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) device: Option<DeviceIndex>,
    #[serde(default, deserialize_with = "given")]
    pub(super) pid: Option<Count>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WarningEntry {
    pub(super) rule: Located<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) user: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) number: Option<Count>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionEntry {
    pub(super) action: Located<Action>,
    pub(super) rule: Located<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) user: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) host: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) eid: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) device: Option<DeviceIndex>,
    #[serde(default, deserialize_with = "given")]
    pub(super) pid: Option<Count>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StageEntry {
    Pending,
    Warned,
    Due,
    Acted,
    Held,
}

impl StageEntry {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Warned => "warned",
            Self::Due => "due",
            Self::Acted => "acted",
            Self::Held => "held",
        }
    }
}
