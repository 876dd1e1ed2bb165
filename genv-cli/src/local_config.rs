//! `.genv`: a folder whose files `name`, `gpus` and `gpu-memory` configure the environments that are activated near it.
//!
//! It may come with somebody's repository: nothing in it is trusted beyond being a short text.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{env, process};

use genv_core::model::MemoryAmount;
use genv_core::state::Configuration;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fsync, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::users;

/// The folder's name.
const FOLDER: &str = ".genv";

const NAME: &str = "name";
const GPUS: &str = "gpus";
const GPU_MEMORY: &str = "gpu-memory";

/// How large a file may be.
const MOST_BYTES: u64 = 1024;

/// How long an environment's name may be.
const MOST_NAME_CHARACTERS: usize = 128;

/// A `.genv` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {task} {}: {why}. {remedy}", .path.display().to_string().escape_debug())]
pub(crate) struct LocalConfigError {
    task: &'static str,
    path: PathBuf,
    why: String,
    remedy: &'static str,
}

/// The nearest `.genv`: in the working directory, above it up to the root of its repository or the home directory,
/// and at last in the home directory. In a directory that is in neither, nothing above it counts.
pub(crate) fn find() -> Option<PathBuf> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let working = working_directory();
    let places = places(working.as_deref(), home.as_deref());
    let mut folders = places.into_iter().map(|place| place.join(FOLDER));
    // What is no folder of the user's is found too, so that reading it can say so.
    folders.find(|folder| fs::symlink_metadata(folder).is_ok())
}

/// The working directory as the user knows it: with the links by which they came.
fn working_directory() -> Option<PathBuf> {
    let actual = env::current_dir().ok()?;
    let known = env::var_os("PWD").map(PathBuf::from);
    let known = known.filter(|known| known.is_absolute() && same(known, &actual));
    Some(known.unwrap_or(actual))
}

fn places(working: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for directory in working.into_iter().flat_map(Path::ancestors) {
        places.push(directory.to_owned());
        if home.is_some_and(|home| same(directory, home)) {
            return places;
        }
        if fs::symlink_metadata(directory.join(".git")).is_ok() {
            places.extend(home.map(Path::to_owned));
            return places;
        }
    }
    places.truncate(1);
    places.extend(home.map(Path::to_owned));
    places
}

fn same(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Reads what a `.genv` configures. A file that is missing or empty configures nothing.
///
/// # Errors
/// Something in it cannot be used.
pub(crate) fn load(folder: &Path) -> Result<Configuration, LocalConfigError> {
    let at = |name: &str| Place {
        task: "use",
        path: folder.join(name),
    };
    let directory = open(folder, "use")?;
    let read = |name: &str| at(name).read(directory.as_fd(), name);
    let name = read(NAME)?.map(|name| match check_name(&name) {
        Ok(()) => Ok(name),
        Err(why) => Err(at(NAME).error(why, CORRECT)),
    });
    let gpus = read(GPUS)?.map(|text| {
        let wrong = |_| {
            at(GPUS).error(
                format!("'{}' is not a number of devices", shown(&text)),
                CORRECT,
            )
        };
        text.parse::<u32>().map_err(wrong)
    });
    let gpu_memory = read(GPU_MEMORY)?.map(|text| {
        MemoryAmount::from_person(&text).map_err(|error| at(GPU_MEMORY).error(error, CORRECT))
    });
    Ok(Configuration {
        name: name.transpose()?,
        gpus: gpus.transpose()?,
        gpu_memory: gpu_memory.transpose()?,
    })
}

/// Writes a configuration to a `.genv`; files of what is not configured are removed.
///
/// # Errors
/// The folder cannot be used or written to.
pub(crate) fn save(folder: &Path, configuration: &Configuration) -> Result<(), LocalConfigError> {
    let directory = open(folder, "save to")?;
    for (name, value) in [
        (NAME, configuration.name.clone()),
        (GPUS, configuration.gpus.map(|gpus| gpus.to_string())),
        (
            GPU_MEMORY,
            configuration.gpu_memory.map(|amount| amount.to_string()),
        ),
    ] {
        let saved = match value {
            Some(value) => write(directory.as_fd(), name, &value),
            None => match unlinkat(&directory, name, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                removed => removed.map_err(Into::into),
            },
        };
        let place = Place {
            task: "save",
            path: folder.join(name),
        };
        saved.map_err(|error| place.error(error, "See to it that you may write there"))?;
    }
    Ok(())
}

/// Why a text cannot be the name of an environment.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.chars().count() > MOST_NAME_CHARACTERS {
        return Err(format!(
            "a name has at most {MOST_NAME_CHARACTERS} characters"
        ));
    }
    // Those that move what is printed after them count as well.
    let unprintable = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if name.contains(unprintable) {
        return Err(format!(
            "the name '{}' has characters that cannot be printed",
            shown(name)
        ));
    }
    Ok(())
}

const CORRECT: &str = "Correct it, or remove the file";

/// A text of somebody else, short and printable.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// A file or folder that something is done with.
struct Place {
    task: &'static str,
    path: PathBuf,
}

impl Place {
    fn error(&self, why: impl fmt::Display, remedy: &'static str) -> LocalConfigError {
        LocalConfigError {
            task: self.task,
            path: self.path.clone(),
            why: why.to_string(),
            remedy,
        }
    }

    /// The file's text without the space around it, unless there is none.
    fn read(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
    ) -> Result<Option<String>, LocalConfigError> {
        // Opening a pipe must not wait for its other end.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| self.cannot_open(errno))?,
        };
        self.check(&file, FileType::RegularFile)?;
        let mut content = Vec::new();
        let read = File::from(file)
            .take(MOST_BYTES + 1)
            .read_to_end(&mut content);
        read.map_err(|error| self.error(error, CORRECT))?;
        if content.len() as u64 > MOST_BYTES {
            return Err(self.error(format!("it has more than {MOST_BYTES} bytes"), CORRECT));
        }
        let text =
            String::from_utf8(content).map_err(|_| self.error("it is not UTF-8", CORRECT))?;
        let text = text.trim();
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    fn cannot_open(&self, errno: Errno) -> LocalConfigError {
        match errno {
            Errno::LOOP | Errno::NOTDIR => self.error(
                "it is a symbolic link or no folder",
                "Put the folder or file itself in its place",
            ),
            Errno::NXIO => self.error("it is not a file", CORRECT),
            errno => self.error(io::Error::from(errno), "See to it that you may read it"),
        }
    }

    fn check(&self, file: &OwnedFd, kind: FileType) -> Result<(), LocalConfigError> {
        let found: Stat = fstat(file).map_err(|errno| self.cannot_open(errno))?;
        if FileType::from_raw_mode(found.st_mode) != kind {
            return Err(self.error("it is not a file", CORRECT));
        }
        if !trusts(rustix::process::geteuid().as_raw(), found.st_uid) {
            let why = format!("it belongs to the user {}", users::shown(found.st_uid));
            return Err(self.error(
                why,
                "Make a .genv of your own, in the working directory or in your home directory",
            ));
        }
        Ok(())
    }
}

/// Whether a user uses what belongs to `owner`: it must be the user's own, or root's, who could do anything anyway.
const fn trusts(user: u32, owner: u32) -> bool {
    owner == 0 || owner == user
}

fn open(folder: &Path, task: &'static str) -> Result<OwnedFd, LocalConfigError> {
    let place = Place {
        task,
        path: folder.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, folder, flags, Mode::empty());
    let directory = directory.map_err(|errno| place.cannot_open(errno))?;
    place.check(&directory, FileType::Directory)?;
    Ok(directory)
}

/// Puts a whole file in the place of the old one.
fn write(directory: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    let temporary = format!(".{name}.{}", process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(
        directory,
        &temporary,
        flags,
        Mode::from_raw_mode(0o644),
    )?);
    let written = file
        .write_all(value.as_bytes())
        .and_then(|()| Ok(fsync(&file)?));
    let written = written.and_then(|()| Ok(renameat(directory, &temporary, directory, name)?));
    if written.is_err() {
        // What is left of it is of no use; the first error says what is wrong.
        let _ = unlinkat(directory, &temporary, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests;
