//! Noticing that a file has changed, at the cost of one `stat`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

/// Two writes less than this apart may leave the same times behind: the kernel's are a few milliseconds coarse, some
/// file systems' whole seconds. A file is read again until its last change is older.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// A file that is read when it may have changed. Symbolic links are followed, so that a link that is turned to
/// another file, as Kubernetes does with mounted secrets, is a change.
#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    seen: Option<Stamp>,
    /// What was read last: a digest of the bytes, or why there are none.
    content: Option<Result<[u8; 32], String>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    fn is_settled(&self) -> bool {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let changed = u64::try_from(self.changed.0).unwrap_or(0);
        since_epoch.is_ok_and(|now| now > Duration::from_secs(changed) + SETTLED_AFTER)
    }
}

impl Watched {
    /// A file that has not been looked at yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, seen: None, content: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes, or why it cannot be read, if that differs from what the last call found. The first call
    /// always has an answer.
    pub(super) fn changed(&mut self) -> Option<io::Result<Vec<u8>>> {
        // Before reading, so that a write in between is seen the next time.
        let stamp = fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata));
        if let (Ok(stamp), Some(seen)) = (&stamp, &self.seen)
            && stamp == seen
        {
            return None;
        }
        let bytes = fs::read(&self.path);
        self.seen = stamp.ok().filter(Stamp::is_settled);
        let content = match &bytes {
            Ok(bytes) => Ok(Sha256::digest(bytes).into()),
            Err(error) => Err(error.to_string()),
        };
        if self.content.as_ref() == Some(&content) {
            return None;
        }
        self.content = Some(content);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once_even_if_size_and_time_stay_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut watched = Watched::new(path.clone());
        assert!(watched.changed().unwrap().is_err());
        assert!(watched.changed().is_none());
        for content in ["one", "two", "six"] {
            fs::write(&path, content).unwrap();
            assert_eq!(watched.changed().unwrap().unwrap(), content.as_bytes());
            assert!(watched.changed().is_none());
        }
        fs::remove_file(&path).unwrap();
        assert!(watched.changed().unwrap().is_err());
        assert!(watched.changed().is_none());
    }

    #[test]
    fn a_settled_file_is_not_read_again() {
        // Older than this test, and nobody writes it.
        let mut watched = Watched::new("/bin/sh".into());
        assert!(watched.changed().unwrap().is_ok());
        assert!(watched.seen.is_some());
        assert!(watched.changed().is_none());
    }

    #[test]
    fn a_link_that_is_turned_to_another_file_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["first", "second"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink(at("first"), at("link")).unwrap();
        let mut watched = Watched::new(at("link"));
        assert_eq!(watched.changed().unwrap().unwrap(), b"first");
        std::os::unix::fs::symlink(at("second"), at("new")).unwrap();
        fs::rename(at("new"), at("link")).unwrap();
        assert_eq!(watched.changed().unwrap().unwrap(), b"second");
    }
}
