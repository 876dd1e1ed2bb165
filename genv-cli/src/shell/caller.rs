//! The shell that called this program through its function `genv`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::time::SystemTime;

use signal_hook::consts::SIGTSTP;

use super::detect::{Detected, detect};
use super::variables::{self, Change, Occasion, ShellEnvironment};
use super::watch::Watch;
use super::{PROTOCOL, Shell, shims};

/// Set by the shell function for one call.
const VARIABLE: &str = "GENV_CALLER";

/// The pipe to the function. Opened by name, since descriptor 9 could belong to another program.
const CHANNEL: &str = "/proc/self/fd/9";

/// The calling shell, whose function waits for changes.
#[derive(Debug)]
pub(crate) struct Caller {
    shell: Shell,
    pid: u32,
    kind: CallerKind,
    /// The watched files, with their times before any read.
    watch: Option<Watch>,
}

/// The kind of the calling shell, as its function reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerKind {
    Interactive,
    /// An interactive shell in which other code has removed the hook before each prompt.
    Unhooked,
    /// A subshell of an interactive shell, such as a part of a pipe.
    Subshell,
    Script,
}

/// Why the calling shell cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallerError {
    /// The program was called without the function.
    #[error("cannot change this shell: genv is not set up in it. {}", advice(*.0))]
    NotSetUp(Detected),
    /// The function is of another version.
    #[error(
        "cannot change this shell: it was set up by another version of genv. Open a new shell, or set this one up again:\n\n    {}",
        .0.setup().0
    )]
    OtherVersion(Shell),
    /// The function does not read the pipe any more.
    #[error("cannot change this shell: it does not listen ({0}). Try again in a new shell")]
    Channel(io::Error),
}

impl From<io::Error> for CallerError {
    fn from(error: io::Error) -> Self {
        Self::Channel(error)
    }
}

/// The instructions for the setup of genv.
pub(crate) fn advice(detected: Detected) -> String {
    let (Detected::Supported(shell) | Detected::Unknown(shell)) = detected else {
        return "It works in bash, zsh and fish: start one of them".to_owned();
    };
    let (line, file) = shell.setup();
    format!("Run this line, and add it to {file}:\n\n    {line}")
}

/// The error for a call by the shell function of genv 1.x, recognized by its arguments. That function would evaluate the
/// output.
pub(crate) fn called_by_genv_1(arguments: impl Iterator<Item = OsString>) -> Option<CallerError> {
    let words: Vec<OsString> = arguments.skip(1).take(2).collect();
    let is_call = matches!(&words[..], [command, flag] if (command == "activate" || command == "deactivate") && flag == "--shell");
    is_call.then(|| CallerError::OtherVersion(any_shell()))
}

/// The calling shell, or else a probable one.
fn any_shell() -> Shell {
    match detect() {
        Detected::Supported(shell) | Detected::Unknown(shell) => shell,
        Detected::Unsupported => Shell::Bash,
    }
}

/// Whether a shell's function waits for this program. A program that the shell starts without the function has no pipe.
pub(crate) fn is_function_waiting() -> bool {
    env::var_os(VARIABLE).is_some() && fs::metadata(CHANNEL).is_ok_and(|file| file.file_type().is_fifo())
}

impl Caller {
    /// The shell whose function called this program.
    ///
    /// Must be called before any change.
    ///
    /// # Errors
    /// The program was called without the function, or by a function of another version.
    pub(crate) fn from_environment() -> Result<Self, CallerError> {
        let Some(text) = env::var_os(VARIABLE) else {
            return Err(CallerError::NotSetUp(detect()));
        };
        let caller = Self::parse(text)?;
        if is_function_waiting() {
            // Ctrl-Z would stop this program, and the waiting shell could not continue it.
            signal_hook::flag::register(SIGTSTP, Arc::default())?;
            let watch = Some(caller.pid).filter(|_| caller.interactive());
            Ok(Self { watch: watch.and_then(Watch::begin), ..caller })
        } else {
            Err(CallerError::NotSetUp(detect()))
        }
    }

    fn parse(text: OsString) -> Result<Self, CallerError> {
        let text = text.into_string().unwrap_or_default();
        let words: Vec<&str> = text.split(' ').collect();
        let named = words.get(1).and_then(|name| Shell::named(name));
        if let (true, Some(shell), [_, _, pid, kind]) = (words[0] == PROTOCOL.to_string(), named, &words[..])
            && let Ok(pid) = pid.parse()
        {
            let kind = match *kind {
                "interactive" => CallerKind::Interactive,
                "unhooked" => CallerKind::Unhooked,
                "subshell" => CallerKind::Subshell,
                _ => CallerKind::Script,
            };
            return Ok(Self { shell, pid, kind, watch: None });
        }
        Err(CallerError::OtherVersion(named.unwrap_or_else(any_shell)))
    }

    /// The pid of the shell or the subshell.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the shell is interactive.
    pub(crate) const fn interactive(&self) -> bool {
        !matches!(self.kind, CallerKind::Script)
    }

    /// Whether this is a subshell of an interactive shell.
    pub(crate) const fn is_subshell(&self) -> bool {
        matches!(self.kind, CallerKind::Subshell)
    }

    /// Whether other code has removed the hook before each prompt.
    pub(crate) const fn is_unhooked(&self) -> bool {
        matches!(self.kind, CallerKind::Unhooked)
    }

    /// The time of the shell's last check for changes, if its prompt checks.
    pub(crate) fn seen(&self) -> Option<SystemTime> {
        self.watch.as_ref()?.since()
    }

    /// Makes the shell enter an environment. `prompt`: an interactive shell also shows the environment in its prompt.
    pub(crate) fn enter(self, environment: &ShellEnvironment<'_>, prompt: bool) -> Result<(), CallerError> {
        self.show(environment, Occasion::Enter { prompt })
    }

    /// Updates the variables of a shell after a command of the user.
    pub(crate) fn refresh(self, environment: &ShellEnvironment<'_>) -> Result<(), CallerError> {
        self.show(environment, Occasion::Command)
    }

    /// Makes the shell leave its environment, and restores its variables.
    pub(crate) fn leave(self) -> Result<(), CallerError> {
        let changes = variables::hide(|name| env::var_os(name));
        self.watch.as_ref().inspect(|watch| watch.forget());
        self.hand_over(&changes)
    }

    /// Sets the variables of an environment in the shell.
    pub(super) fn show(self, environment: &ShellEnvironment<'_>, occasion: Occasion) -> Result<(), CallerError> {
        let read = |name: &str| env::var_os(name);
        let mut changes = variables::show(read, environment, shims::folder(), occasion);
        changes.push(Change::Watch(self.watched(variables::watched(&changes))));
        self.hand_over(&changes)
    }

    /// The arguments of `__genv_watch` for the next prompts; none if the files cannot be watched.
    fn watched(&self, [folder, reminder]: [OsString; 2]) -> Vec<OsString> {
        let Some(watch) = self.watch.as_ref().filter(|it| it.keep().is_ok()) else {
            return Vec::new();
        };
        let mut words: Vec<OsString> = watch.paths().collect();
        words.splice(1..1, [folder, reminder]);
        words
    }

    /// Updates the stamp, so that the prompt waits for the next change.
    pub(super) fn mark_seen(&self) {
        // Without a stamp the next prompt calls genv again.
        self.watch.as_ref().map(Watch::keep);
    }

    /// Checks that the shell still waits for changes, and was not killed.
    pub(crate) fn check(&self) -> Result<(), CallerError> {
        // An empty line has no effect in any shell. A write of 0 bytes would not detect a closed pipe.
        send(b"\n")
    }

    fn hand_over(&self, changes: &[Change]) -> Result<(), CallerError> {
        let is_meant = |change: &&Change| self.interactive() || !matches!(change, Change::Prompt(_) | Change::Watch(_));
        let changes: Vec<Change> = changes.iter().filter(is_meant).cloned().collect();
        send(&variables::code(self.shell, &changes))
    }
}

fn send(code: &[u8]) -> Result<(), CallerError> {
    let mut channel = OpenOptions::new().write(true).open(CHANNEL)?;
    Ok(channel.write_all(code)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_names_shell_pid_and_kind() {
        let caller = Caller::parse("3 zsh 42 interactive".into()).unwrap();
        assert_eq!((caller.shell, caller.pid(), caller.interactive()), (Shell::Zsh, 42, true));
        assert!(!Caller::parse("3 bash 42 script".into()).unwrap().interactive());
    }

    #[test]
    fn the_error_of_another_version_has_the_line_for_the_setup() {
        for text in
            ["1 fish 42 interactive", "0 fish 1 script", "3 fish x script", "3 fish 3", "3 fish 42 interactive more"]
        {
            let error = Caller::parse(text.into()).unwrap_err();
            assert!(matches!(error, CallerError::OtherVersion(Shell::Fish)), "{text}");
            assert!(error.to_string().ends_with("genv shell --init fish | source"));
        }
        for text in ["", "2", "2 tcsh 3 script"] {
            let error = Caller::parse(text.into()).unwrap_err();
            assert!(matches!(error, CallerError::OtherVersion(_)), "{text}");
        }
    }
}
