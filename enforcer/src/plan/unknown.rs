//! Processes of which it is not known where they belong: by user, and whose use of a device they hide.

use std::collections::BTreeSet;

use genv_core::model::{Attribution, Process};

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

/// Whose process it is of which it is not known where it belongs; absent if it may be anybody's: its uid could not be read,
/// or it runs as root in a container or below another user's process, and root works for whoever may start it.
pub(super) fn owner(process: &Process) -> Option<&str> {
    let username = process.username.as_deref()?;
    let is_root = process.uid.is_none_or(|uid| uid == 0) || username == "root";
    let in_container = process
        .container_id
        .as_ref()
        .is_some_and(|id| !id.is_empty());
    let of_container = in_container && (is_root || username.starts_with("container"));
    let took_over = match &process.attribution {
        Attribution::Unknown { reason } => TOOK_OVER.contains(&reason.as_str()),
        Attribution::Environment { .. } | Attribution::Outside { .. } => false,
    };
    let may_be_anybodys = of_container || (is_root && took_over);
    (!may_be_anybodys).then_some(username)
}

/// Reasons of attribution by which a process may do the work of the user who started it as another one, as with sudo.
const TOOK_OVER: [&str; 2] = ["user_changed", "users_differ"];

#[cfg(test)]
mod tests {
    use super::*;

    fn process(uid: Option<u32>, username: Option<&str>, in_container: bool, why: &str) -> Process {
        Process {
            pid: 10,
            start_time_ticks: Some(1),
            uid,
            username: username.map(str::to_owned),
            comm: None,
            container_id: in_container.then(|| "3f4e".to_owned()),
            attribution: Attribution::Unknown {
                reason: why.to_owned(),
            },
            devices: Vec::new(),
        }
    }

    #[test]
    fn an_unknown_process_is_its_users_unless_it_may_be_anybodys() {
        for (uid, username, in_container, why, expected) in [
            (
                Some(2001),
                Some("alice"),
                false,
                "environ_empty",
                Some("alice"),
            ),
            (
                Some(2001),
                Some("uid:2001"),
                false,
                "environ_empty",
                Some("uid:2001"),
            ),
            (Some(0), Some("root"), false, "environ_empty", Some("root")),
            // sudo in an environment, by whom it cannot be told.
            (Some(0), Some("root"), false, "user_changed", None),
            (Some(0), Some("root"), false, "users_differ", None),
            (Some(2002), Some("bob"), false, "user_changed", Some("bob")),
            (None, None, false, "vanished", None),
            (Some(2001), None, false, "vanished", None),
            // A rootless container's process is its owner's; whose one of Docker is cannot be told.
            (
                Some(100_000),
                Some("alice"),
                true,
                "environ_empty",
                Some("alice"),
            ),
            (Some(0), Some("root"), true, "environ_empty", None),
            (Some(0), Some("container:3f4e"), true, "environ_empty", None),
        ] {
            let process = process(uid, username, in_container, why);
            assert_eq!(owner(&process), expected, "{process:?}");
        }
    }
}
