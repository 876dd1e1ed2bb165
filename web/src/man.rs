//! Manual pages of a daemon from the definition of its command line.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Args;

/// Write a manual page of each command to a folder.
#[derive(Debug, Args)]
pub struct ManFlags {
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Manual pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages to {}: {error}. Choose a folder that you may write to", folder.display())]
pub struct ManError {
    folder: PathBuf,
    error: io::Error,
}

impl ManFlags {
    /// Writes a manual page for each command that is not hidden.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub fn write(self, command: clap::Command) -> Result<(), ManError> {
        let written = fs::create_dir_all(&self.folder).and_then(|()| clap_mangen::generate_to(command, &self.folder));
        written.map_err(|error| ManError { folder: self.folder, error })
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn command() -> Command {
        let hidden = Command::new("man").hide(true);
        Command::new("daemon").subcommands([Command::new("check"), hidden])
    }

    #[test]
    fn each_command_that_is_not_hidden_has_a_page() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("man1");
        let flags = ManFlags { folder: folder.clone() };
        flags.write(command()).unwrap();
        let pages = fs::read_dir(folder).unwrap();
        let mut pages: Vec<_> = pages.map(|page| page.unwrap().file_name()).collect();
        pages.sort();
        assert_eq!(pages, ["daemon-check.1", "daemon.1"]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let flags = ManFlags { folder: "/dev/null/man1".into() };
        assert_eq!(
            flags.write(command()).unwrap_err().to_string(),
            "cannot write manual pages to /dev/null/man1: Not a directory (os error 20). \
             Choose a folder that you may write to"
        );
    }
}
