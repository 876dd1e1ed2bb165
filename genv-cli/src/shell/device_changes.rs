//! One line about the changes of a shell's devices since its last check.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use genv_core::enforcement::{DONE_FILE, ENFORCER_DIRECTORY, Enforcement, HeldViolation};
use genv_core::proc::{own_uid, username};
use genv_core::state::State;

use super::variables::visible;
use crate::output::harmless;

/// The devices of a shell's environment, as last shown and now.
#[derive(Debug)]
pub(super) struct DeviceChanges<'a> {
    pub(super) state: &'a State,
    pub(super) eid: &'a str,
    /// The time of the shell's last check, if known.
    pub(super) seen: Option<SystemTime>,
    /// The last value that genv gave `CUDA_VISIBLE_DEVICES`.
    pub(super) before: Option<OsString>,
    /// The value that the user has given this variable since then.
    pub(super) users: Option<OsString>,
    /// The present devices.
    pub(super) now: &'a [u32],
}

impl DeviceChanges<'_> {
    /// The line; absent if the devices have not changed.
    pub(super) fn line(&self) -> Option<String> {
        let before: BTreeSet<u32> = indices(self.before.as_ref()?);
        let now: BTreeSet<u32> = self.now.iter().copied().collect();
        let gone: Vec<u32> = before.difference(&now).copied().collect();
        let new: Vec<u32> = now.difference(&before).copied().collect();
        if gone.is_empty() && new.is_empty() {
            return None;
        }
        let done = if gone.is_empty() {
            Enforcement::default()
        } else {
            let read = Enforcement::read_file(&Path::new(ENFORCER_DIRECTORY).join(DONE_FILE));
            read.ok().flatten().unwrap_or_default()
        };
        let mut causes: Vec<(Cause, Vec<u32>)> = Vec::new();
        for index in gone {
            let cause = self.cause(index, &done.violations);
            match causes.iter_mut().find(|it| it.0 == cause) {
                Some((_, devices)) => devices.push(index),
                None => causes.push((cause, vec![index])),
            }
        }
        let clauses = causes.iter().map(|(cause, gone)| cause.clause(gone));
        let mut clauses: Vec<String> = clauses.collect();
        if !new.is_empty() {
            clauses.push(format!("{} attached by another command", were(&new)));
        }
        let shown = visible(self.now);
        let shown = shown.to_string_lossy();
        let effect = match &self.users {
            None => format!("CUDA_VISIBLE_DEVICES is {shown} now"),
            Some(users) => format!(
                "CUDA_VISIBLE_DEVICES stays {} because you have set it: 'genv attach --refresh' sets it to {shown}",
                harmless(&users.to_string_lossy())
            ),
        };
        Some(format!("{}. {effect}", clauses.join("; ")))
    }

    fn cause(&self, index: u32, done: &[HeldViolation]) -> Cause {
        // The text of the enforcer. The ended processes may follow.
        let taken = format!("device {index} of environment {}", self.eid);
        let is_taken = |target: &String| {
            let rest = target.strip_prefix(&taken);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
        };
        let since = self.seen.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let since = since.unwrap_or_default().as_secs_f64();
        let by_rule = done.iter().rev().find(|it| {
            it.uid == Some(own_uid())
                && it.stage == "acted"
                && it.targets.iter().any(is_taken)
                && it.at_seconds.is_some_and(|at| at >= since)
        });
        if let Some(it) = by_rule {
            return Cause::Rule { rule: it.rule.clone(), found: it.found.clone() };
        }
        let device = self.state.devices.iter().find(|it| it.index == index);
        let holder = device.and_then(|it| it.attachments.first());
        let holder = holder.and_then(|holder| {
            let mut environments = self.state.environments.iter();
            environments.find(|it| it.eid == holder.eid)
        });
        Cause::Command { holder: holder.map(|it| (it.eid.clone(), it.uid)) }
    }
}

/// The cause of a device's removal.
#[derive(Debug, PartialEq)]
enum Cause {
    /// The enforcer, by a rule.
    Rule { rule: String, found: String },
    /// Another command. The device may have a new holder: an environment and its user.
    Command { holder: Option<(String, u32)> },
}

impl Cause {
    fn clause(&self, devices: &[u32]) -> String {
        match self {
            Self::Rule { rule, found } => format!(
                "the enforcer detached {} by the rule {} ({}): 'genv why' shows more",
                named(devices),
                harmless(rule),
                harmless(found)
            ),
            Self::Command { holder } => {
                let now_held = holder.as_ref().map(|(eid, uid)| {
                    format!(
                        ", and environment {} of {} has {} now",
                        harmless(eid),
                        harmless(&username(*uid)),
                        if devices.len() == 1 { "it" } else { "them" }
                    )
                });
                format!("{} detached by another command{}", were(devices), now_held.unwrap_or_default())
            }
        }
    }
}

/// `device 1 was`, `devices 1, 2 were`.
fn were(devices: &[u32]) -> String {
    let verb = if devices.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", named(devices))
}

/// `device 1`, `devices 1, 2`.
fn named(devices: &[u32]) -> String {
    let indices: Vec<String> = devices.iter().map(u32::to_string).collect();
    match &indices[..] {
        [one] => format!("device {one}"),
        several => format!("devices {}", several.join(", ")),
    }
}

fn indices(shown: &OsString) -> BTreeSet<u32> {
    let text = shown.to_string_lossy();
    text.split(',').filter_map(|it| it.parse().ok()).collect()
}
