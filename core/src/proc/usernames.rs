//! Names of users.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::text::harmless;

/// How long a name is kept: name services are slow, and names rarely change.
const NAME_LIFETIME: Duration = Duration::from_secs(300);

/// How long a missing name is kept: a directory service may have been unreachable.
const NO_NAME_LIFETIME: Duration = Duration::from_secs(30);

/// The most users in the cache.
const MOST_USERS: usize = 4096;

/// The name of a user: the passwd name, else `uid:1234`. The call may wait for the network.
pub fn username(uid: u32) -> String {
    Usernames::default().username(uid)
}

/// The passwd name of a user, if it is not empty and valid UTF-8. The call may wait for the network.
pub fn find_username(uid: u32) -> Option<String> {
    usable(look_up(uid))
}

/// `root(0)`, or `54321` without a name. The call may wait for the network: do not make it while the state is locked.
pub fn user_phrase(uid: u32) -> String {
    user_phrase_of(uid, find_username(uid).as_deref())
}

/// `root(0)`, or `54321` without a name.
pub fn user_phrase_of(uid: u32, name: Option<&str>) -> String {
    name.map_or_else(|| uid.to_string(), |name| format!("{}({uid})", harmless(name)))
}

/// Asks the name service (getpwuid_r(3)).
fn look_up(uid: u32) -> Option<OsString> {
    uzers::get_user_by_uid(uid).map(|user| user.name().to_owned())
}

fn usable(name: Option<OsString>) -> Option<String> {
    let name = name.and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty())
}

/// Usernames by uid, from the name service switch, remembered for a while.
#[derive(Debug, Default)]
pub(super) struct Usernames {
    known: HashMap<u32, CachedName>,
}

#[derive(Clone, Debug)]
struct CachedName {
    name: Option<String>,
    until: Instant,
}

impl Usernames {
    /// The passwd name of a user, else `uid:1234`. A name that is empty or not UTF-8 does not count.
    ///
    /// The call may ask the name service (getpwuid_r(3)) and wait for the network.
    pub(super) fn username(&mut self, uid: u32) -> String {
        self.username_at(uid, Instant::now(), look_up)
    }

    /// Whether the uid has an account.
    pub(super) fn is_named(&mut self, uid: u32) -> bool {
        self.name(uid, Instant::now(), look_up).is_some()
    }

    fn username_at(&mut self, uid: u32, now: Instant, look_up: impl FnOnce(u32) -> Option<OsString>) -> String {
        let name = self.name(uid, now, look_up);
        name.unwrap_or_else(|| format!("uid:{uid}"))
    }

    fn name(&mut self, uid: u32, now: Instant, look_up: impl FnOnce(u32) -> Option<OsString>) -> Option<String> {
        let known = self.known.get(&uid);
        if let Some(known) = known.filter(|known| now < known.until) {
            return known.name.clone();
        }
        let found = usable(look_up(uid));
        let lifetime = if found.is_some() { NAME_LIFETIME } else { NO_NAME_LIFETIME };
        // getpwuid(3) has the same result for a removed user and for a directory that is down. An old name is better
        // than a series that changes its labels.
        let name = found.or_else(|| known.and_then(|known| known.name.clone()));
        if self.known.len() >= MOST_USERS && known.is_none() {
            self.known.clear();
        }
        let until = now + lifetime;
        self.known.insert(uid, CachedName { name: name.clone(), until });
        name
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn named(name: &str) -> impl FnOnce(u32) -> Option<OsString> {
        let name = name.to_owned();
        move |_| Some(name.into())
    }

    fn never(uid: u32) -> Option<OsString> {
        panic!("asked for {uid}, which is known")
    }

    #[test]
    fn root_has_its_name_and_an_unknown_user_the_uid() {
        let mut names = Usernames::default();
        assert_eq!(names.username(0), "root");
        assert_eq!(names.username(3_999_999_999), "uid:3999999999");
    }

    #[test]
    fn an_old_name_is_looked_up_again() {
        let mut names = Usernames::default();
        let start = Instant::now();
        assert_eq!(names.username_at(7, start, named("alice")), "alice");
        let later = start + NAME_LIFETIME - Duration::from_secs(1);
        assert_eq!(names.username_at(7, later, never), "alice");
        let old = start + NAME_LIFETIME;
        assert_eq!(names.username_at(7, old, named("alicia")), "alicia");
    }

    #[test]
    fn a_directory_that_is_down_removes_no_name() {
        let mut names = Usernames::default();
        let start = Instant::now();
        assert_eq!(names.username_at(7, start, |_| None), "uid:7");
        assert_eq!(names.username_at(7, start, never), "uid:7");
        let up = start + NO_NAME_LIFETIME;
        assert_eq!(names.username_at(7, up, named("alice")), "alice");
        let down = up + NAME_LIFETIME;
        assert_eq!(names.username_at(7, down, |_| None), "alice");
    }

    #[test]
    fn a_name_that_cannot_be_a_label_does_not_count() {
        let mut names = Usernames::default();
        let now = Instant::now();
        assert_eq!(names.username_at(7, now, named("")), "uid:7");
        let broken = |_| Some(OsString::from_vec(vec![0xff]));
        assert_eq!(names.username_at(8, now, broken), "uid:8");
    }

    #[test]
    fn ever_new_users_do_not_fill_the_memory() {
        let mut names = Usernames::default();
        let now = Instant::now();
        for uid in 0..20_000 {
            names.username_at(uid, now, |_| None);
        }
        assert!(names.known.len() <= MOST_USERS);
    }
}
