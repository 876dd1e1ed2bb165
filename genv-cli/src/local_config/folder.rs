//! The folder `.genv` with the files `name`, `gpus` and `gpu-memory`, as in genv 1.x.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use genv_core::files::{FlushedDisk, Prepared, open_folder};
use genv_core::model::MemoryAmount;
use genv_core::state::Configuration;
use rustix::fs::{AtFlags, CWD, FileType, Mode, unlinkat};
use rustix::io::Errno;

use super::{ConfigPath, Form, LocalConfigError, MOST_BYTES, check_name, shown};

const NAME: &str = "name";
const GPUS: &str = "gpus";
const GPU_MEMORY: &str = "gpu-memory";

const DISK: FlushedDisk = FlushedDisk { permissions: Mode::from_raw_mode(0o644) };

const CORRECT: &str = Form::Folder.correct();

/// Creates the folder, if it does not exist.
pub(super) fn make(path: &Path) -> Result<(), LocalConfigError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(ConfigPath::new("make", path, CORRECT).error(error, "Make sure that you may write there"))
        }
        _ => Ok(()),
    }
}

/// Reads the configuration of a `.genv` folder. A missing or empty file counts as no value.
pub(super) fn load(folder: &Path) -> Result<Configuration, LocalConfigError> {
    let at = |name: &str| ConfigPath::new("use", &folder.join(name), CORRECT);
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

/// Writes a configuration to a `.genv` folder. Removes the files of missing values.
pub(super) fn save(folder: &Path, configuration: &Configuration) -> Result<(), LocalConfigError> {
    let directory = open(folder, "save to")?;
    for (name, value) in [
        (NAME, configuration.name.clone()),
        (GPUS, configuration.gpus.map(|gpus| gpus.to_string())),
        (GPU_MEMORY, configuration.gpu_memory.map(|amount| amount.to_string())),
    ] {
        let saved = match value {
            Some(value) => Prepared::new(&DISK, directory.as_fd(), name, value.as_bytes()).and_then(Prepared::commit),
            None => match unlinkat(&directory, name, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                removed => removed,
            },
        };
        let place = ConfigPath::new("save", &folder.join(name), CORRECT);
        saved.map_err(|errno| place.error(io::Error::from(errno), "Make sure that you may write there"))?;
    }
    Ok(())
}

fn open(folder: &Path, task: &'static str) -> Result<OwnedFd, LocalConfigError> {
    let place = ConfigPath::new(task, folder, CORRECT);
    let directory = open_folder(CWD, folder).map_err(|errno| place.cannot_open(errno))?;
    place.check(&directory, FileType::Directory)?;
    Ok(directory)
}
