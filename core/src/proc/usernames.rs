//! What users are called.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

/// How long a name is believed: name services are slow, and names hardly ever change.
const NAME_LIFETIME: Duration = Duration::from_secs(300);

/// How long the lack of a name is believed: a directory service may just have been unreachable.
const NO_NAME_LIFETIME: Duration = Duration::from_secs(30);

/// Users remembered at once; whoever starts processes as more uids than this is not a person.
const MOST_USERS: usize = 4096;

/// Where machine-id(5) is found, and where D-Bus keeps it on machines without systemd.
const MACHINE_ID_PATHS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// What stands for a user in labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsernameMode {
    /// The passwd name, else `uid:1234`.
    #[default]
    Name,
    /// Always `uid:1234`.
    Uid,
    /// `hash:` and 12 hexadecimal digits: the SHA-256 of the machine's id and the name, cut off.
    /// It is stable on one machine, differs between machines, and tells the name only to somebody who
    /// knows the machine's id and can guess.
    Hash,
}

/// Usernames by uid, from the name service switch, remembered for a while.
#[derive(Debug)]
pub struct Usernames {
    mode: UsernameMode,
    known: HashMap<u32, Known>,
    salt: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Known {
    name: Option<String>,
    until: Instant,
}

impl Usernames {
    /// Knows nobody yet.
    #[must_use]
    pub fn new(mode: UsernameMode) -> Self {
        Self {
            mode,
            known: HashMap::new(),
            salt: None,
        }
    }

    /// What stands for the user in labels. A name that is empty or not UTF-8 is none.
    ///
    /// May ask the name service (getpwuid_r(3)), and so wait for the network.
    pub fn username(&mut self, uid: u32) -> String {
        self.username_at(uid, Instant::now(), |uid| {
            uzers::get_user_by_uid(uid).map(|user| user.name().to_owned())
        })
    }

    fn username_at(
        &mut self,
        uid: u32,
        now: Instant,
        look_up: impl FnOnce(u32) -> Option<OsString>,
    ) -> String {
        if self.mode == UsernameMode::Uid {
            return format!("uid:{uid}");
        }
        let name = self.name(uid, now, look_up);
        let label = name.unwrap_or_else(|| format!("uid:{uid}"));
        match self.mode {
            UsernameMode::Hash => self.hash(&label),
            UsernameMode::Name | UsernameMode::Uid => label,
        }
    }

    fn name(
        &mut self,
        uid: u32,
        now: Instant,
        look_up: impl FnOnce(u32) -> Option<OsString>,
    ) -> Option<String> {
        let known = self.known.get(&uid);
        if let Some(known) = known.filter(|known| now < known.until) {
            return known.name.clone();
        }
        let found = look_up(uid)
            .and_then(|name| name.into_string().ok())
            .filter(|name| !name.is_empty());
        let lifetime = if found.is_some() {
            NAME_LIFETIME
        } else {
            NO_NAME_LIFETIME
        };
        // getpwuid(3) does not tell a user who is gone from a directory that is down: a name that was
        // right is better than a series that changes its labels.
        let name = found.or_else(|| known.and_then(|known| known.name.clone()));
        if self.known.len() >= MOST_USERS && known.is_none() {
            self.known.clear();
        }
        let until = now + lifetime;
        self.known.insert(
            uid,
            Known {
                name: name.clone(),
                until,
            },
        );
        name
    }

    fn hash(&mut self, label: &str) -> String {
        let salt = self.salt.get_or_insert_with(machine_id);
        let digest = Sha256::new()
            .chain_update(&*salt)
            .chain_update(b"\0")
            .chain_update(label)
            .finalize();
        let mut text = "hash:".to_owned();
        for byte in &digest[..6] {
            write!(text, "{byte:02x}").expect("writing to a string never fails");
        }
        text
    }
}

/// The machine's id; empty if it has none, so that the hash is that of the name alone.
fn machine_id() -> Vec<u8> {
    let id = MACHINE_ID_PATHS
        .iter()
        .find_map(|path| std::fs::read(path).ok());
    id.unwrap_or_default().trim_ascii().to_vec()
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
        let mut names = Usernames::new(UsernameMode::Name);
        assert_eq!(names.username(0), "root");
        assert_eq!(names.username(3_999_999_999), "uid:3999999999");
    }

    #[test]
    fn a_name_is_asked_for_again_when_it_is_old() {
        let mut names = Usernames::new(UsernameMode::Name);
        let start = Instant::now();
        assert_eq!(names.username_at(7, start, named("alice")), "alice");
        let later = start + NAME_LIFETIME - Duration::from_secs(1);
        assert_eq!(names.username_at(7, later, never), "alice");
        let old = start + NAME_LIFETIME;
        assert_eq!(names.username_at(7, old, named("alicia")), "alicia");
    }

    #[test]
    fn a_directory_that_is_down_takes_no_name_away() {
        let mut names = Usernames::new(UsernameMode::Name);
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
        let mut names = Usernames::new(UsernameMode::Name);
        let now = Instant::now();
        assert_eq!(names.username_at(7, now, named("")), "uid:7");
        let broken = |_| Some(OsString::from_vec(vec![0xff]));
        assert_eq!(names.username_at(8, now, broken), "uid:8");
    }

    #[test]
    fn people_can_be_hidden_behind_numbers_and_hashes() {
        let now = Instant::now();
        let mut uids = Usernames::new(UsernameMode::Uid);
        assert_eq!(uids.username_at(7, now, never), "uid:7");

        let mut hashes = Usernames::new(UsernameMode::Hash);
        hashes.salt = Some(b"salt".to_vec());
        let alice = hashes.username_at(7, now, named("alice"));
        // printf 'salt\0alice' | sha256sum
        assert_eq!(alice, "hash:3bf7ce5bd09d");
        assert_eq!(hashes.username_at(7, now, never), alice);
        assert_ne!(hashes.username_at(8, now, named("bob")), alice);
        hashes.salt = Some(b"other".to_vec());
        assert_ne!(hashes.username_at(7, now, never), alice);
    }

    #[test]
    fn ever_new_users_do_not_fill_the_memory() {
        let mut names = Usernames::new(UsernameMode::Name);
        let now = Instant::now();
        for uid in 0..20_000 {
            names.username_at(uid, now, |_| None);
        }
        assert!(names.known.len() <= MOST_USERS);
    }
}
