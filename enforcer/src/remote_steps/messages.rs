//! The request for steps on another host, and the report about them. `docs/remote.md` calls them intents and outcomes, after
//! their keys in the protocol.

use serde::{Deserialize, Serialize};

use crate::config::Action;
use crate::plan::{Outcome, Step, Target, Violation};
use crate::reload::Written;

/// [`StepRequest::version`]. A new field could forbid a step, so that a host refuses a request with an unknown field, and
/// each new field needs a new version.
pub const VERSION: u32 = 1;

/// Steps for one host, with the rules that they follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRequest {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that sends the request.
    pub asked_by: String,
    /// The name of the host in the rules of that machine.
    pub hostname: String,
    /// Unix time on that machine. Waivers, maintenance and hours in the rules are evaluated at this time.
    pub now_seconds: f64,
    /// The rules.
    pub rules: Rules,
    /// The steps, in this order.
    pub steps: Vec<RemoteStep>,
}

/// The rules in force on the machine that sends the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The file or the flags that the rules were read from, in words.
    pub source: String,
    /// The text of the rules.
    pub written: Written,
    /// [`Config::hash`](crate::config::Config::hash).
    pub hash: String,
    /// The zone for times that name none: its IANA name, POSIX rule or offset; absent: UTC.
    pub timezone: Option<String>,
}

/// One step, with its violation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteStep {
    /// The step and its target.
    pub step: Step,
    /// The user who is responsible.
    pub username: String,
    /// The last action of the rule.
    pub action: Action,
    /// [`Violation::found`].
    pub found: String,
    /// [`Violation::allowed`].
    pub allowed: String,
    /// [`Violation::remedy`].
    pub remedy: String,
    /// [`Violation::targets`] on that host.
    pub targets: Vec<Target>,
}

impl RemoteStep {
    /// A step on a host, for a violation.
    pub fn new(step: &Step, violation: &Violation, hostname: &str) -> Self {
        let on_host = violation.targets.iter().filter(|target| target.hostname() == hostname);
        Self {
            step: step.clone(),
            username: violation.username.clone(),
            action: violation.action,
            found: violation.found(),
            allowed: violation.allowed(),
            remedy: violation.remedy(),
            targets: on_host.cloned().collect(),
        }
    }

    /// The reason, in one clause.
    pub fn why(&self) -> String {
        format!("{}; allowed: {}", self.found, self.allowed)
    }
}

/// The outcome of each step in a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepReport {
    /// [`VERSION`].
    pub version: u32,
    /// One outcome for each step, in the order of the request.
    pub outcomes: Vec<Outcome>,
}
