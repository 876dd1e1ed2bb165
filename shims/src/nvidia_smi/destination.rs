//! The destination of a rewritten output.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The destination of the output.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Standard output.
    Stdout,
    /// The file of `-f`. The real program replaces what it holds when it has an answer, and not when it refuses: so
    /// it is not opened before something is written.
    File {
        path: PathBuf,
        /// Open, as soon as it is.
        file: Option<File>,
    },
}

impl Destination {
    /// A file; nothing of one that cannot be written, of which the real program says what is wrong.
    pub(crate) fn file(path: PathBuf) -> Option<Self> {
        let is_writable = match fs::metadata(&path) {
            Ok(metadata) => !metadata.is_dir() && access(&path, Access::WRITE_OK).is_ok(),
            Err(_) => {
                let folder = path.parent().filter(|folder| *folder != Path::new(""));
                access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok()
            }
        };
        is_writable.then_some(Self::File { path, file: None })
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdout => "stdout".to_owned(),
            Self::File { path, .. } => format!("{:?}", path.display().to_string()),
        }
    }

    fn writer(&mut self) -> io::Result<Box<dyn Write + '_>> {
        Ok(match self {
            Self::Stdout => Box::new(io::stdout().lock()),
            Self::File { file: Some(file), .. } => Box::new(file),
            Self::File { path, file } => Box::new(file.insert(File::create(path)?)),
        })
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}
