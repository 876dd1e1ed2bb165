//! Who may change an environment, and whether an attachment is still the one that was seen.

use super::refusal::Refusal;
use super::request::{Permission, SeenAttachment};
use super::state::{EditableState, no_such};
use crate::state::data::{DeviceState, EnvironmentState};

impl EditableState {
    /// Checks that an environment exists and is the user's.
    ///
    /// # Errors
    /// There is no such environment, or it is another user's.
    pub(super) fn check_own(&self, eid: &str, uid: u32, task: &'static str) -> Result<(), Refusal> {
        let found = self.environment(eid).ok_or_else(|| no_such(eid))?;
        check_owner(found, uid, task)
    }

    /// Checks the permission of a user to change an environment. With [`Permission::OwnerOrRoot`] the environment need
    /// not exist.
    ///
    /// # Errors
    /// The user may not change it.
    pub(super) fn check(&self, permission: Permission, eid: &str, uid: u32, task: &'static str) -> Result<(), Refusal> {
        match permission {
            Permission::Owner => self.check_own(eid, uid, task),
            Permission::OwnerOrRoot => self.check_may_change(eid, uid, task),
        }
    }

    /// Checks that the user may change an environment, if it exists.
    ///
    /// # Errors
    /// The environment belongs to another user.
    pub(super) fn check_may_change(&self, eid: &str, uid: u32, task: &'static str) -> Result<(), Refusal> {
        match self.environment(eid) {
            Some(it) => check_owner_or_root(it.uid, uid, || task_of(task, eid)),
            None => Ok(()),
        }
    }

    /// Checks that the user may be in an environment, if it exists.
    ///
    /// # Errors
    /// The environment belongs to another user.
    pub(super) fn check_may_enter(&self, eid: &str, uid: u32) -> Result<(), Refusal> {
        match self.environment(eid) {
            Some(environment) => check_owner(environment, uid, "activate"),
            None => Ok(()),
        }
    }

    /// Checks that the user may end all environments.
    ///
    /// # Errors
    /// One of them belongs to another user.
    pub(super) fn check_reset_environments(&self, uid: u32) -> Result<(), Refusal> {
        self.environments.iter().try_for_each(|it| self.check_may_change(&it.eid, uid, "end"))
    }

    /// Checks that the user may detach all devices.
    ///
    /// # Errors
    /// An environment with devices belongs to another user.
    pub(super) fn check_reset_devices(&self, uid: u32) -> Result<(), Refusal> {
        let mut attachments = self.devices.iter().flat_map(|it| &it.attachments);
        attachments.try_for_each(|it| self.check_may_change(&it.eid, uid, "detach"))
    }
}

impl SeenAttachment {
    /// Checks that the attachment is still the same.
    ///
    /// # Errors
    /// It is not; the text is the difference.
    pub fn check(&self, environments: &[EnvironmentState], devices: &[DeviceState]) -> Result<(), Refusal> {
        let environment = environments.iter().find(|it| it.eid == self.eid);
        let attachments = devices.iter().filter(|it| it.index == self.index).flat_map(|it| &it.attachments);
        #[expect(clippy::cast_possible_truncation, reason = "clocks show less than the year 9999")]
        let whole_seconds = |seconds: f64| seconds.floor() as i64;
        let attached = attachments.filter(|it| it.eid == self.eid).map(|it| it.attached_timestamp_seconds).next();
        let difference = match (environment, attached) {
            (None, _) => "the environment has ended",
            (Some(it), _) if it.uid != self.uid => "the environment is another user's now",
            (Some(_), None) => "the environment is not attached to it any more",
            (Some(_), Some(now)) => match (now.map(whole_seconds), self.attached_seconds) {
                (Some(now), Some(seen)) if now != seen => "the environment was attached to it anew since",
                _ => return Ok(()),
            },
        };
        Err(Refusal::AttachmentChanged(difference))
    }
}

/// Checks that an environment belongs to a user.
///
/// # Errors
/// The environment belongs to another user.
fn check_owner(environment: &EnvironmentState, uid: u32, task: &'static str) -> Result<(), Refusal> {
    if environment.uid == uid {
        return Ok(());
    }
    Err(Refusal::NotOwner { task, eid: environment.eid.clone(), uid: environment.uid })
}

/// Checks that a user is the owner or root.
///
/// # Errors
/// It is another user.
pub(super) fn check_owner_or_root(owner: u32, uid: u32, task: impl FnOnce() -> String) -> Result<(), Refusal> {
    if [0, owner].contains(&uid) {
        return Ok(());
    }
    Err(Refusal::NotOwnerOrRoot { task: task(), uid: owner })
}

fn task_of(task: &str, eid: &str) -> String {
    format!("{task} environment {}", eid.escape_debug())
}
