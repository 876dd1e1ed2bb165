//! `genv init -`, `genv root` and `genv version`: spellings that older versions of genv had, or other programs use.

use std::env;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Context as _;
use clap::Args;

use super::shell::print_init;
use crate::output::print;

/// Print the code that sets genv up in this shell, as 'genv shell --init'.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// A dash, or nothing.
    #[arg(value_name = "-", value_parser = ["-"])]
    dash: Option<String>,
}

impl Init {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        print_init()
    }
}

/// Print the folder that genv is installed in.
#[derive(Debug, Args)]
pub(crate) struct Root {}

impl Root {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let program = env::current_exe().context("cannot tell where this program is")?;
        let folder = program.parent().unwrap_or(&program);
        let root = match folder.parent() {
            Some(root) if folder.ends_with("bin") => root,
            _ => folder,
        };
        let mut line = root.as_os_str().as_bytes().to_vec();
        line.push(b'\n');
        Ok(io::stdout().write_all(&line)?)
    }
}

/// Print the version of genv.
#[derive(Debug, Args)]
pub(crate) struct Version {}

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        Ok(print(concat!(env!("CARGO_PKG_VERSION"), "\n").as_bytes())?)
    }
}
