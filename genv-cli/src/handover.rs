//! Other programs that replace `genv` (execve(2)).

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use rustix::fs::{Access, access};

/// Finds a program of this project: first next to this program, then on PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    own.into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
}

/// Replaces this program by another one. Returns only after an error.
pub(crate) fn exec_program(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<()> {
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| {
        let program = program.display();
        format!("cannot start {program}: see whether it is a program of this machine")
    })
}
