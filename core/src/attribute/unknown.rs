//! The users of processes whose attribution is unknown.

use super::reason;
use crate::model::{Attribution, Process};

/// The user of a process whose attribution is unknown. Absent if the process may belong to any user: its uid could not
/// be read, or it runs as root in a container or as a descendant of another user's process. Such a process works for
/// the user who started it, and that user is not known.
pub fn unknown_owner(process: &Process) -> Option<&str> {
    let username = process.username.as_deref()?;
    let is_root = process.uid.is_none_or(|uid| uid == 0) || username == "root";
    let in_container = process.container_id.as_ref().is_some_and(|id| !id.is_empty());
    let is_of_container = in_container && (is_root || username.starts_with("container"));
    let may_be_any_users = is_of_container || (is_root && changed_user(&process.attribution));
    (!may_be_any_users).then_some(username)
}

/// Whether a process may work for a user other than the one that it runs as, as with sudo.
pub fn changed_user(attribution: &Attribution) -> bool {
    match attribution {
        Attribution::Unknown { reason } => [reason::USER_CHANGED, reason::USERS_DIFFER].contains(&reason.as_str()),
        Attribution::Environment { .. } | Attribution::Outside { .. } => false,
    }
}

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
            attribution: Attribution::Unknown { reason: why.to_owned() },
            devices: Vec::new(),
        }
    }

    #[test]
    fn an_unknown_process_belongs_to_its_uid_unless_it_may_work_for_any_user() {
        for (uid, username, in_container, why, expected) in [
            (Some(2001), Some("alice"), false, "environ_empty", Some("alice")),
            (Some(2001), Some("uid:2001"), false, "environ_empty", Some("uid:2001")),
            (Some(0), Some("root"), false, "environ_empty", Some("root")),
            // sudo in an environment: the user who called it is not known.
            (Some(0), Some("root"), false, "user_changed", None),
            (Some(0), Some("root"), false, "users_differ", None),
            (Some(2002), Some("bob"), false, "user_changed", Some("bob")),
            (None, None, false, "vanished", None),
            (Some(2001), None, false, "vanished", None),
            // A process of a rootless container belongs to the owner; the user of a Docker container is not known.
            (Some(100_000), Some("alice"), true, "environ_empty", Some("alice")),
            (Some(0), Some("root"), true, "environ_empty", None),
            (Some(0), Some("container:3f4e"), true, "environ_empty", None),
        ] {
            let process = process(uid, username, in_container, why);
            assert_eq!(unknown_owner(&process), expected, "{process:?}");
        }
    }
}
