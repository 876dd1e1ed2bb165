//! Whose processes are of which it is not known where they belong.

use super::reason;
use crate::model::{Attribution, Process};

/// Whose process it is of which it is not known where it belongs; absent if it may be anybody's: its uid could not be read,
/// or it runs as root in a container or below another user's process, and root works for whoever may start it.
#[must_use]
pub fn unknown_owner(process: &Process) -> Option<&str> {
    let username = process.username.as_deref()?;
    let is_root = process.uid.is_none_or(|uid| uid == 0) || username == "root";
    let in_container = process.container_id.as_ref().is_some_and(|id| !id.is_empty());
    let of_container = in_container && (is_root || username.starts_with("container"));
    let may_be_anybodys = of_container || (is_root && changed_user(&process.attribution));
    (!may_be_anybodys).then_some(username)
}

/// Whether a process may do the work of the user who started it as another one, as with sudo.
#[must_use]
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
    fn an_unknown_process_is_its_users_unless_it_may_be_anybodys() {
        for (uid, username, in_container, why, expected) in [
            (Some(2001), Some("alice"), false, "environ_empty", Some("alice")),
            (Some(2001), Some("uid:2001"), false, "environ_empty", Some("uid:2001")),
            (Some(0), Some("root"), false, "environ_empty", Some("root")),
            // sudo in an environment, by whom it cannot be told.
            (Some(0), Some("root"), false, "user_changed", None),
            (Some(0), Some("root"), false, "users_differ", None),
            (Some(2002), Some("bob"), false, "user_changed", Some("bob")),
            (None, None, false, "vanished", None),
            (Some(2001), None, false, "vanished", None),
            // A rootless container's process is its owner's; whose one of Docker is cannot be told.
            (Some(100_000), Some("alice"), true, "environ_empty", Some("alice")),
            (Some(0), Some("root"), true, "environ_empty", None),
            (Some(0), Some("container:3f4e"), true, "environ_empty", None),
        ] {
            let process = process(uid, username, in_container, why);
            assert_eq!(unknown_owner(&process), expected, "{process:?}");
        }
    }
}
