//! Reading and replacing files below a folder that others may write to as well: no link below it is followed, and a
//! file is either as it was or as it should be.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// No file of ours is longer; what is longer is read up to here, and differs.
const LONGEST_FILE_BYTES: u64 = 16 << 20;

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
        let descriptor = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
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
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::mkdirat(&self.descriptor, name, Mode::from(0o777)) {
            Ok(()) | Err(Errno::EXIST) => rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()),
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
        // Opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        let mut content = Vec::new();
        File::from(file).take(LONGEST_FILE_BYTES).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Puts a file there, in place of any other.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> Result<(), FolderError> {
        self.try_replace(name, content).map_err(|error| FolderError::new(self.path.join(name), error))
    }

    fn try_replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // A name that nobody else has, and that no other run has left behind.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let temporary = format!(".{name}.{}.{}", std::process::id(), now.as_nanos());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(
            &self.descriptor,
            &temporary,
            flags,
            // Configuration holds no secrets as published, and servers read it as users of their own.
            Mode::from(0o666),
        )?;
        let written = write_whole(file.into(), content).and_then(|()| {
            let renamed = rustix::fs::renameat(&self.descriptor, &temporary, &self.descriptor, name);
            renamed.map_err(io::Error::from)
        });
        if written.is_err() {
            // The first error is the one to tell of.
            let _ = rustix::fs::unlinkat(&self.descriptor, &temporary, AtFlags::empty());
        }
        written
    }
}

fn write_whole(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
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
