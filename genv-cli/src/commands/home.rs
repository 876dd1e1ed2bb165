//! `genv home`

use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use crate::local_config;

/// Print which .genv folder configures environments that are activated here.
#[derive(Debug, Args)]
pub(crate) struct Home {
    /// Do not say that there is none.
    #[arg(short, long)]
    quiet: bool,
}

impl Home {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = match folder("find a configuration") {
            Err(_) if self.quiet => return Err(Failure::Silent(1).into()),
            found => found?,
        };
        let mut out = io::stdout().lock();
        out.write_all(folder.as_os_str().as_bytes())?;
        Ok(out.write_all(b"\n")?)
    }
}

/// The nearest `.genv`.
///
/// # Errors
/// There is none.
pub(crate) fn folder(task: &str) -> anyhow::Result<PathBuf> {
    local_config::find().ok_or_else(|| {
        anyhow::anyhow!(
            "cannot {task}: there is no .genv folder in the working directory, above it or in the home directory. \
             'mkdir .genv' makes one"
        )
    })
}
