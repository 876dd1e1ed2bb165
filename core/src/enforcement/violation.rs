//! A published violation, and sentences about it.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::Stance;
use crate::duration::format_span;
use crate::text::moment;

/// A violation of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldViolation {
    /// Name of the rule.
    pub rule: String,
    /// The responsible user.
    pub username: String,
    /// The uid, where it is known.
    pub uid: Option<u32>,
    /// Uids of other users whose processes the action ends or has ended.
    pub victim_uids: Vec<u32>,
    /// The host; absent where all hosts count together.
    pub hostname: Option<String>,
    /// The subject: `process 4711`, `environment e1 on device 0`.
    pub subject: String,
    /// `report`, `warn`, `detach`, `terminate` or `kill`.
    pub action: String,
    /// Since when, Unix time.
    pub since_seconds: f64,
    /// `pending`, `warned`, `due`, `acted` or `held`.
    pub stage: String,
    /// The time of the next step, or of the last step that was taken, Unix time.
    pub at_seconds: Option<f64>,
    /// The time of the SIGKILL that follows a sent SIGTERM, Unix time; absent if no signal follows.
    pub kill_seconds: Option<f64>,
    /// The last warning, if a recipient has not received it.
    pub undelivered: Option<UndeliveredWarning>,
    /// Why the violation is held, or why a due step was not taken.
    pub why: Option<String>,
    /// The found value: `uses 3 devices`.
    pub found: String,
    /// The allowed value: `2 for members of students`.
    pub allowed: String,
    /// How to end the violation.
    pub remedy: String,
    /// The targets of the action, in words.
    pub targets: Vec<String>,
}

/// A warning that has not reached all its recipients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UndeliveredWarning {
    /// The number of this warning, from 1.
    pub number: u64,
    /// The number of all warnings before the action.
    pub of: u64,
    /// The reason why the warning is not delivered.
    pub why: String,
    /// Whether the next step waits for the delivery.
    pub is_waited_for: bool,
    /// The wait between delivery and action; absent if no action follows.
    pub wait_seconds: Option<f64>,
}

impl HeldViolation {
    /// Whether a user breaks the rule, or loses a process by it.
    pub fn concerns(&self, username: &str, uid: Option<u32>) -> bool {
        let is_victim = uid.is_some_and(|uid| self.victim_uids.contains(&uid));
        self.username == username || (uid.is_some() && self.uid == uid) || is_victim
    }

    /// The next step, in one clause.
    pub fn outlook(&self, stance: Stance, now_seconds: f64, zone: &TimeZone) -> String {
        let at = |seconds: f64| at(seconds, now_seconds, zone);
        let targets = self.targets_after_colon();
        let reports = self.action == "report";
        let due = |when: String| {
            let (passive, infinitive) = self.done_words();
            match stance {
                Stance::Enforces => format!("{when} it is {passive}{targets}"),
                Stance::Stopped => NOTHING_UNTIL_RESET.to_owned(),
                Stance::OnlyReports => format!("{when} it would {infinitive}{targets}"),
            }
        };
        match (self.stage.as_str(), self.at_seconds) {
            ("held", _) => format!("held: {}", self.why.as_deref().unwrap_or("see the log")),
            ("pending" | "warned" | "due", _) if stance == Stance::Stopped && !reports => {
                NOTHING_UNTIL_RESET.to_owned()
            }
            // The next cycle is due or late.
            ("pending", Some(until)) if until < now_seconds => match reports {
                true => "it is reported in the next cycle, unless it is over".to_owned(),
                false => "the next step comes in the next cycle, unless it is over".to_owned(),
            },
            ("warned", Some(end)) if end < now_seconds => due("at the next chance".to_owned()),
            ("pending", Some(until)) if reports => format!("{} it is reported", at(until)),
            ("pending", Some(until)) => {
                format!("nothing follows if it is over {}", at(until).replacen("at ", "by ", 1))
            }
            ("warned", Some(end)) => due(at(end)),
            ("due", _) if self.why.is_some() => due("at the next chance".to_owned()),
            ("due", _) => due("now".to_owned()),
            ("acted", Some(when)) if stance == Stance::OnlyReports && !reports => {
                let (_, infinitive) = self.done_words();
                let been = infinitive.replacen("be ", "been ", 1);
                format!("would have {been} {}{targets}", at(when))
            }
            ("acted", Some(when)) => match self.signal() {
                Some(signal) => {
                    let follows = match self.kill_seconds {
                        Some(kill) => format!("SIGKILL follows {}", at(kill)),
                        None => "nothing more follows".to_owned(),
                    };
                    let there = self.targets.join("; ");
                    format!("{signal} was sent {}; still there: {there}; {follows}", at(when))
                }
                None => self.done(now_seconds, zone),
            },
            (stage, _) => stage.to_owned(),
        }
    }

    /// The completed action, in one clause.
    pub fn done(&self, now_seconds: f64, zone: &TimeZone) -> String {
        let when = at(self.at_seconds.unwrap_or_default(), now_seconds, zone);
        let targets = self.targets_after_colon();
        match self.signal() {
            Some(signal) => format!("{signal} was sent {when}{targets}"),
            None if self.action == "warn" && self.undelivered.is_some() => {
                format!("the warning of {} was not delivered", &when[3..])
            }
            None => format!("was {} {when}{targets}", self.done_words().0),
        }
    }

    /// The last sent signal, if the action sends signals.
    fn signal(&self) -> Option<&'static str> {
        match self.action.as_str() {
            "kill" if self.kill_seconds.is_none() => Some("SIGKILL"),
            "kill" | "terminate" => Some("SIGTERM"),
            _ => None,
        }
    }

    /// The effect of an action, as a participle and as an infinitive.
    fn done_words(&self) -> (&'static str, &'static str) {
        match self.action.as_str() {
            "detach" => ("taken", "be taken"),
            "terminate" | "kill" => ("ended", "be ended"),
            "warn" => ("warned of", "be warned of"),
            _ => ("reported", "be reported"),
        }
    }

    /// The targets of the action. A report does nothing to its targets.
    fn targets_after_colon(&self) -> String {
        match &self.targets[..] {
            [] => String::new(),
            _ if matches!(self.action.as_str(), "report" | "warn") => String::new(),
            targets => format!(": {}", targets.join("; ")),
        }
    }
}

/// The next step while the breaker is open.
const NOTHING_UNTIL_RESET: &str = "nothing, until an administrator closes the breaker";

fn at(seconds: f64, now_seconds: f64, zone: &TimeZone) -> String {
    let span = format_span((seconds - now_seconds).abs());
    if seconds >= now_seconds {
        format!("at {} (in {span})", moment(seconds, zone))
    } else {
        format!("at {} ({span} ago)", moment(seconds, zone))
    }
}
