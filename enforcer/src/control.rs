//! Pauses and waivers for a running daemon. The commands `pause` and `waive` write `control.json`, and the daemon reads it
//! each cycle. Only users who may write the enforcer's directory can change the file.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Waiver;
use crate::directory::{Audience, FileError, RuntimeDirectory};

pub(crate) const CONTROL_FILE: &str = "control.json";

/// The lock for changes of the file.
const CONTROL_LOCK: &str = "control.lock";

/// How long a command waits for the lock.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Control {
    /// The end of the pause of all warnings and actions, Unix time.
    pub(crate) paused_until_seconds: Option<f64>,
    pub(crate) waivers: Vec<GivenWaiver>,
}

/// A waiver from the command `waive`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenWaiver {
    pub(crate) user: String,
    /// The names of the waived rules.
    pub(crate) rules: BTreeSet<String>,
    /// Unix time of its end.
    pub(crate) until_seconds: f64,
    /// Why.
    pub(crate) reason: String,
    /// Unix time at which it was given.
    pub(crate) given_seconds: f64,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has another format, for example after an edit by hand.
    #[error("cannot use {path}: it is damaged ({why}): give pauses and waivers again, and the command sets it aside")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

impl Control {
    /// Reads the pause and the waivers that have not ended.
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

    /// Changes the file. A damaged file is set aside first, and its new name is returned.
    ///
    /// # Errors
    /// The directory cannot be written, or another command holds the lock too long.
    pub(crate) fn change(
        directory: &RuntimeDirectory,
        now_seconds: f64,
        change: impl FnOnce(&mut Self),
    ) -> Result<Option<String>, FileError> {
        let _lock = directory.lock(CONTROL_LOCK, TIMEOUT)?;
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

    /// The waivers as the plan takes them.
    pub(crate) fn waivers(&self) -> Vec<Waiver> {
        let waivers = self.waivers.iter().map(|waiver| Waiver {
            users: [waiver.user.clone()].into(),
            rules: waiver.rules.clone(),
            until_seconds: waiver.until_seconds,
            reason: waiver.reason.clone(),
        });
        waivers.collect()
    }

    /// Adds a waiver. It replaces the user's earlier waivers of the same rules.
    pub(crate) fn waive(&mut self, waiver: GivenWaiver) {
        for earlier in self.waivers.iter_mut().filter(|it| it.user == waiver.user) {
            earlier.rules.retain(|rule| !waiver.rules.contains(rule));
        }
        // A waiver without rules would waive all rules.
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
    fn a_pause_and_waivers_are_read_until_they_end() {
        let (folder, directory) = RuntimeDirectory::temporary();
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
        let (folder, directory) = RuntimeDirectory::temporary();
        directory.replace(CONTROL_FILE, b"{\"paused\": 1}", Audience::Own).unwrap();
        let error = Control::read(&directory, 0.0).unwrap_err();
        assert!(matches!(error, ControlError::Damaged { .. }), "{error}");
        let aside = Control::change(&directory, 0.0, |_| {}).unwrap();
        assert!(folder.path().join(aside.unwrap()).exists());
        assert_eq!(Control::read(&directory, 0.0).unwrap(), Control::default());
    }
}
