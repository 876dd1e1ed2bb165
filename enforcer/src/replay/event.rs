//! What would have happened, for people and for programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use genv_core::duration::format_span;
use genv_core::text::harmless;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::plan::Violation;
use crate::plan::words;

/// Something that would have happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    /// Unix time.
    pub(super) at_seconds: f64,
    #[serde(flatten)]
    pub(super) kind: EventKind,
    /// Of what; absent where it is about no violation.
    #[serde(flatten)]
    pub(super) about: Option<About>,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct About {
    pub(super) rule: String,
    pub(super) username: String,
    hostname: Option<String>,
    subject: String,
    since_seconds: f64,
    found: String,
    allowed: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum EventKind {
    /// It was there for as long as the rule waits.
    Violation,
    /// The user would have been told.
    Warning { number: usize, of: usize, end_seconds: Option<f64> },
    /// Something would have been taken or ended.
    Action { action: &'static str, target: String },
    /// It waits.
    Held { why: String },
    /// It is not there any more.
    Over { acted_seconds: Option<f64> },
    /// Nothing more would have been done.
    Breaker { why: String },
}

/// What is remembered of a violation.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    pub(super) violation: Option<Violation>,
    /// Whether anything was said of it.
    pub(super) is_said: bool,
    pub(super) held: Option<String>,
    pub(super) acted_seconds: Option<f64>,
}

/// What a rule would have done in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RuleSummary {
    pub(super) violations: u64,
    pub(super) held: u64,
    pub(super) warnings: u64,
    pub(super) actions: u64,
    pub(super) users: BTreeSet<String>,
}

impl Event {
    pub(super) fn of(violation: &Violation, kind: EventKind, at_seconds: f64) -> Self {
        Self {
            at_seconds,
            kind,
            about: Some(About {
                rule: violation.key.rule.clone(),
                username: violation.username.clone(),
                hostname: violation.hostname.clone(),
                subject: words::subject(&violation.key.subject),
                since_seconds: violation.since_seconds,
                found: violation.found(),
                allowed: violation.allowed(),
            }),
        }
    }

    pub(super) fn breaker(why: &str, at_seconds: f64) -> Self {
        Self { at_seconds, kind: EventKind::Breaker { why: why.to_owned() }, about: None }
    }

    /// On one line.
    pub(super) fn text(&self, zone: &TimeZone) -> String {
        let mut line = time(self.at_seconds, zone);
        if let Some(about) = &self.about {
            let host = about.hostname.as_deref().unwrap_or("all hosts");
            // Writing to a string does not fail.
            let _ = write!(
                line,
                "  {}  {}  {} of {}: ",
                words::name(host),
                words::name(&about.rule),
                about.subject,
                words::name(&about.username)
            );
        } else {
            line.push_str("  ");
        }
        line.push_str(&self.what(zone));
        line.push('\n');
        line
    }

    fn what(&self, zone: &TimeZone) -> String {
        let about = |of: fn(&About) -> &str| harmless(self.about.as_ref().map_or("", of));
        match &self.kind {
            EventKind::Violation => {
                let (found, allowed) = (about(|it| it.found.as_str()), about(|it| it.allowed.as_str()));
                format!("{found}; allowed: {allowed}")
            }
            EventKind::Warning { number, of, end_seconds } => {
                let end = end_seconds
                    .map_or_else(|| "nothing follows".to_owned(), |end| format!("the end is at {}", time(end, zone)));
                format!("warning {number} of {of}; {end}")
            }
            EventKind::Action { action, target } => format!("would {action} {target}"),
            EventKind::Held { why } => {
                format!("{}; held: {}", about(|it| it.found.as_str()), harmless(why))
            }
            EventKind::Over { acted_seconds } => match acted_seconds {
                Some(acted) => {
                    let later = format_span(self.at_seconds - acted);
                    format!("over, {later} after the action")
                }
                None => "over by itself".to_owned(),
            },
            EventKind::Breaker { why } => {
                format!(
                    "the breaker would have tripped: {}; nothing would be done from here on until 'genv-enforcer reset'",
                    harmless(why)
                )
            }
        }
    }
}

/// Local time to the second; seconds where no calendar has it.
pub(super) fn time(seconds: f64, zone: &TimeZone) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let timestamp = Timestamp::from_second(seconds.floor() as i64);
    match timestamp {
        Ok(timestamp) => {
            let local = timestamp.to_zoned(zone.clone());
            local.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => format!("{seconds}"),
    }
}
