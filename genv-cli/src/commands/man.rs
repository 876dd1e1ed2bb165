//! `genv man`, for makers of packages.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

/// Write a manual page of each command to a folder.
#[derive(Debug, Args)]
pub(crate) struct Man {
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| clap_mangen::generate_to(crate::run::command(), &self.folder));
        written.with_context(|| {
            let folder = self.folder.display();
            format!("cannot write manual pages to {folder}: choose a folder that you may write to")
        })
    }
}
