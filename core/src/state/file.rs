//! One file of the state directory, read so that nobody can lead the reader elsewhere or make it wait.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, statat};
use rustix::io::Errno;

use crate::files::{READ_ONLY, io_error, open_in_time};
use crate::model::now_seconds;

/// The most bytes of a state file: every user may write there, and 100 environments take 20 KiB.
pub(super) const MOST_FILE_BYTES: u64 = 8 << 20;

/// A file that was left alone for this long, and has the same size and time, has the same content, however coarse the file
/// system's times are.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What to do about a damaged file.
pub(super) const DAMAGED: &str = "the next change of an environment keeps it beside, and goes on with its copy";

/// What to do about a removed file.
pub(super) const WRITTEN_AGAIN: &str =
    "the next change of an environment writes it again, from its copy if that is there";

/// What to do about a file of another version.
pub(super) const OTHER_VERSION: &str = "use the genv that wrote it, or move it away";

/// What to do about something else in a file's place.
pub(super) const MOVED: &str = "move it away, or let the next change of an environment do so";

/// What changes when a file is written (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why a file could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It may be fine a moment later.
    Torn(String),
    /// It is no state file for any user.
    Damaged { why: String, remedy: &'static str },
    /// This user, the owner of the file or root, has a lease on it: no other program can open the file.
    Leased(u32),
    /// It cannot be read here and now.
    Unreadable { why: String, remedy: &'static str },
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        Self::Unreadable { why: io_error(errno), remedy: remedy(errno) }
    }
}

/// The version of a file; `None` if there is none.
pub(super) fn find(directory: BorrowedFd<'_>, name: &str) -> Result<Option<Version>, ReadError> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => {
            check(&found)?;
            Ok(Some(Version::of(&found)))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The reason why a file with a lease cannot be read.
pub(super) fn leased(holder: &str) -> String {
    format!("user {holder} has a lease on it (fcntl, F_SETLEASE), so that no other program can open it")
}

/// The content of a file that was found, and the version that has it.
pub(super) fn read(directory: BorrowedFd<'_>, name: &str) -> Result<(Version, Vec<u8>), ReadError> {
    let file = open_in_time(directory, name, OFlags::RDONLY).map_err(|errno| match errno {
        Errno::NOENT => ReadError::Torn("it is being replaced".to_owned()),
        Errno::AGAIN => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => ReadError::Leased(stat.st_uid),
            Err(_) => ReadError::Torn("it is being replaced".to_owned()),
        },
        errno => errno.into(),
    })?;
    let file = File::from(file);
    let before = fstat(&file)?;
    check(&before)?;
    let mut content = Vec::with_capacity(usize::try_from(before.st_size).unwrap_or_default() + 1);
    let limited = (&file).take(MOST_FILE_BYTES).read_to_end(&mut content);
    limited.map_err(|error| ReadError::Unreadable { why: error.to_string(), remedy: "look for errors of the disk" })?;
    let version = Version::of(&fstat(&file)?);
    if version != Version::of(&before) {
        return Err(ReadError::Torn("it changes while it is read".to_owned()));
    }
    Ok((version, content))
}

impl Version {
    #[expect(clippy::unnecessary_cast, reason = "the types of stat(2) differ between architectures")]
    pub(super) const fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a microsecond is exact enough, and exact for 285 years")]
    pub(super) fn modified_seconds(self) -> f64 {
        let (seconds, nanoseconds) = self.modified;
        seconds as f64 + nanoseconds as f64 / 1e9
    }

    /// How long ago the file was written; nothing if that is still to come by this machine's clock.
    pub(super) fn age(self) -> Duration {
        Duration::try_from_secs_f64(now_seconds() - self.modified_seconds()).unwrap_or_default()
    }
}

/// Refuses what is not a file of bearable size.
fn check(stat: &Stat) -> Result<(), ReadError> {
    let (why, remedy) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let size_bytes = u64::try_from(stat.st_size).unwrap_or_default();
            if size_bytes <= MOST_FILE_BYTES {
                return Ok(());
            }
            let why = format!("it has {size_bytes} bytes, and no more than {MOST_FILE_BYTES} are read");
            (why, DAMAGED)
        }
        FileType::Symlink => ("it is a symbolic link, which anybody could have put there".to_owned(), MOVED),
        _ => ("it is not a regular file".to_owned(), MOVED),
    };
    Err(ReadError::Damaged { why, remedy })
}

/// What to do about an error of reading.
pub(super) fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "let everybody read it, as genv does (directory 0777, files 0666), or run as a user who may"
        }
        Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => "set GENV_TMPDIR to genv's directory",
        Errno::ROFS => READ_ONLY,
        Errno::MFILE | Errno::NFILE => "raise the limit of open files",
        _ => "see whether its file system is mounted and well",
    }
}
