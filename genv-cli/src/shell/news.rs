//! One line about the changes of a shell's devices since the shell's last look.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use genv_core::enforcement::{DONE_FILE, ENFORCER_DIRECTORY, Enforcement, HeldViolation};
use genv_core::proc::{own_uid, username};
use genv_core::state::State;

use super::variables::visible;
use crate::output::harmless;

/// A shell's environment, as last shown and as it is.
#[derive(Debug)]
pub(super) struct News<'a> {
    pub(super) state: &'a State,
    pub(super) eid: &'a str,
    /// The time of the shell's last look, if known.
    pub(super) seen: Option<SystemTime>,
    /// The value that genv gave `CUDA_VISIBLE_DEVICES` then.
    pub(super) before: Option<OsString>,
    /// The value that the user has given it since.
    pub(super) users: Option<OsString>,
    /// The devices now.
    pub(super) now: &'a [u32],
}

impl News<'_> {
    /// Nothing if the devices are the same.
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
        let mut clauses: Vec<String> = gone
            .into_iter()
            .map(|index| self.gone(index, &done.violations))
            .collect();
        if !new.is_empty() {
            clauses.push(format!("{} attached by another command", named(&new)));
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

    /// The cause of a device's removal, and its new holder.
    fn gone(&self, index: u32, done: &[HeldViolation]) -> String {
        let subject = format!("environment {} on device {index}", self.eid);
        let since = self.seen.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let since = since.unwrap_or_default().as_secs_f64();
        let by_rule = done.iter().rev().find(|it| {
            it.uid == Some(own_uid())
                && it.subject == subject
                && it.stage == "acted"
                && it.at_seconds.is_some_and(|at| at >= since)
        });
        if let Some(it) = by_rule {
            return format!(
                "the enforcer detached device {index} by the rule {} ({}): 'genv why' tells more",
                harmless(&it.rule),
                harmless(&it.found)
            );
        }
        let device = self.state.devices.iter().find(|it| it.index == index);
        let holder = device.and_then(|it| it.attachments.first());
        let holder = holder.and_then(|holder| {
            let mut environments = self.state.environments.iter();
            environments.find(|it| it.eid == holder.eid)
        });
        let now_held = holder.map(|it| {
            format!(
                ", and environment {} of {} has it now",
                harmless(&it.eid),
                harmless(&username(it.uid))
            )
        });
        format!(
            "{} detached by another command{}",
            named(&[index]),
            now_held.unwrap_or_default()
        )
    }
}

/// `device 1 was`, `devices 1, 2 were`.
fn named(devices: &[u32]) -> String {
    let indices: Vec<String> = devices.iter().map(u32::to_string).collect();
    match &indices[..] {
        [one] => format!("device {one} was"),
        several => format!("devices {} were", several.join(", ")),
    }
}

fn indices(shown: &OsString) -> BTreeSet<u32> {
    let text = shown.to_string_lossy();
    text.split(',').filter_map(|it| it.parse().ok()).collect()
}
