//! Reading and replacing files below a folder that others may write to as well: no link below it is followed, and a
//! file is either as it was or as it should be.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use genv_core::files::{self, FlushedDisk, Prepared, is_regular};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// No file of ours is longer; what is longer is read up to here, and differs.
const LONGEST_FILE_BYTES: u64 = 16 << 20;

/// Published configuration holds no secrets, and servers read it as users of their own.
const DISK: FlushedDisk = FlushedDisk { permissions: Mode::from_raw_mode(0o666) };

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
}

/// Why a file or folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}. {next_step}", path.display())]
pub(crate) struct FolderError {
    path: PathBuf,
    error: io::Error,
    next_step: &'static str,
}

impl Folder {
    /// Opens a folder, which is created if there is none. The way to it may lead over links.
    pub(crate) fn create(path: &Path) -> Result<Self, FolderError> {
        std::fs::create_dir_all(path).map_err(|error| {
            let why = if path.exists() { Errno::NOTDIR.into() } else { error };
            FolderError::new(path.to_owned(), why)
        })?;
        let descriptor = files::open_folder_through_links(CWD, path);
        Ok(Self {
            path: path.to_owned(),
            descriptor: descriptor.map_err(|error| FolderError::new(path.to_owned(), error.into()))?,
        })
    }

    /// The folder that a file below this one lies in, created if there is none, and the file's name there.
    pub(crate) fn parent_of<'a>(&self, path: &'a str) -> Result<(Self, &'a str), FolderError> {
        let descriptor = self.descriptor.try_clone();
        let mut parent = Self {
            path: self.path.clone(),
            descriptor: descriptor.map_err(|error| FolderError::new(self.path.clone(), error))?,
        };
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        for folder in folders.split_terminator('/') {
            parent = parent.subfolder(folder)?;
        }
        Ok((parent, name))
    }

    fn subfolder(&self, name: &str) -> Result<Self, FolderError> {
        let path = self.path.join(name);
        let opened = match rustix::fs::mkdirat(&self.descriptor, name, Mode::from(0o777)) {
            Ok(()) | Err(Errno::EXIST) => files::open_folder(&self.descriptor, name),
            Err(error) => Err(error),
        };
        match opened {
            Ok(descriptor) => Ok(Self { path, descriptor }),
            Err(error) => Err(FolderError::new(path, error.into())),
        }
    }

    /// The content of a file, if there is one.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        self.try_read(name).map_err(|error| FolderError::new(self.path.join(name), error))
    }

    fn try_read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match files::open(&self.descriptor, name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !is_regular(&rustix::fs::fstat(&file)?) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        let mut content = Vec::new();
        File::from(file).take(LONGEST_FILE_BYTES).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Puts a file there, in place of any other.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> Result<(), FolderError> {
        let replaced = Prepared::new(&DISK, self.descriptor.as_fd(), name, content).and_then(Prepared::commit);
        replaced.map_err(|error| FolderError::new(self.path.join(name), error.into()))
    }
}

impl FolderError {
    fn new(path: PathBuf, error: io::Error) -> Self {
        let next_step = match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => "Name a folder that you may write to, or publish as its owner",
            Some(Errno::ROFS) => "Name a folder on a file system that can be written to",
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                "Free some space there and publish again: this file is as it was"
            }
            Some(Errno::LOOP) => "It is a link, and none is followed: remove it, or name another folder",
            Some(Errno::NOTDIR) => {
                "A file or a link stands where a folder should be: remove it, or name another folder"
            }
            Some(Errno::NOENT) => "Name a folder that can be created",
            _ => "Remove what stands there, or name another folder",
        };
        Self { path, error, next_step }
    }
}
