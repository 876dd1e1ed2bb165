//! Noticing that a file has changed, and that the change is complete.
//!
//! An event of the kernel wakes the program (`events.rs`). The `stat` of each look finds the changes without an event:
//! those of network file systems, and all of them where the kernel has no watch left.
//!
//! A changed file is taken when it has settled: after the last program that wrote to it has closed it, after a rename to
//! its name, or after two equal looks. A file that is being written may have a valid beginning, and a rule file without
//! its `never:` would end processes.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::events::{Entries, follow};

/// The time between two equal looks that show that a file has settled.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Two writes less than this apart may leave the same times: those of some file systems are whole seconds. A file that
/// was read younger than this is read once more.
const COARSE: Duration = Duration::from_secs(3);

/// The kernel follows no more links than this on the way to a file (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// A file that is read when it has changed. Links are followed: a link that is turned to another file, as Kubernetes
/// does with a ConfigMap, is a change.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    entries: Arc<Entries>,
    /// The file at the last read.
    read: Option<Version>,
    /// Whether the file was old enough at the last read for its times to tell it from a later content.
    is_certain: bool,
    /// The file at the last look, if it was another one, and since when it is that one.
    changing: Option<(Version, Instant)>,
}

/// The properties by which a change of a file shows without a read; nothing if there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version(Option<(Inode, u64, Time, Time)>);

type Inode = (u64, u64);

/// Seconds and nanoseconds.
type Time = (i64, i64);

impl Version {
    fn of(path: &Path) -> Self {
        let version = fs::metadata(path).map(|it| {
            let inode = (it.dev(), it.ino());
            (inode, it.size(), (it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()))
        });
        Self(version.ok())
    }

    fn inode(self) -> Option<Inode> {
        self.0.map(|(inode, ..)| inode)
    }

    /// Whether the last change is so old that another one would have another time.
    fn is_old(self) -> bool {
        let Some((.., changed)) = self.0 else {
            return true;
        };
        let changed = Duration::from_secs(u64::try_from(changed.0).unwrap_or_default());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.is_ok_and(|now| now > changed + COARSE)
    }
}

impl Watched {
    /// A file that was not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, entries: Arc::default(), read: None, is_certain: false, changing: None }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What an event notifies: the next look may find a change that has settled.
    pub fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.entries.wake)
    }

    /// The result of `read`, if the file may have changed since the last read and has settled. The first call reads.
    pub fn changed<T>(&mut self, read: impl FnOnce(&Path) -> T) -> Option<T> {
        let found = Version::of(&self.path);
        let has_settled = self.entries.take_settled();
        if self.read.is_none() {
            return Some(self.read_now(read));
        }
        if self.read != Some(found) {
            self.follow();
        }
        if !has_settled && !self.is_due(found) {
            return None;
        }
        let content = read(&self.path);
        let after = Version::of(&self.path);
        let was_changed = after.inode() == found.inode() && after != found;
        if was_changed || self.entries.is_being_written() {
            self.changing = Some((after, Instant::now()));
            return None;
        }
        self.note(found);
        Some(content)
    }

    /// The result of `read`, whether the file has changed or not.
    pub fn read_now<T>(&mut self, read: impl FnOnce(&Path) -> T) -> T {
        // A change after this line has an event, or another version.
        self.follow();
        let found = Version::of(&self.path);
        let content = read(&self.path);
        self.note(found);
        content
    }

    fn note(&mut self, found: Version) {
        self.is_certain = found.is_old();
        self.read = Some(found);
        self.changing = None;
    }

    /// Whether looks show that the file has changed and has settled.
    fn is_due(&mut self, found: Version) -> bool {
        if self.read == Some(found) {
            self.changing = None;
            return !self.is_certain && found.is_old();
        }
        match self.changing {
            Some((version, since)) if version == found => {
                since.elapsed() >= BETWEEN_LOOKS && !self.entries.is_being_written()
            }
            _ => {
                self.changing = Some((found, Instant::now()));
                false
            }
        }
    }

    fn follow(&self) {
        follow(&self.entries, entries(&self.path));
    }
}

/// The entries of folders that decide which file a path leads to: each link on the way, and the file itself. No folder
/// of them is a link.
fn entries(path: &Path) -> BTreeSet<PathBuf> {
    fn parts(path: &Path) -> Vec<PathBuf> {
        path.components().map(|part| PathBuf::from(part.as_os_str())).collect()
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut left = VecDeque::from(parts(&path));
    let mut folder = PathBuf::new();
    let mut entries = BTreeSet::new();
    while let Some(part) = left.pop_front() {
        match part.components().next() {
            Some(Component::ParentDir) => _ = folder.pop(),
            Some(Component::CurDir) | None => {}
            Some(_) => {
                let entry = folder.join(&part);
                match fs::read_link(&entry) {
                    Ok(target) if entries.len() < MOST_LINKS => {
                        for part in parts(&target).into_iter().rev() {
                            left.push_front(part);
                        }
                        entries.insert(entry);
                    }
                    _ => {
                        if left.is_empty() {
                            entries.insert(entry.clone());
                        }
                        folder = entry;
                    }
                }
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests;
