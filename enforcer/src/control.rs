//! What administrators tell a running daemon: `control.json`, which the commands `pause` and `waive` write and the daemon
//! reads each cycle. Who may write the enforcer's directory may tell it, and nobody else.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Waiver;
use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The file.
pub(crate) const CONTROL_FILE: &str = "control.json";

/// Held while it is changed.
const CONTROL_LOCK: &str = "control.lock";

/// How long a command waits for another.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Control {
    /// Unix time until which everything waits.
    pub(crate) paused_until_seconds: Option<f64>,
    /// Exemptions.
    pub(crate) waivers: Vec<GivenWaiver>,
}

/// An exemption that was given while the daemon ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenWaiver {
    /// Whom it is for.
    pub(crate) user: String,
    /// Names of the rules that it is from.
    pub(crate) rules: BTreeSet<String>,
    /// Unix time of its end.
    pub(crate) until_seconds: f64,
    /// Why.
    pub(crate) reason: String,
    /// Unix time at which it was given.
    pub(crate) given_seconds: f64,
}

/// What was told could not be learned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It was written by hand, and not well.
    #[error("cannot use {path}: it is damaged ({why}): give pauses and waivers again, and the command sets it aside")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

impl Control {
    /// What was told and is not over yet.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub(crate) fn read(directory: &RuntimeDirectory, now_seconds: f64) -> Result<Self, ControlError> {
        let Some(content) = directory.read(CONTROL_FILE)? else {
            return Ok(Self::default());
        };
        let control: Self = serde_json::from_slice(&content).map_err(|error| ControlError::Damaged {
            path: directory.path().join(CONTROL_FILE).display().to_string(),
            why: error.to_string(),
        })?;
        Ok(control.without_expired(now_seconds))
    }

    /// Changes what is told. A damaged file is set aside first; its new name is returned.
    ///
    /// # Errors
    /// The directory cannot be written, or somebody else changes it for all that time.
    pub(crate) fn change(
        directory: &RuntimeDirectory,
        now_seconds: f64,
        change: impl FnOnce(&mut Self),
    ) -> Result<Option<String>, FileError> {
        let _lock = directory.lock(CONTROL_LOCK, PATIENCE)?;
        let (mut control, aside) = match Self::read(directory, now_seconds) {
            Ok(control) => (control, None),
            Err(ControlError::Damaged { .. }) => (Self::default(), Some(directory.set_aside(CONTROL_FILE)?)),
            Err(ControlError::File(error)) => return Err(error),
        };
        change(&mut control);
        let content = serde_json::to_vec_pretty(&control.without_expired(now_seconds))
            .expect("a structure of numbers and texts is JSON");
        directory.replace(CONTROL_FILE, &content, Audience::Own)?;
        Ok(aside)
    }

    /// The exemptions as the rules take them.
    #[must_use]
    pub(crate) fn waivers(&self) -> Vec<Waiver> {
        let waivers = self.waivers.iter().map(|waiver| Waiver {
            users: [waiver.user.clone()].into(),
            rules: waiver.rules.clone(),
            until_seconds: waiver.until_seconds,
            reason: waiver.reason.clone(),
        });
        waivers.collect()
    }

    /// Gives a user an exemption from rules, in place of what was given from each of them before.
    pub(crate) fn waive(&mut self, waiver: GivenWaiver) {
        for earlier in self.waivers.iter_mut().filter(|it| it.user == waiver.user) {
            earlier.rules.retain(|rule| !waiver.rules.contains(rule));
        }
        // One without rules would be from all.
        self.waivers.retain(|it| it.user != waiver.user || !it.rules.is_empty());
        self.waivers.push(waiver);
    }

    fn without_expired(mut self, now_seconds: f64) -> Self {
        self.paused_until_seconds = self.paused_until_seconds.filter(|until| *until > now_seconds);
        self.waivers.retain(|it| it.until_seconds > now_seconds);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn waiver(rule: &str, until_seconds: f64) -> GivenWaiver {
        GivenWaiver {
            user: "alice".to_owned(),
            rules: [rule.to_owned()].into(),
            until_seconds,
            reason: "deadline\n\"".to_owned(),
            given_seconds: 0.0,
        }
    }

    #[test]
    fn what_is_told_is_read_until_it_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        assert_eq!(Control::read(&directory, 0.0).unwrap(), Control::default());
        let told = Control::change(&directory, 0.0, |control| {
            control.paused_until_seconds = Some(10.0);
            control.waive(waiver("idle", 20.0));
            control.waive(waiver("idle", 30.0));
            control.waive(waiver("max-age", 20.0));
        });
        assert_eq!(told.unwrap(), None);
        let read = Control::read(&directory, 5.0).unwrap();
        assert_eq!(read.paused_until_seconds, Some(10.0));
        assert_eq!(read.waivers, [waiver("idle", 30.0), waiver("max-age", 20.0)]);
        let read = Control::read(&directory, 25.0).unwrap();
        assert_eq!(read.paused_until_seconds, None);
        assert_eq!(read.waivers, [waiver("idle", 30.0)]);
        Control::change(&directory, 31.0, |_| {}).unwrap();
        let kept = fs::read_to_string(folder.path().join(CONTROL_FILE)).unwrap();
        assert!(!kept.contains("alice"), "{kept}");
    }

    #[test]
    fn an_exemption_from_several_rules_is_taken_back_rule_by_rule() {
        let several = GivenWaiver { rules: ["idle".to_owned(), "max-age".to_owned()].into(), ..waiver("idle", 20.0) };
        let bobs = GivenWaiver { user: "bob".to_owned(), ..several.clone() };
        let mut control = Control::default();
        control.waive(several);
        control.waive(bobs.clone());
        control.waive(waiver("idle", 0.0));
        let left = control.clone().without_expired(1.0).waivers;
        assert_eq!(left, [waiver("max-age", 20.0), bobs.clone()]);
        control.waive(waiver("max-age", 0.0));
        assert_eq!(control.without_expired(1.0).waivers, [bobs]);
    }

    #[test]
    fn a_damaged_file_is_an_error_until_a_command_sets_it_aside() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        directory.replace(CONTROL_FILE, b"{\"paused\": 1}", Audience::Own).unwrap();
        let error = Control::read(&directory, 0.0).unwrap_err();
        assert!(matches!(error, ControlError::Damaged { .. }), "{error}");
        let aside = Control::change(&directory, 0.0, |_| {}).unwrap();
        assert!(folder.path().join(aside.unwrap()).exists());
        assert_eq!(Control::read(&directory, 0.0).unwrap(), Control::default());
    }
}
