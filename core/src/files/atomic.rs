//! Replacing a file: every reader finds the old content or the new one as a whole.
//!
//! [`RealDisk`] does not flush: that takes 5 ms a file and is useless for genv's state. The state files describe
//! processes, and a power failure that loses an unflushed file ends these too. The next change keeps a file that is
//! damaged after a power failure aside.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fsync, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

const NEW: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The steps of changing a directory. Tests put one here that fails or stops at any of them.
///
/// # Errors
/// Each returns what the system says.
pub trait Disk: fmt::Debug + Send {
    /// Makes a file that did not exist, for writing.
    fn create(&self, directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        openat(directory, name, NEW, Mode::from_raw_mode(0o600))
    }

    /// Lets everybody read and write it, whatever the umask.
    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        fchmod(file, Mode::from_raw_mode(0o666))
    }

    /// Writes what fits.
    fn write(&self, file: BorrowedFd<'_>, content: &[u8]) -> Result<usize, Errno> {
        retry_on_intr(|| rustix::io::write(file, content))
    }

    /// Ends the writing of a new content, before it gets its name.
    fn flush(&self, _file: BorrowedFd<'_>) -> Result<(), Errno> {
        Ok(())
    }

    /// Renames, replacing what has the new name.
    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        renameat(directory, from, directory, to)
    }

    /// Gives a file a second name, which is free. A link is not followed.
    fn link(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        linkat(directory, from, directory, to, AtFlags::empty())
    }

    /// Removes a name that is no directory's.
    fn remove(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        unlinkat(directory, name, AtFlags::empty())
    }
}

/// The disk, with files that every user may write.
#[derive(Debug)]
pub struct RealDisk;

impl Disk for RealDisk {}

/// The disk, with files that are whole even after a power failure.
#[derive(Debug)]
pub struct FlushedDisk {
    /// The permissions of a new file, less the umask.
    pub permissions: Mode,
}

impl Disk for FlushedDisk {
    fn create(&self, directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        openat(directory, name, NEW, self.permissions)
    }

    fn share(&self, _file: BorrowedFd<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn flush(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        fsync(file)
    }
}

/// A new content beside the file that it will replace. Unless it does, it vanishes with the value.
#[derive(Debug)]
pub struct Prepared<'a> {
    disk: &'a dyn Disk,
    directory: BorrowedFd<'a>,
    name: &'a str,
    temporary: Option<String>,
}

impl<'a> Prepared<'a> {
    /// Writes the content.
    ///
    /// # Errors
    /// A step failed; nothing is left of it.
    pub fn new(disk: &'a dyn Disk, directory: BorrowedFd<'a>, name: &'a str, content: &[u8]) -> Result<Self, Errno> {
        let (file, temporary) = create_temporary(disk, directory, name)?;
        let prepared = Self { disk, directory, name, temporary: Some(temporary) };
        fill(disk, file.as_fd(), content)?;
        Ok(prepared)
    }

    /// Puts it in the file's place.
    ///
    /// # Errors
    /// That failed, and the old file is still there.
    pub fn commit(mut self) -> Result<(), Errno> {
        if let Some(temporary) = &self.temporary {
            self.disk.rename(self.directory, temporary, self.name)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The next writer removes it otherwise.
            let _ = self.disk.remove(self.directory, temporary);
        }
    }
}

/// Whether a file is a leftover of a killed writer of the file `name`.
pub(crate) fn is_leftover(file: &str, name: &str) -> bool {
    let rest = file.strip_prefix('.').and_then(|it| it.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with(".new"))
}

/// A file under a name that no other writer has and no user can predict.
fn create_temporary(disk: &dyn Disk, directory: BorrowedFd<'_>, name: &str) -> Result<(OwnedFd, String), Errno> {
    let random = RandomState::new().build_hasher().finish();
    let temporary = format!(".{name}.new-{random:016x}");
    Ok((disk.create(directory, &temporary)?, temporary))
}

fn fill(disk: &dyn Disk, file: BorrowedFd<'_>, content: &[u8]) -> Result<(), Errno> {
    disk.share(file)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = disk.write(file, rest)?;
        if written == 0 {
            return Err(Errno::IO);
        }
        rest = &rest[written..];
    }
    disk.flush(file)
}
