//! The user namespace of this program (user_namespaces(7)).
//!
//! In a namespace, uids stand for other users than on the machine. A container has users, files and a state of its own,
//! and uses its own uids. `unshare --map-root-user` only renames users on the machine's own files: there, the program
//! writes and compares the uids of the machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use rustix::process::getuid;

/// The number of uids of the initial namespace: all but the last, which means "no user".
const ALL_UIDS: u32 = u32::MAX;

/// The most ancestors whose namespace is read.
const MOST_ANCESTORS: usize = 64;

/// The meaning of this program's uids on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserNamespace {
    /// Absent in the initial namespace.
    map: Option<Map>,
    /// Whether uids are translated to uids of the machine: this namespace uses the machine's files.
    pub(crate) translates: bool,
    /// Whether there is a further namespace between this one and the machine's, so that no uid can be translated.
    nested: bool,
}

/// `/proc/PID/uid_map`: the first uid here, the first uid outside, and the number of uids.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Map {
    extents: Vec<(u32, u32, u32)>,
    /// The uid that the kernel shows for users without an entry in the map.
    overflow: u32,
}

impl Map {
    fn parse(content: &str, overflow: u32) -> Self {
        let extents = content.lines().filter_map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??, numbers.next()??))
        });
        Self { extents: extents.collect(), overflow }
    }

    fn is_initial(&self) -> bool {
        self.extents.first().is_some_and(|&(first, _, count)| first == 0 && count == ALL_UIDS)
    }

    /// The uid outside; `None` if the namespace does not map the user.
    fn outside(&self, uid: u32) -> Option<u32> {
        if uid == self.overflow {
            return None;
        }
        self.extents.iter().find_map(|&(first, outside, count)| {
            let offset = uid.checked_sub(first).filter(|offset| *offset < count)?;
            outside.checked_add(offset)
        })
    }
}

impl UserNamespace {
    /// The namespace of the machine.
    pub(crate) const INITIAL: Self = Self { map: None, translates: false, nested: false };

    /// The namespace of this program.
    pub(crate) fn own() -> &'static Self {
        static OWN: OnceLock<UserNamespace> = OnceLock::new();
        OWN.get_or_init(Self::read)
    }

    fn read() -> Self {
        // A kernel without user namespaces has no such file.
        let Ok(content) = fs::read_to_string("/proc/self/uid_map") else {
            return Self::INITIAL;
        };
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
        let map = Map::parse(&content, overflow.unwrap_or(65_534));
        if map.is_initial() {
            return Self::INITIAL;
        }
        let is_mapped = |path| fs::metadata(path).is_ok_and(|it| map.outside(it.uid()).is_some());
        // A container brings its own root directory.
        let translates = !is_mapped("/");
        // This file belongs to the machine's root, whatever is mounted.
        let roots = fs::metadata("/proc/sys/kernel/ostype").map(|it| it.uid());
        let is_root = map.outside(getuid().as_raw()) == Some(0);
        let nested = is_root && roots.is_ok_and(|uid| uid != getuid().as_raw()) || is_below_another(&content);
        Self { map: Some(map), translates, nested }
    }

    /// The uid of a user of this namespace in the shared state; `None` if the user is not mapped.
    pub(crate) fn user(&self, uid: u32) -> Option<u32> {
        match &self.map {
            Some(map) if self.translates => map.outside(uid),
            _ => Some(uid),
        }
    }

    /// Why this program must not write state into a directory of this owner; `None` if it may.
    pub(crate) fn refuses(&self, owner: u32) -> Option<&'static str> {
        let map = self.map.as_ref()?;
        if map.outside(owner).is_none() {
            return Some("it belongs to a user outside of this user namespace, where uids mean other users");
        }
        if self.translates && (self.nested || map.outside(getuid().as_raw()).is_none()) {
            return Some("this user namespace does not tell which user of the machine this is");
        }
        None
    }
}

/// Whether the nearest ancestor in another user namespace may be outside of the initial namespace. If a pid namespace
/// hides that ancestor, the meaning of the uids in this namespace's map is not known.
fn is_below_another(own: &str) -> bool {
    let mut pid = "self".to_owned();
    for _ in 0..MOST_ANCESTORS {
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some(stat) = super::stat::Stat::parse(&stat) else {
            break;
        };
        pid = stat.parent.to_string();
        match fs::read_to_string(format!("/proc/{pid}/uid_map")) {
            Ok(map) if map == own => {}
            Ok(map) => return !Map::parse(&map, 0).is_initial(),
            Err(_) => break,
        }
    }
    true
}

/// The real uid of this program in the shared state: the uid of the machine, or in a container with users of its own
/// the uid of the container.
pub fn own_uid() -> u32 {
    let uid = getuid().as_raw();
    UserNamespace::own().user(uid).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(content: &str) -> Map {
        Map::parse(content, 65_534)
    }

    #[test]
    fn a_uid_is_found_in_the_extent_that_holds_it() {
        let rootless = map("         0       1000          1\n         1     100000      65536\n");
        assert_eq!(rootless.outside(0), Some(1000));
        assert_eq!(rootless.outside(1), Some(100_000));
        assert_eq!(rootless.outside(65_536), Some(165_535));
        assert_eq!(rootless.outside(65_537), None);
        assert_eq!(rootless.outside(65_534), None, "the kernel shows it for all other users");
        assert!(!rootless.is_initial());
        assert!(map("0 0 4294967295\n").is_initial());
        assert_eq!(map("").outside(0), None);
        assert_eq!(map("0 4294967295 2\n").outside(1), None);
        assert_eq!(map("x y z\n0 1000\n"), map(""));
    }

    #[test]
    fn where_uids_mean_other_users_a_directory_of_an_unknown_owner_is_refused() {
        let initial = UserNamespace::INITIAL;
        assert_eq!(initial.refuses(65_534), None);
        assert_eq!(initial.user(0), Some(0));
        let renamed = UserNamespace { map: Some(map("0 1000 1\n")), translates: true, nested: false };
        assert!(renamed.refuses(65_534).unwrap().contains("outside of this user namespace"));
        assert!(renamed.refuses(1000).is_some());
        assert_eq!(renamed.user(0), Some(1000));
        assert_eq!(renamed.user(65_534), None);
        let container = UserNamespace { translates: false, ..renamed.clone() };
        assert!(container.refuses(65_534).is_some());
        assert_eq!(container.refuses(0), None);
        assert_eq!(container.user(0), Some(0));
    }
}
