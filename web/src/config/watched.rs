//! Noticing that the content of a file has changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A file that is read when it has changed.
#[derive(Debug)]
pub(super) struct Watched {
    file: genv_core::files::Watched,
    /// What was read last: a digest of the bytes, or why there are none.
    content: Option<Result<[u8; 32], String>>,
}

impl Watched {
    /// A file that was not read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { file: genv_core::files::Watched::new(path), content: None }
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file's bytes, or why it cannot be read, if that differs from what the last call found. The first call
    /// always has an answer.
    pub(super) fn changed(&mut self) -> Option<io::Result<Vec<u8>>> {
        let bytes = self.file.changed(|path| fs::read(path))?;
        let content = match &bytes {
            Ok(bytes) => Ok(Sha256::digest(bytes).into()),
            Err(error) => Err(error.to_string()),
        };
        if self.content.as_ref() == Some(&content) {
            return None;
        }
        self.content = Some(content);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn each_change_is_reported_once_and_the_same_content_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut watched = Watched::new(path.clone());
        let mut next = |until: Duration| {
            let deadline = Instant::now() + until;
            loop {
                let changed = watched.changed();
                if changed.is_some() || Instant::now() > deadline {
                    return changed;
                }
                thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(next(Duration::ZERO).unwrap().is_err());
        for content in ["one", "two", "six"] {
            fs::write(&path, content).unwrap();
            assert_eq!(next(Duration::from_secs(120)).unwrap().unwrap(), content.as_bytes());
        }
        fs::write(&path, "six").unwrap();
        assert!(next(Duration::from_millis(300)).is_none());
        fs::remove_file(&path).unwrap();
        assert!(next(Duration::from_secs(120)).unwrap().is_err());
    }
}
