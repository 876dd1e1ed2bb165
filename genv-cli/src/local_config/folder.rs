//! The folder `.genv`: its files `name`, `gpus` and `gpu-memory`, as of genv 1.x.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process;

use genv_core::model::MemoryAmount;
use genv_core::state::Configuration;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::{Form, LocalConfigError, MOST_BYTES, Place, check_name, shown};

const NAME: &str = "name";
const GPUS: &str = "gpus";
const GPU_MEMORY: &str = "gpu-memory";

const CORRECT: &str = Form::Folder.correct();

/// Makes the folder, unless it is there.
pub(super) fn make(path: &Path) -> Result<(), LocalConfigError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Place::new("make", path, CORRECT).error(error, "See to it that you may write there"))
        }
        _ => Ok(()),
    }
}

/// Reads what a `.genv` configures. A file that is missing or empty configures nothing.
///
/// # Errors
/// Something in it cannot be used.
pub(super) fn load(folder: &Path) -> Result<Configuration, LocalConfigError> {
    let at = |name: &str| Place::new("use", &folder.join(name), CORRECT);
    let directory = open(folder, "use")?;
    let read = |name: &str| -> Result<Option<String>, LocalConfigError> {
        let text = at(name).read(directory.as_fd(), Path::new(name), MOST_BYTES)?;
        let text = text.map(|text| text.trim().to_owned());
        Ok(text.filter(|text| !text.is_empty()))
    };
    let name = read(NAME)?.map(|name| match check_name(&name) {
        Ok(()) => Ok(name),
        Err(why) => Err(at(NAME).wrong(why)),
    });
    let gpus = read(GPUS)?.map(|text| {
        let why = || format!("'{}' is not a number of devices", shown(&text));
        text.parse::<u32>().map_err(|_| at(GPUS).wrong(why()))
    });
    let gpu_memory =
        read(GPU_MEMORY)?.map(|text| MemoryAmount::from_person(&text).map_err(|error| at(GPU_MEMORY).wrong(error)));
    Ok(Configuration { name: name.transpose()?, gpus: gpus.transpose()?, gpu_memory: gpu_memory.transpose()? })
}

/// Writes a configuration to a `.genv`; files of what is not configured are removed.
///
/// # Errors
/// The folder cannot be used or written to.
pub(super) fn save(folder: &Path, configuration: &Configuration) -> Result<(), LocalConfigError> {
    let directory = open(folder, "save to")?;
    for (name, value) in [
        (NAME, configuration.name.clone()),
        (GPUS, configuration.gpus.map(|gpus| gpus.to_string())),
        (GPU_MEMORY, configuration.gpu_memory.map(|amount| amount.to_string())),
    ] {
        let saved = match value {
            Some(value) => write(directory.as_fd(), name, &value),
            None => match unlinkat(&directory, name, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                removed => removed.map_err(Into::into),
            },
        };
        let place = Place::new("save", &folder.join(name), CORRECT);
        saved.map_err(|error| place.error(error, "See to it that you may write there"))?;
    }
    Ok(())
}

fn open(folder: &Path, task: &'static str) -> Result<OwnedFd, LocalConfigError> {
    let place = Place::new(task, folder, CORRECT);
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
    let mut file = File::from(openat(directory, &temporary, flags, Mode::from_raw_mode(0o644))?);
    let written = file.write_all(value.as_bytes()).and_then(|()| Ok(fsync(&file)?));
    let written = written.and_then(|()| Ok(renameat(directory, &temporary, directory, name)?));
    if written.is_err() {
        // What is left of it is of no use; the first error says what is wrong.
        let _ = unlinkat(directory, &temporary, AtFlags::empty());
    }
    written
}
