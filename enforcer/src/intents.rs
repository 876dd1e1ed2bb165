//! What the enforcer of one machine asks that of another: steps with the rules that they follow from, never bare pids.

use serde::{Deserialize, Serialize};

use crate::config::Action;
use crate::plan::{Outcome, Step, Target, Violation};
use crate::reload::Written;

/// [`Intents::version`]. A field that is not known could be one that forbids something: it is refused, so that each new one
/// is a new version.
pub const VERSION: u32 = 1;

/// What is asked at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intents {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that asks.
    pub asked_by: String,
    /// What it calls the host that it asks: the name that its rules know.
    pub hostname: String,
    /// Unix time there. Waivers, maintenance and hours of the rules are judged by it.
    pub now_seconds: f64,
    /// The rules.
    pub rules: Rules,
    /// What to do, in this order.
    pub steps: Vec<Intent>,
}

/// Rules in force where intents come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Where they were read from, in words.
    pub source: String,
    /// As they are written.
    pub written: Written,
    /// [`Config::hash`](crate::config::Config::hash).
    pub hash: String,
    /// Name in the IANA database of the zone in which times are read that say none; absent: UTC.
    pub timezone: Option<String>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// What to do, to whom.
    pub step: Step,
    /// Who is responsible.
    pub username: String,
    /// What the rule does in the end.
    pub action: Action,
    /// [`Violation::found`].
    pub found: String,
    /// [`Violation::allowed`].
    pub allowed: String,
    /// [`Violation::remedy`].
    pub remedy: String,
    /// [`Violation::targets`], on that host.
    pub targets: Vec<Target>,
}

impl Intent {
    /// A step on a host, for a violation.
    #[must_use]
    pub fn new(step: &Step, violation: &Violation, hostname: &str) -> Self {
        let here = violation.targets.iter().filter(|target| target.hostname() == hostname);
        Self {
            step: step.clone(),
            username: violation.username.clone(),
            action: violation.action,
            found: violation.found.clone(),
            allowed: violation.allowed.clone(),
            remedy: violation.remedy.clone(),
            targets: here.cloned().collect(),
        }
    }

    /// Why, in one clause.
    #[must_use]
    pub fn why(&self) -> String {
        format!("{}; allowed: {}", self.found, self.allowed)
    }
}

/// How everything went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcomes {
    /// [`VERSION`].
    pub version: u32,
    /// One for each step, in their order.
    pub outcomes: Vec<Outcome>,
}
