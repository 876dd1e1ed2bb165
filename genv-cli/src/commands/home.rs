//! `genv home`

use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;

use crate::failure::Failure;
use crate::local_config::{self, Source};
use crate::output::print_note;

/// Print the folder or file that configures new environments in this directory.
#[derive(Debug, Args)]
pub(crate) struct Home {
    /// Do not print an error if there is none.
    #[arg(short, long)]
    quiet: bool,
}

impl Home {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let source = if self.quiet {
            local_config::find().source.ok_or(Failure::Silent(1))?
        } else {
            source("find a configuration")?
        };
        let mut out = io::stdout().lock();
        out.write_all(source.path().as_os_str().as_bytes())?;
        Ok(out.write_all(b"\n")?)
    }
}

/// The folder or file that configures environments in this directory. Prints a note about a nearer one of another user.
pub(crate) fn source(task: &str) -> anyhow::Result<Source> {
    let search = local_config::find();
    if let Some(skipped) = search.skipped() {
        print_note(&skipped);
    }
    let places = search.places();
    search.source.ok_or_else(|| {
        anyhow::anyhow!(
            "cannot {task}: there is no .genv folder and no genv.toml of yours in {places}. 'mkdir .genv' creates a folder"
        )
    })
}
