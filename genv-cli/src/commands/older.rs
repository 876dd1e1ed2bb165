//! `genv init -`, `genv root`, `genv exec devices` and `genv version`: spellings of older versions and of other programs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::shell::print_init;
use crate::output::print;

/// Print the code that sets up genv in this shell, as 'genv shell --init' does.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// A dash, for compatibility.
    #[arg(value_name = "-", value_parser = ["-"])]
    dash: Option<String>,
}

impl Init {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        print_init()
    }
}

/// Commands that genv 1.x also ran as `genv exec COMMAND`.
const ONCE_AFTER_EXEC: [&str; 6] = ["devices", "enforce", "envs", "monitor", "remote", "usage"];

/// The words of a command line without the `exec` of genv 1.x.
pub(super) fn without_exec(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_old = words.get(1).is_some_and(|word| word == "exec")
        && words.get(2).is_some_and(|word| ONCE_AFTER_EXEC.into_iter().any(|name| word == name));
    if is_old {
        words.remove(1);
    }
    words
}

/// Print the folder of genv's own files: its 'bin' has links to the programs and the shims.
#[derive(Debug, Args)]
pub(crate) struct Root {}

impl Root {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let program = env::current_exe().context("cannot find the path of this program")?;
        let root = root_of(&program).context(
            "cannot find the folder of genv's own files: this genv was installed without it. The packages and the tarball of \
             genv have it: install one of them",
        )?;
        let mut line = root.into_os_string().into_vec();
        line.push(b'\n');
        Ok(io::stdout().write_all(&line)?)
    }
}

/// `lib/genv` beside the folder of a program, if its `bin` has a link to this program. The check is necessary: users remove
/// the printed folder to uninstall genv.
fn root_of(program: &Path) -> Option<PathBuf> {
    let root = program.parent()?.parent()?.join("lib/genv");
    let linked = fs::canonicalize(root.join("bin").join(program.file_name()?)).ok()?;
    (linked == program).then_some(root)
}

/// Print the version of genv.
#[derive(Debug, Args)]
pub(crate) struct Version {}

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        Ok(print(concat!(env!("CARGO_PKG_VERSION"), "\n").as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_is_removed_only_before_commands_that_genv_1_ran_with_it() {
        for (line, expected) in [
            ("genv exec devices ps", "genv devices ps"),
            ("genv exec remote -host a envs", "genv remote -host a envs"),
            ("genv exec -- usage", "genv exec -- usage"),
            ("genv exec --gpus 1 monitor", "genv exec --gpus 1 monitor"),
            ("genv exec ./devices", "genv exec ./devices"),
            ("genv envs exec devices", "genv envs exec devices"),
            ("genv exec", "genv exec"),
            ("genv", "genv"),
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            let spelled = without_exec(words).join(OsString::from(" ").as_os_str());
            assert_eq!(spelled, expected);
        }
    }
}
