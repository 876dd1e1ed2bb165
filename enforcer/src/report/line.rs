//! A line of the audit, in words.

use genv_core::text::{harmless, shortened};
use jiff::Timestamp;
use serde::Deserialize;

use crate::plan::words;

/// Characters that are kept of a reason.
const REASON_CHARACTERS: usize = 300;

/// How it went, as a report counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Would,
    Done,
    Refused,
    Failed,
}

/// What a report needs of a line.
#[derive(Debug, Deserialize)]
pub(super) struct AuditLine {
    time: Timestamp,
    result: String,
    reason: Option<String>,
    action: String,
    pub(super) rule: String,
    pub(super) why: String,
    pub(super) hostname: String,
    pub(super) username: String,
    pid: Option<u32>,
    comm: Option<String>,
    eid: Option<String>,
    gpu: Option<u32>,
    /// How many it stands for.
    pub(super) more: Option<u64>,
}

impl AuditLine {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut line: Self = serde_json::from_slice(bytes).ok()?;
        for name in [&mut line.rule, &mut line.hostname, &mut line.username] {
            *name = words::name(name).into_owned();
        }
        line.why = text(&line.why);
        Some(line)
    }

    /// Unix time.
    pub(super) fn seconds(&self) -> f64 {
        self.time.as_duration().as_secs_f64()
    }

    /// Nothing where another line tells how it went.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        match self.result.as_str() {
            "would" => Some(Outcome::Would),
            "done" => Some(Outcome::Done),
            "refused" => Some(Outcome::Refused),
            "intended" | "asked" => None,
            // failed, unkillable, unknown, and what a later version knows besides.
            _ => Some(Outcome::Failed),
        }
    }

    /// What was done to what, or not, and why not.
    pub(super) fn deed(&self, outcome: Outcome) -> String {
        if let Some(reason) = self.reason.as_deref().filter(|_| self.more.is_some()) {
            return text(reason);
        }
        if self.action == "report" {
            return "reported it".to_owned();
        }
        let what = match (self.pid, self.gpu) {
            (Some(pid), _) => words::process(pid, self.comm.as_deref()),
            (None, Some(gpu)) => {
                let eid = words::name(self.eid.as_deref().unwrap_or("?"));
                format!("device {gpu} from environment {eid}")
            }
            (None, None) => "something".to_owned(),
        };
        let (infinitive, past) = match self.action.as_str() {
            "SIGTERM" => ("end", "ended"),
            "SIGKILL" => ("kill", "killed"),
            _ => ("take", "taken"),
        };
        let reason = match &self.reason {
            Some(reason) => format!(" ({})", text(reason)),
            None => String::new(),
        };
        match outcome {
            Outcome::Would => format!("would have {past} {what}"),
            Outcome::Done if past == "taken" => format!("took {what}"),
            Outcome::Done if past == "ended" => format!("sent SIGTERM to {what}"),
            Outcome::Done => format!("{past} {what}"),
            Outcome::Refused => format!("did not {infinitive} {what}{reason}"),
            Outcome::Failed => format!("could not {infinitive} {what}{reason}"),
        }
    }
}

fn text(text: &str) -> String {
    shortened(&harmless(text), REASON_CHARACTERS)
}
