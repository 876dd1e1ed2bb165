//! Subordinate uids, which rootless containers use, and their owners (subuid(5)).

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// The file with the ranges.
const SUBUID: &str = "/etc/subuid";

/// The file that names other services with ranges (subid(5), nsswitch.conf(5)).
const NSSWITCH: &str = "/etc/nsswitch.conf";

/// The lowest subordinate uid: uids of 16 bits belong to users.
const FIRST_SUBORDINATE: u32 = 1 << 16;

/// The most of a file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The most ranges that are read: more than one for every uid of 16 bits.
const MOST_RANGES: usize = 1 << 16;

/// Ranges of subordinate uids, read again when the file changes.
///
/// Ranges of a directory service are not looked up: without a library in this program, such a service only answers for
/// the ranges of a user, and not for the user of a uid. With such a service, the user of a uid outside of all known
/// ranges is not known.
#[derive(Debug)]
pub(super) struct Subordinates {
    file: WatchedFile,
    ranges: Vec<Range>,
    services: WatchedFile,
    /// Whether another service than the file has ranges.
    has_service: bool,
}

/// A file that is read again when it changes.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    seen: Option<FileStamp>,
}

/// Device, inode, size and last change of a file.
type FileStamp = (u64, u64, u64, i64, i64);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    /// A name or a uid.
    owner: String,
}

impl Default for Subordinates {
    fn default() -> Self {
        Self::of(SUBUID, NSSWITCH)
    }
}

impl WatchedFile {
    fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), seen: None }
    }

    /// The content, if the file changed; an empty content if the file cannot be read.
    fn changed(&mut self) -> Option<String> {
        let found = fs::metadata(&self.path).ok();
        let version = found.map(|it| (it.dev(), it.ino(), it.len(), it.mtime(), it.mtime_nsec()));
        if version == self.seen {
            return None;
        }
        let mut content = Vec::new();
        let file = fs::File::open(&self.path);
        let read = file.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut content));
        self.seen = version;
        let content = read.map(|_| content).unwrap_or_default();
        Some(String::from_utf8_lossy(&content).into_owned())
    }
}

impl Subordinates {
    fn of(file: impl Into<PathBuf>, services: impl Into<PathBuf>) -> Self {
        Self {
            file: WatchedFile::of(file),
            ranges: Vec::new(),
            services: WatchedFile::of(services),
            has_service: false,
        }
    }

    /// Reads the files that changed.
    pub(super) fn refresh(&mut self) {
        if let Some(content) = self.file.changed() {
            self.ranges = parse(&content);
        }
        if let Some(content) = self.services.changed() {
            self.has_service = has_service(&content);
        }
    }

    /// Whether a uid without an account may be a subordinate uid of a user in a directory service.
    pub(super) fn may_belong_to_any_user(&self, uid: u32) -> bool {
        self.has_service && uid >= FIRST_SUBORDINATE && !self.ranges.iter().any(|range| range.holds(uid))
    }

    /// The owner of a subordinate uid. A range of root has no owner: root maps uids for containers of other users. A
    /// uid in the ranges of two users has no owner. `uid_of` looks up the uid of a name.
    pub(super) fn owner(&self, uid: u32, uid_of: impl Fn(&str) -> Option<u32>) -> Option<u32> {
        let owner = |range: &Range| range.owner.parse().ok().or_else(|| uid_of(&range.owner));
        let mut owners = self.ranges.iter().filter(|it| it.holds(uid)).map(owner);
        let owner = owners.next()??;
        (owner != 0 && uid != 0 && owners.all(|other| other == Some(owner))).then_some(owner)
    }

    /// Whether every uid belongs to itself.
    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.has_service
    }
}

impl Range {
    fn holds(&self, uid: u32) -> bool {
        let offset = uid.checked_sub(self.first);
        offset.is_some_and(|offset| offset < self.count)
    }
}

/// Whether a line `subid: SERVICE…` names another service than the file.
fn has_service(content: &str) -> bool {
    let lines = content.lines().filter_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.trim().strip_prefix("subid:")
    });
    let mut services = lines.flat_map(str::split_ascii_whitespace);
    services.any(|service| service != "files" && !service.starts_with('['))
}

/// Parses lines `USER:FIRST:COUNT`; USER is a name or a uid.
fn parse(content: &str) -> Vec<Range> {
    let ranges = content.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Range { first: first.parse().ok()?, count: count.parse().ok()?, owner: user.to_owned() })
    });
    ranges.take(MOST_RANGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content: &str) -> Subordinates {
        Subordinates { ranges: parse(content), ..Subordinates::of("/nonexistent", "/nonexistent") }
    }

    fn alice(name: &str) -> Option<u32> {
        (name == "alice").then_some(1000)
    }

    #[test]
    fn a_uid_belongs_to_the_only_user_whose_range_holds_it() {
        let subordinates = of("alice:100000:65536\n2000:165536:65536\n# no range\nunknown:1:1\n\
             root:300000:10\nalice:400000:10\n2000:400005:10\n2000:500000:4294967295\nalice:x:1\n");
        assert_eq!(subordinates.owner(99_999, alice), None);
        assert_eq!(subordinates.owner(100_000, alice), Some(1000));
        assert_eq!(subordinates.owner(165_535, alice), Some(1000));
        assert_eq!(subordinates.owner(165_536, alice), Some(2000));
        assert_eq!(subordinates.owner(231_072, alice), None);
        assert_eq!(subordinates.owner(1, alice), None);
        assert_eq!(subordinates.owner(300_001, alice), None, "root maps uids for others");
        assert_eq!(subordinates.owner(400_004, alice), Some(1000));
        assert_eq!(subordinates.owner(400_005, alice), None, "two users have it");
        assert_eq!(subordinates.owner(u32::MAX, alice), Some(2000));
        assert_eq!(of("alice:0:10").owner(0, alice), None, "root is not subordinate");
    }

    #[test]
    fn where_a_directory_service_has_ranges_the_user_of_an_unknown_uid_is_not_known() {
        for (line, is_known) in [
            ("passwd: files sss", true),
            ("subid: files", true),
            ("# subid: sss", true),
            ("subid:\tsss # of the domain", false),
            ("subid: files [NOTFOUND=return] sss", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let paths = ["subuid", "nsswitch"].map(|name| folder.path().join(name));
            fs::write(&paths[0], "alice:100000:65536\n").unwrap();
            fs::write(&paths[1], format!("passwd: files\n{line}\n")).unwrap();
            let [file, services] = paths;
            let mut subordinates = Subordinates::of(file, services);
            subordinates.refresh();
            assert_eq!(subordinates.may_belong_to_any_user(200_000), !is_known, "{line}");
            // The first uid has an owner in the file, and the second one belongs to a user.
            assert!(!subordinates.may_belong_to_any_user(100_000), "{line}");
            assert!(!subordinates.may_belong_to_any_user(1000), "{line}");
        }
    }

    #[test]
    fn the_file_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let mut subordinates = Subordinates::of(&path, "/nonexistent");
        let mut owner = || {
            subordinates.refresh();
            subordinates.owner(100_000, alice)
        };
        assert_eq!(owner(), None);
        fs::write(&path, "alice:100000:1\n").unwrap();
        assert_eq!(owner(), Some(1000));
        assert_eq!(owner(), Some(1000));
        fs::write(&path, "alice:100001:100\n").unwrap();
        assert_eq!(owner(), None);
        fs::write(&path, "1000:100000:100\n").unwrap();
        assert_eq!(owner(), Some(1000));
        fs::remove_file(&path).unwrap();
        assert_eq!(owner(), None);
    }
}
