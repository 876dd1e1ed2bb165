//! The terminals of a user, written to as write(1) does it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use std::collections::BTreeSet;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::{Errno, write};

/// The largest number of terminals of a user that get a notice.
const MAX_TERMINALS: usize = 64;

/// Major numbers of pseudo-terminals, 256 terminals each (`Documentation/admin-guide/devices.txt` of Linux).
const PSEUDO_TERMINALS: std::ops::RangeInclusive<u32> = 136..=143;

/// Major number of virtual consoles (minor 0 to 63) and serial lines.
const CONSOLES: u32 = 4;

/// A terminal by its device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    major: u32,
    minor: u32,
}

/// The terminals of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Terminals {
    proc: PathBuf,
    dev: PathBuf,
}

impl Default for Terminals {
    fn default() -> Self {
        Self { proc: "/proc".into(), dev: "/dev".into() }
    }
}

impl Terminals {
    /// No terminals.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self { proc: "/nonexistent".into(), dev: "/nonexistent".into() }
    }

    /// Writes the text to every terminal that a user's processes run in, that belongs to that user, and that takes
    /// messages (`mesg y`). Returns to how many it was written whole. Never waits: a terminal that takes no more now,
    /// because nobody reads from it or it was stopped, gets no more of it.
    ///
    /// The enforcer's own terminal is left out: its log is there, and in the background it might be stopped for writing.
    pub(crate) fn write(&self, uid: u32, text: &str) -> usize {
        let own = terminal_of(&self.proc.join("self"));
        let written = self
            .numbers(uid)
            .into_iter()
            .filter(|number| Some(*number) != own)
            .filter_map(|number| self.open(number, uid))
            .filter(|terminal| write_whole(terminal, text.as_bytes()));
        written.count()
    }

    /// Controlling terminals of all processes of a user.
    fn numbers(&self, uid: u32) -> BTreeSet<Number> {
        let processes = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let mut numbers = BTreeSet::new();
        for process in processes {
            let is_process =
                process.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
            // The owner of /proc/PID is the effective user; one that has ended is passed over.
            if is_process && process.metadata().is_ok_and(|it| it.uid() == uid) {
                numbers.extend(terminal_of(&process.path()));
            }
            if numbers.len() >= MAX_TERMINALS {
                break;
            }
        }
        numbers
    }

    /// Opens a terminal, if it is that device, belongs to the user, and its group (`tty`) may write to it.
    fn open(&self, number: Number, uid: u32) -> Option<OwnedFd> {
        let path = self.dev.join(number.name()?);
        let terminal = match genv_core::files::open(CWD, &path, OFlags::WRONLY) {
            Ok(terminal) => terminal,
            Err(errno) => {
                if matches!(errno, Errno::ACCESS | Errno::PERM) {
                    tracing::debug!(
                        terminal = ?path,
                        "a terminal may not be written to: its user refuses messages, or this program is not in the \
                         group tty"
                    );
                }
                return None;
            }
        };
        let stat = fstat(&terminal).ok()?;
        let is_it = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && major(stat.st_rdev) == number.major
            && minor(stat.st_rdev) == number.minor;
        let takes_messages = stat.st_mode & Mode::WGRP.as_raw_mode() != 0;
        (is_it && stat.st_uid == uid && takes_messages).then_some(terminal)
    }
}

impl Number {
    /// `tty_nr` of `/proc/PID/stat`: the minor number in bits 31 to 20 and 7 to 0, the major in 15 to 8.
    const fn of_stat(tty_nr: u32) -> Option<Self> {
        if tty_nr == 0 {
            return None;
        }
        Some(Self { major: (tty_nr >> 8) & 0xff, minor: (tty_nr & 0xff) | ((tty_nr >> 12) & 0xf_ff00) })
    }

    /// The path below `/dev`, if the terminal is of a kind that people use.
    fn name(self) -> Option<String> {
        let Self { major, minor } = self;
        if PSEUDO_TERMINALS.contains(&major) {
            let first = (major - PSEUDO_TERMINALS.start()) * 256;
            return Some(format!("pts/{}", first + minor));
        }
        match (major, minor) {
            (CONSOLES, 0..=63) => Some(format!("tty{minor}")),
            (CONSOLES, _) => Some(format!("ttyS{}", minor - 64)),
            _ => None,
        }
    }
}

/// The controlling terminal of a process: field 7 of its `stat`.
fn terminal_of(process: &Path) -> Option<Number> {
    let stat = fs::read(process.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command's name is in parentheses and may hold anything; the fields after it are counted from 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let tty_nr: i32 = fields.split_ascii_whitespace().nth(4)?.parse().ok()?;
    Number::of_stat(tty_nr.cast_unsigned())
}

/// Writes as much as the terminal takes at once. Returns whether it took the whole text.
fn write_whole(terminal: impl AsFd, text: &[u8]) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        match write(&terminal, rest) {
            Ok(written @ 1..) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_number_of_stat_becomes_its_path() {
        let name = |tty_nr| Number::of_stat(tty_nr).and_then(Number::name);
        // As /proc/PID/stat has them for /dev/pts/0, /dev/pts/300, /dev/tty1, /dev/ttyS0 and /dev/console.
        assert_eq!(name(34816).as_deref(), Some("pts/0"));
        assert_eq!(name(0x10_882c).as_deref(), Some("pts/300"));
        assert_eq!(name(1025).as_deref(), Some("tty1"));
        assert_eq!(name(1088).as_deref(), Some("ttyS0"));
        assert_eq!(name(0x501), None);
        assert_eq!(name(0), None);
    }

    #[test]
    fn a_terminal_that_is_another_device_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, dev) = (folder.path().join("proc"), folder.path().join("dev"));
        fs::create_dir_all(proc.join("42")).unwrap();
        fs::create_dir_all(dev.join("pts")).unwrap();
        fs::write(proc.join("42/stat"), "42 (a) b) S 1 1 1 34816 1 0").unwrap();
        fs::write(dev.join("pts/0"), "").unwrap();
        let uid = rustix::process::getuid().as_raw();
        let terminals = Terminals { proc, dev };
        assert_eq!(terminals.numbers(uid).len(), 1);
        assert_eq!(terminals.numbers(uid + 1).len(), 0);
        assert_eq!(terminals.write(uid, "text"), 0);
        let kept = fs::read(folder.path().join("dev/pts/0")).unwrap();
        assert_eq!(kept, b"");
    }
}
