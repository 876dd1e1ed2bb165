//! Processes of which it is not known where they belong: by user, and whose use of a device they hide.

use std::collections::BTreeSet;

/// The username under which unknown processes are counted whose user is not known.
pub(crate) const UNKNOWN_USER: &str = "(unknown)";

/// The unknown processes on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnknownUses<'a> {
    /// One of them may be of any user.
    of_anybody: bool,
    of_users: BTreeSet<&'a str>,
}

impl<'a> UnknownUses<'a> {
    pub(super) fn add(&mut self, owner: Option<&'a str>) {
        match owner {
            Some(owner) => _ = self.of_users.insert(owner),
            None => self.of_anybody = true,
        }
    }

    /// Whether one of them may be of this user, so that nothing shows how much the user makes of the GPU.
    pub(super) fn may_be_of(&self, username: &str) -> bool {
        self.of_anybody || self.are_of(username)
    }

    /// Whether one of them is of this user.
    pub(super) fn are_of(&self, username: &str) -> bool {
        self.of_users.contains(username)
    }
}
