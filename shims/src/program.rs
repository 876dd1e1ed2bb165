//! The real program behind a shim's name.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};

use crate::outcome::{CANNOT_RUN, NOT_FOUND, Refusal};

/// The depth of nested shims.
const DEPTH: &str = "GENV_SHIM_DEPTH";

/// The maximal depth. Programs call each other (docker its plugins, which call docker), but less often.
const MOST_DEPTH: u32 = 10;

/// The search path if PATH is not set.
const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Whether the user wants the real program untouched.
pub(crate) fn is_bypassed() -> bool {
    env::var_os("GENV_BYPASS").is_some_and(|value| value == "1")
}

/// A real program, found on PATH.
#[derive(Debug)]
pub(crate) struct RealProgram {
    path: PathBuf,
    depth: u32,
}

impl RealProgram {
    /// Finds the program `name` that is not a shim.
    pub(crate) fn find(name: &str) -> Result<Self, Refusal> {
        let depth = env::var(DEPTH).ok().and_then(|depth| depth.parse().ok());
        let depth = depth.unwrap_or(0_u32);
        if depth >= MOST_DEPTH {
            return Err(Refusal::new(
                CANNOT_RUN,
                format!(
                    "cannot run {name}: the programs of that name on PATH run one another without end: \
                     let the one that is no shim call the real program by its path"
                ),
            ));
        }
        let own = fs::metadata("/proc/self/exe").ok().map(|own| identity(&own));
        let path = env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
        let path = search(name, &path, own).ok_or_else(|| {
            Refusal::new(
                NOT_FOUND,
                format!(
                    "cannot run {name}: there is no other program of that name on PATH: \
                     install it, or add its folder to PATH"
                ),
            )
        })?;
        Ok(Self { path, depth })
    }

    /// A command that runs it.
    pub(crate) fn command(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).env(DEPTH, (self.depth + 1).to_string());
        command
    }

    /// Replaces this process by the program; returns only on failure.
    pub(crate) fn exec(&self, arguments: &[OsString]) -> Refusal {
        self.become_program(self.command(arguments))
    }

    /// Replaces this process by a command of [`RealProgram::command`]; returns only on failure.
    pub(crate) fn become_program(&self, mut command: Command) -> Refusal {
        self.cannot_run(&command.exec())
    }

    /// The error of a program that could not be started.
    pub(crate) fn cannot_run(&self, error: &std::io::Error) -> Refusal {
        let (code, next) = if error.kind() == ErrorKind::NotFound {
            (NOT_FOUND, "install it again")
        } else {
            (CANNOT_RUN, "see that it is a program for this machine, and that you may execute it")
        };
        let path = self.path.display().to_string();
        Refusal::new(code, format!("cannot run {path:?}: {error}: {next}"))
    }
}

/// The identity of a file, independent of its name.
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The first program of that name on `path` that comes after the shim itself, or else before it.
///
/// With two shims on PATH the first one finds the second one, and the second one the real program behind it. Files in the
/// shim's own folder are skipped, also under another name of that folder. Folders of shims of any genv are skipped too:
/// the shim of 1.x would take this one for the real program.
fn search(name: &str, path: &OsStr, own: Option<(u64, u64)>) -> Option<PathBuf> {
    let found: Vec<(PathBuf, (u64, u64))> = env::split_paths(path)
        .map(|folder| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder })
        .filter_map(|folder| {
            let program = folder.join(name);
            let metadata = fs::metadata(&program).ok()?;
            let file = identity(&metadata);
            let is_found = Some(file) == own || !holds_shims(&folder);
            (is_found && is_executable(&program, &metadata)).then_some((program, file))
        })
        .collect();
    let after = found.iter().position(|(_, file)| Some(*file) == own).map_or(0, |own| own + 1);
    let (before, behind) = found.split_at(after);
    let mut others = behind.iter().chain(before);
    others.find(|(_, file)| Some(*file) != own).map(|(program, _)| program.clone())
}

/// Whether a folder is one that genv puts first on PATH: `lib/genv/shims`, or `site-packages/genv/shims` of 1.x.
fn holds_shims(folder: &Path) -> bool {
    fs::canonicalize(folder).is_ok_and(|folder| folder.ends_with("genv/shims"))
}

fn is_executable(program: &Path, metadata: &fs::Metadata) -> bool {
    metadata.is_file() && access(program, Access::EXEC_OK).is_ok()
}
