//! Uids that belong to other uids: the subordinate ones of rootless containers (subuid(5)).

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Where the ranges are listed.
const SUBUID: &str = "/etc/subuid";

/// The most of the file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The most ranges that are known: more than a user for every uid of 16 bits.
const MOST_RANGES: usize = 1 << 16;

/// Ranges of subordinate uids, read again when the file changes. Ranges that only a name service knows are not looked up.
#[derive(Debug)]
pub(super) struct Subordinates {
    path: PathBuf,
    seen: Option<Version>,
    ranges: Vec<Range>,
}

/// Device, inode, size and last change of a file.
type Version = (u64, u64, u64, i64, i64);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    /// A name or a uid.
    owner: String,
}

impl Default for Subordinates {
    fn default() -> Self {
        Self::of(SUBUID)
    }
}

impl Subordinates {
    fn of(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            seen: None,
            ranges: Vec::new(),
        }
    }

    /// Reads the file if it changed.
    pub(super) fn refresh(&mut self) {
        let found = fs::metadata(&self.path).ok();
        let version = found.map(|it| (it.dev(), it.ino(), it.len(), it.mtime(), it.mtime_nsec()));
        if version == self.seen {
            return;
        }
        let mut content = Vec::new();
        let file = fs::File::open(&self.path);
        let read = file.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut content));
        // Where it cannot be read, nothing is known to be subordinate.
        self.ranges = match read {
            Ok(_) => parse(&String::from_utf8_lossy(&content)),
            Err(_) => Vec::new(),
        };
        self.seen = version;
    }

    /// Whose subordinate a uid is. Root's is nobody's: it maps uids for containers of others. One that is in the
    /// ranges of two users is neither's. A name is turned into a uid by `uid_of`.
    pub(super) fn owner(&self, uid: u32, uid_of: impl Fn(&str) -> Option<u32>) -> Option<u32> {
        let holds = |range: &&Range| {
            uid.checked_sub(range.first)
                .is_some_and(|it| it < range.count)
        };
        let owner = |range: &Range| range.owner.parse().ok().or_else(|| uid_of(&range.owner));
        let mut owners = self.ranges.iter().filter(holds).map(owner);
        let owner = owners.next()??;
        (owner != 0 && uid != 0 && owners.all(|other| other == Some(owner))).then_some(owner)
    }

    /// Whether there is no range at all.
    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// Lines `USER:FIRST:COUNT`, of which USER is a name or a uid.
fn parse(content: &str) -> Vec<Range> {
    let ranges = content.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Range {
            first: first.parse().ok()?,
            count: count.parse().ok()?,
            owner: user.to_owned(),
        })
    });
    ranges.take(MOST_RANGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content: &str) -> Subordinates {
        Subordinates {
            ranges: parse(content),
            ..Subordinates::of("/nonexistent")
        }
    }

    fn alice(name: &str) -> Option<u32> {
        (name == "alice").then_some(1000)
    }

    #[test]
    fn a_uid_belongs_to_the_only_user_whose_range_holds_it() {
        let subordinates = of(
            "alice:100000:65536\n2000:165536:65536\n# no range\nnobody-knows:1:1\n\
             root:300000:10\nalice:400000:10\n2000:400005:10\n2000:500000:4294967295\nalice:x:1\n",
        );
        assert_eq!(subordinates.owner(99_999, alice), None);
        assert_eq!(subordinates.owner(100_000, alice), Some(1000));
        assert_eq!(subordinates.owner(165_535, alice), Some(1000));
        assert_eq!(subordinates.owner(165_536, alice), Some(2000));
        assert_eq!(subordinates.owner(231_072, alice), None);
        assert_eq!(subordinates.owner(1, alice), None);
        assert_eq!(
            subordinates.owner(300_001, alice),
            None,
            "root maps uids for others"
        );
        assert_eq!(subordinates.owner(400_004, alice), Some(1000));
        assert_eq!(
            subordinates.owner(400_005, alice),
            None,
            "two users have it"
        );
        assert_eq!(subordinates.owner(u32::MAX, alice), Some(2000));
        assert_eq!(
            of("alice:0:10").owner(0, alice),
            None,
            "root is nobody's subordinate"
        );
    }

    #[test]
    fn the_file_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let mut subordinates = Subordinates::of(&path);
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
