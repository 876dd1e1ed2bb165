//! The state directory that is shared with genv 1.x, read without its lock.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::document::{self, Document};
use super::{DeviceState, EnvironmentState, State, StateError, StateSource};

/// Where genv keeps its state unless `GENV_TMPDIR` says otherwise.
pub const DEFAULT_DIRECTORY: &str = "/var/tmp/genv";

const ENVIRONMENTS_FILE: &str = "envs.json";
const DEVICES_FILE: &str = "devices.json";

/// How large a state file may be: anybody may write there, and 100 environments take 40 KiB.
const MOST_FILE_BYTES: u64 = 4 << 20;

/// How long to wait before each new attempt at a file that is being written.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];

/// A file that was left alone for this long is as its writer wants it: what looks torn is damaged, and
/// what has the same size and time has the same content, however coarse the file system's times are.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The path that a value of `GENV_TMPDIR` means; unset or empty is [`DEFAULT_DIRECTORY`].
#[must_use]
pub fn directory_path(genv_tmpdir: Option<&OsStr>) -> PathBuf {
    match genv_tmpdir {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        Some(_) | None => PathBuf::from(DEFAULT_DIRECTORY),
    }
}

/// Reads `envs.json` and `devices.json` of a state directory, of every shape that genv has written.
///
/// It takes no lock, writes nothing and creates nothing. genv 1.4.3 truncates a file before it
/// writes it: one that looks torn is read again for some milliseconds.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    search_path: Option<OsString>,
    environments: Remembered<EnvironmentState>,
    devices: Remembered<DeviceState>,
}

/// A file's last document.
#[derive(Debug)]
struct Remembered<T> {
    name: &'static str,
    parse: fn(&[u8], &TimeZone) -> Result<Document<T>, document::NotADocument>,
    last: Option<(Version, Document<T>)>,
}

/// What changes when a file is written (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why a file could not be read.
enum ReadError {
    /// It may be fine a moment later.
    Torn(String),
    /// This, and what to do.
    Final { why: String, remedy: &'static str },
}

impl StateDirectory {
    /// Reads from this directory; it need not exist. Also looks for `genv` on this program's PATH.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            search_path: env::var_os("PATH"),
            environments: Remembered {
                name: ENVIRONMENTS_FILE,
                parse: document::environments,
                last: None,
            },
            devices: Remembered {
                name: DEVICES_FILE,
                parse: document::devices,
                last: None,
            },
        }
    }

    /// Looks for `genv` on another PATH.
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.search_path = Some(path.into());
        self
    }

    fn genv_is_on_path(&self) -> bool {
        let is_program = |directory: PathBuf| {
            let flags = AtFlags::empty();
            statat(CWD, directory.join("genv"), flags).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && stat.st_mode & 0o111 != 0
            })
        };
        let path = self.search_path.as_deref();
        path.is_some_and(|path| env::split_paths(path).any(is_program))
    }

    fn open(&self) -> Result<Option<OwnedFd>, StateError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, &self.path, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(StateError {
                message: format!(
                    "cannot open the state directory {}: {}: {}",
                    self.path.display(),
                    io_error(errno),
                    remedy(errno)
                ),
            }),
        }
    }
}

impl StateSource for StateDirectory {
    fn read(&mut self) -> Result<State, StateError> {
        let Some(directory) = self.open()? else {
            return Ok(State {
                installed: self.genv_is_on_path(),
                ..State::default()
            });
        };
        let (written, environments) = self.environments.read(&self.path, directory.as_fd())?;
        let (_, devices) = self.devices.read(&self.path, directory.as_fd())?;
        let mut warnings = environments.warnings;
        warnings.extend(devices.warnings);
        Ok(State {
            installed: true,
            written_timestamp_seconds: written.map(Version::modified_seconds),
            environments: environments.entries,
            devices: devices.entries,
            incomplete: environments.incomplete,
            warnings,
        })
    }
}

impl<T: Clone> Remembered<T> {
    /// The file's document, and its version; an empty document if it does not exist.
    fn read(
        &mut self,
        path: &Path,
        directory: BorrowedFd<'_>,
    ) -> Result<(Option<Version>, Document<T>), StateError> {
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let (why, remedy) = match self.attempt(directory) {
                Ok(read) => return Ok(read),
                Err(ReadError::Final { why, remedy }) => (why, remedy),
                Err(ReadError::Torn(why)) => match delays.next() {
                    Some(&delay) => {
                        thread::sleep(delay);
                        continue;
                    }
                    None => (why, DAMAGED),
                },
            };
            let file = path.join(self.name);
            return Err(StateError {
                message: format!("cannot read {}: {why}: {remedy}", file.display()),
            });
        }
    }

    fn attempt(
        &mut self,
        directory: BorrowedFd<'_>,
    ) -> Result<(Option<Version>, Document<T>), ReadError> {
        let found = match statat(directory, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok((None, Document::default())),
            Err(errno) => return Err(final_error(errno)),
        };
        check(&found)?;
        if let Some((version, document)) = &self.last
            && *version == Version::of(&found)
        {
            return Ok((Some(*version), document.clone()));
        }
        // Should a pipe take the file's place just now, opening must not wait for its other end.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(directory, self.name, flags, Mode::empty()).map_err(|errno| {
            if errno == Errno::NOENT {
                ReadError::Torn("it is being replaced".to_owned())
            } else {
                final_error(errno)
            }
        })?;
        let file = File::from(file);
        let before = fstat(&file).map_err(final_error)?;
        check(&before)?;
        let mut content = Vec::new();
        let limited = (&file).take(MOST_FILE_BYTES).read_to_end(&mut content);
        limited.map_err(|error| ReadError::Final {
            why: error.to_string(),
            remedy: "look for errors of the disk",
        })?;
        let version = Version::of(&fstat(&file).map_err(final_error)?);
        if version != Version::of(&before) {
            return Err(ReadError::Torn("it changes while it is read".to_owned()));
        }
        let settled = version.age() >= SETTLED_AFTER;
        let document = (self.parse)(&content, &TimeZone::system()).map_err(|error| {
            if settled {
                ReadError::Final {
                    why: error.to_string(),
                    remedy: DAMAGED,
                }
            } else {
                ReadError::Torn(error.to_string())
            }
        })?;
        self.last = settled.then(|| (version, document.clone()));
        Ok((Some(version), document))
    }
}

impl Version {
    #[expect(
        clippy::unnecessary_cast,
        reason = "the types of stat(2) differ between architectures"
    )]
    const fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a microsecond is exact enough, and exact for 285 years"
    )]
    fn modified_seconds(self) -> f64 {
        let (seconds, nanoseconds) = self.modified;
        seconds as f64 + nanoseconds as f64 / 1e9
    }

    /// How long ago the file was written; nothing if that is still to come by this machine's clock.
    fn age(self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age_seconds = now.unwrap_or_default().as_secs_f64() - self.modified_seconds();
        Duration::try_from_secs_f64(age_seconds).unwrap_or_default()
    }
}

const DAMAGED: &str = "if it stays so, move it away, and genv makes a new one";

/// Refuses what is not a file of bearable size.
fn check(stat: &Stat) -> Result<(), ReadError> {
    let (why, remedy) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let size_bytes = u64::try_from(stat.st_size).unwrap_or_default();
            if size_bytes <= MOST_FILE_BYTES {
                return Ok(());
            }
            let why =
                format!("it has {size_bytes} bytes, and no more than {MOST_FILE_BYTES} are read");
            (why, "move it away, and genv makes a new one")
        }
        FileType::Symlink => (
            "it is a symbolic link, which anybody could have put there".to_owned(),
            "put the file itself in its place",
        ),
        _ => (
            "it is not a regular file".to_owned(),
            "move it away, and genv makes a new one",
        ),
    };
    Err(ReadError::Final { why, remedy })
}

fn final_error(errno: Errno) -> ReadError {
    ReadError::Final {
        why: io_error(errno),
        remedy: remedy(errno),
    }
}

fn io_error(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "let everybody read it, as genv does (directory 0777, files 0666), or run as a user who may"
        }
        Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => "set GENV_TMPDIR to genv's directory",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files",
        _ => "see whether its file system is mounted and well",
    }
}

#[cfg(test)]
mod tests;
