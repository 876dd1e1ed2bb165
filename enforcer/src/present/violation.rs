//! A violation in words.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::words;
use crate::kinds::ViolationFact;
use crate::plan::{Target, Violation};

/// Targets that a remedy names with their commands.
const MOST_NAMED: usize = 4;

/// The advice to a user about devices that another user may have attached.
const NOTHING_TO_DO: &str = "nothing has to be done: another user may have attached this, and no process ends by taking it \
     back. To keep it, detach it and attach it again";

impl Violation {
    /// What was found, in one clause: `uses 3 devices`.
    pub fn found(&self) -> String {
        self.fact.found()
    }

    /// What is allowed and by whose limit: `2 for members of students`.
    pub fn allowed(&self) -> String {
        self.fact.allowed()
    }

    /// Both, as the reason of an action.
    pub fn reason(&self) -> String {
        format!("{}; allowed: {}", self.found(), self.allowed())
    }

    /// How to end it, with the commands for what would be taken: `detach 1 device: genv detach --index 2`.
    pub fn remedy(&self) -> String {
        let advice = match self.unconfirmed {
            true => NOTHING_TO_DO.into(),
            false => self.fact.advice(),
        };
        if !self.fact.has_commands() {
            return advice.into_owned();
        }
        let on = |hostname: &str| match self.hostname {
            Some(_) => String::new(),
            None => format!(" on {}", words::name(hostname)),
        };
        // Commands for the same place form one shell line.
        let mut lines: Vec<(String, String)> = Vec::new();
        for target in self.targets.iter().take(MOST_NAMED) {
            let (place, command) = match target {
                Target::Process(process) => (format!("run{}", on(&process.hostname)), format!("kill {}", process.pid)),
                Target::Attachment(attachment) => {
                    let eid = words::name(&attachment.eid);
                    let place = format!("in environment {eid}{} run", on(&attachment.hostname));
                    (place, format!("genv detach --index {}", attachment.gpu))
                }
            };
            match lines.iter_mut().find(|(known, _)| *known == place) {
                Some((_, commands)) => commands.extend(["; ", &command]),
                None => lines.push((place, command)),
            }
        }
        let mut remedy = advice.into_owned();
        // Writing to a string does not fail.
        for (number, (place, commands)) in lines.iter().enumerate() {
            let before = if number == 0 { ": " } else { ", " };
            let _ = write!(remedy, "{before}{place} '{commands}'");
        }
        let more = self.targets.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            let _ = write!(remedy, ", and {more} more");
        }
        remedy
    }
}

/// The facts of a violation that came in words.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct WrittenFact {
    pub(crate) found: String,
    pub(crate) allowed: String,
    /// With its commands.
    pub(crate) remedy: String,
}

impl ViolationFact for WrittenFact {
    fn found(&self) -> String {
        self.found.clone()
    }

    fn allowed(&self) -> String {
        self.allowed.clone()
    }

    fn advice(&self) -> Cow<'static, str> {
        self.remedy.clone().into()
    }

    fn has_commands(&self) -> bool {
        false
    }
}
