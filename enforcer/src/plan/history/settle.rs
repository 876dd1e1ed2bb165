//! How the steps of a plan went.

use std::time::Duration;

use genv_core::enforcement::UndeliveredWarning;

use super::{AttachmentHistory, History, ObservedTime, ProcessHistory, ViolationHistory};
use crate::config::{Action, Rule, Undelivered};
use crate::plan::{AttachmentTarget, Key, Outcome, ProcessTarget, Step, StepKind};

impl History {
    /// Notes how a step went, so that it is not planned again, or is.
    pub fn settle(&mut self, step: &Step, outcome: &Outcome, now_seconds: f64) {
        let result = match outcome {
            // It will be planned again.
            Outcome::Refused { reason, again: true } => {
                if let (StepKind::Warn { .. }, Some(violation)) = (&step.kind, self.violations.get_mut(&step.key)) {
                    violation.undelivered = Some(reason.clone());
                }
                return;
            }
            Outcome::Done => Ok(false),
            Outcome::Would => Ok(true),
            Outcome::Refused { reason, .. } | Outcome::Failed { reason } => Err(reason),
        };
        let violation = self.violations.entry(step.key.clone()).or_insert_with(|| ViolationHistory::begin(now_seconds));
        violation.rehearsed |= result == Ok(true);
        if let StepKind::Detach(target) = &step.kind {
            // Whoever attaches again is warned again.
            violation.chosen.remove(&target.identity());
        }
        match (&step.kind, result) {
            (StepKind::Report, _) => {
                violation.reported = true;
                violation.reported_seconds = Some(now_seconds);
            }
            (StepKind::Warn { .. }, Err(reason)) => violation.not_warned = Some(reason.clone()),
            (StepKind::Warn { number, end_seconds, .. }, Ok(rehearsed)) => {
                if *number == 1 && violation.acted_seconds.is_some() {
                    violation.begin_round(now_seconds);
                    violation.rehearsed = rehearsed;
                }
                violation.warnings_given = *number;
                violation.undelivered = None;
                let seen = violation.seen;
                violation.end_seen_seconds = end_seconds.map(|end| seen.when(end, now_seconds));
                if end_seconds.is_none() {
                    violation.acted_seconds = Some(now_seconds);
                }
            }
            (StepKind::Detach(target), Ok(rehearsed)) => {
                violation.acted_seconds = Some(now_seconds);
                self.attachment_mut(target).rehearsed = rehearsed;
                self.attachment_mut(target).detached_seconds = Some(now_seconds);
                for process in &target.processes {
                    self.terminated(process, now_seconds, rehearsed);
                }
            }
            (StepKind::Detach(target), Err(reason)) => {
                self.attachment_mut(target).refused = Some(reason.clone());
            }
            (StepKind::Terminate(target), Ok(rehearsed)) => {
                violation.acted_seconds = Some(now_seconds);
                self.terminated(target, now_seconds, rehearsed);
            }
            (StepKind::Kill(target), Ok(rehearsed)) => {
                violation.acted_seconds = Some(now_seconds);
                let process = self.process_mut(target, now_seconds);
                process.killed_seconds = Some(now_seconds);
                process.rehearsed |= rehearsed;
            }
            (StepKind::Terminate(target) | StepKind::Kill(target), Err(reason)) => {
                self.process_mut(target, now_seconds).refused = Some(reason.clone());
            }
        }
    }

    /// Notes that a warning which counts as given is not delivered.
    pub(crate) fn note_unread(&mut self, key: &Key, reason: String) {
        if let Some(violation) = self.violations.get_mut(key) {
            violation.undelivered = Some(reason);
        }
    }

    /// The last warning of a violation, if it is not delivered.
    pub(crate) fn undelivered(&self, key: &Key, rule: &Rule) -> Option<UndeliveredWarning> {
        let known = self.violation(rule, key)?;
        let why = known.undelivered.clone()?;
        let is_waited_for = rule.undelivered == Undelivered::Hold;
        let number = known.warnings_given + usize::from(is_waited_for);
        let lead = rule.warn.get(number.checked_sub(1)?);
        let lead_seconds = lead.map_or(0.0, Duration::as_secs_f64);
        let end = known.end_seen_seconds.map(|end| end - known.seen.seconds);
        let wait_seconds = end.map_or(lead_seconds, |end| end.max(lead_seconds));
        Some(UndeliveredWarning {
            number: number as u64,
            of: match rule.action {
                Action::Warn => 1,
                _ => rule.warn.len() as u64,
            },
            why,
            is_waited_for,
            wait_seconds: rule.action.acts().then_some(wait_seconds),
        })
    }

    fn terminated(&mut self, target: &ProcessTarget, now_seconds: f64, rehearsed: bool) {
        let process = self.process_mut(target, now_seconds);
        process.terminated_seconds = Some(now_seconds);
        process.seen = ObservedTime::begin(now_seconds);
        process.rehearsed |= rehearsed;
    }

    fn process_mut(&mut self, target: &ProcessTarget, now_seconds: f64) -> &mut ProcessHistory {
        let new = || ProcessHistory {
            start_time_ticks: target.start_time_ticks,
            seen: ObservedTime::begin(now_seconds),
            ..ProcessHistory::default()
        };
        let host = self.hosts.entry(target.hostname.clone()).or_default();
        let process = host.processes.entry(target.pid).or_insert_with(new);
        if process.start_time_ticks != target.start_time_ticks {
            *process = new();
        }
        process
    }

    fn attachment_mut(&mut self, target: &AttachmentTarget) -> &mut AttachmentHistory {
        let host = self.hosts.entry(target.hostname.clone()).or_default();
        let attachments = host.attachments.entry(target.eid.clone()).or_default();
        let new = || AttachmentHistory { attached_seconds: target.attached_seconds, ..AttachmentHistory::default() };
        let attachment = attachments.entry(target.gpu).or_insert_with(new);
        if attachment.attached_seconds != target.attached_seconds {
            *attachment = new();
        }
        attachment
    }
}
