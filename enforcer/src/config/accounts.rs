//! Users and groups, as the machine knows them.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::text::harmless;

/// Answers about users and groups. They may take as long as a directory service does.
pub trait Accounts {
    /// The name of the user of this name, or with the uid of `uid:1234`; absent if there is no such user. A directory service
    /// may find a user by another spelling than its own, for example in capitals.
    fn user_name(&self, username: &str) -> Option<String>;

    /// The uid of a user, by name or as `uid:1234`; absent if it cannot be told.
    fn uid_of(&self, username: &str) -> Option<u32>;

    /// The name of the Unix group of this name; absent if there is no such group.
    fn group_name(&self, group: &str) -> Option<String>;

    /// The names of a user's Unix groups, the primary one among them. Nothing if they cannot be told: the user is not
    /// known, or the directory is down (getpwnam_r(3) tells these hardly apart). That is not the same as no group: the
    /// limit of a group that was not seen may be the higher one.
    fn groups_of(&self, username: &str) -> Option<BTreeSet<String>>;
}

/// Whether a text can be the name of a user or a group. Directory services have names with spaces, commas and backslashes, such
/// as `domain users` and `CORP\ann`, which files and scripts of this program quote.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && harmless(text) == text
}

/// The name service switch (nsswitch.conf(5)): getpwnam_r(3), getgrnam_r(3), getgrouplist(3).
#[derive(Clone, Copy, Debug, Default)]
pub struct NameService;

impl Accounts for NameService {
    fn user_name(&self, username: &str) -> Option<String> {
        user(username)?.name().to_str().map(str::to_owned)
    }

    fn uid_of(&self, username: &str) -> Option<u32> {
        user(username).map(|user| user.uid())
    }

    fn group_name(&self, group: &str) -> Option<String> {
        if group.contains('\0') {
            return None;
        }
        uzers::get_group_by_name(group)?.name().to_str().map(str::to_owned)
    }

    fn groups_of(&self, username: &str) -> Option<BTreeSet<String>> {
        let user = user(username)?;
        let groups = uzers::get_user_groups(user.name(), user.primary_group_id())?;
        let names = groups.iter().filter_map(|group| group.name().to_str());
        Some(names.map(str::to_owned).collect())
    }
}

fn user(username: &str) -> Option<uzers::User> {
    match username.strip_prefix("uid:").and_then(|uid| uid.parse().ok()) {
        Some(uid) => uzers::get_user_by_uid(uid),
        // A name with it cannot be handed to the C library.
        None if username.contains('\0') => None,
        None => uzers::get_user_by_name(username),
    }
}

/// Users with their groups, as tests and tests of rules state them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountTable {
    /// Each user's groups.
    pub users: BTreeMap<String, BTreeSet<String>>,
}

impl Accounts for AccountTable {
    fn user_name(&self, username: &str) -> Option<String> {
        self.users.contains_key(username).then(|| username.to_owned())
    }

    // Nobody says uids.
    fn uid_of(&self, _: &str) -> Option<u32> {
        None
    }

    fn group_name(&self, group: &str) -> Option<String> {
        self.users.values().any(|groups| groups.contains(group)).then(|| group.to_owned())
    }

    fn groups_of(&self, username: &str) -> Option<BTreeSet<String>> {
        self.users.get(username).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_service_knows_root_and_its_primary_group() {
        let root = Some("root".to_owned());
        assert_eq!([NameService.user_name("root"), NameService.user_name("uid:0")], [root.clone(), root.clone()]);
        assert_eq!(NameService.group_name("root"), root);
        assert!(NameService.groups_of("root").unwrap().contains("root"));
        assert_eq!(NameService.groups_of("uid:0"), NameService.groups_of("root"));
    }

    #[test]
    fn of_whom_the_name_service_does_not_know_no_groups_are_told() {
        for name in ["nobody-is-called-this", "", "ro\0ot", "uid:4294967294", "uid:", "uid:x"] {
            assert_eq!(NameService.user_name(name), None, "{name:?}");
            assert_eq!(NameService.groups_of(name), None, "{name:?}");
            assert_eq!(NameService.group_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_can_be_shown() {
        for (name, can_be) in
            [("alice", true), (r"CORP\ann", true), ("zoé o'hara", true), ("a\u{2028}b", false), ("a\u{202e}b", false)]
        {
            assert_eq!(is_name(name), can_be, "{name:?}");
        }
    }
}
