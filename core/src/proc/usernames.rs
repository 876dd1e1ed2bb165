//! What users are called.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long a name is believed: name services are slow, and names hardly ever change.
const NAME_LIFETIME: Duration = Duration::from_secs(300);

/// How long the lack of a name is believed: a directory service may just have been unreachable.
const NO_NAME_LIFETIME: Duration = Duration::from_secs(30);

/// Users remembered at once; whoever starts processes as more uids than this is not a person.
const MOST_USERS: usize = 4096;

/// The name of a user: the passwd name, else `uid:1234`. The call may wait for the network.
#[must_use]
pub fn username(uid: u32) -> String {
    Usernames::default().username(uid)
}

/// The passwd name of a user, if it is not empty and valid UTF-8. The call may wait for the network.
#[must_use]
pub fn find_username(uid: u32) -> Option<String> {
    usable(look_up(uid))
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
    known: HashMap<u32, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    name: Option<String>,
    until: Instant,
}

impl Usernames {
    /// What the user is called: the passwd name, else `uid:1234`. A name that is empty or not UTF-8 is none.
    ///
    /// May ask the name service (getpwuid_r(3)), and so wait for the network.
    pub(super) fn username(&mut self, uid: u32) -> String {
        self.username_at(uid, Instant::now(), look_up)
    }

    /// Whether there is a user of this uid by name.
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
        // getpwuid(3) does not tell a user who is gone from a directory that is down: a name that was
        // right is better than a series that changes its labels.
        let name = found.or_else(|| known.and_then(|known| known.name.clone()));
        if self.known.len() >= MOST_USERS && known.is_none() {
            self.known.clear();
        }
        let until = now + lifetime;
        self.known.insert(uid, Known { name: name.clone(), until });
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
        panic!("asked for {uid}, who is known")
    }

    #[test]
    fn root_is_called_root_and_a_stranger_by_his_uid() {
        let mut names = Usernames::default();
        assert_eq!(names.username(0), "root");
        assert_eq!(names.username(3_999_999_999), "uid:3999999999");
    }

    #[test]
    fn a_name_is_asked_for_again_when_it_is_old() {
        let mut names = Usernames::default();
        let start = Instant::now();
        assert_eq!(names.username_at(7, start, named("alice")), "alice");
        let later = start + NAME_LIFETIME - Duration::from_secs(1);
        assert_eq!(names.username_at(7, later, never), "alice");
        let old = start + NAME_LIFETIME;
        assert_eq!(names.username_at(7, old, named("alicia")), "alicia");
    }

    #[test]
    fn a_directory_that_is_down_takes_no_name_away() {
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
    fn names_that_are_no_label_are_none() {
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
