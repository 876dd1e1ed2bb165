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

/// Where the function listens. Opened by name, since a number alone says nothing of whose file it is.
const CHANNEL: &str = "/proc/self/fd/9";

/// The shell that called this program through its function, and waits for changes.
#[derive(Debug)]
pub(crate) struct Caller {
    shell: Shell,
    pid: u32,
    kind: Kind,
    /// The files that its prompt compares, looked at before any read.
    watch: Option<Watch>,
}

/// The function's knowledge of its shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    /// The program was called as it is, without the function.
    #[error("cannot change this shell: genv is not set up in it. {}", advice(*.0))]
    NotSetUp(Detected),
    /// The function is of another version.
    #[error(
        "cannot change this shell: it was set up by another version of genv. Open a new shell, or set this one up again:\n\n    {}",
        .0.setup().0
    )]
    OtherVersion(Shell),
    /// The function listens no more.
    #[error("cannot change this shell: it does not listen ({0}). Try again in a new shell")]
    Channel(io::Error),
}

impl From<io::Error> for CallerError {
    fn from(error: io::Error) -> Self {
        Self::Channel(error)
    }
}

/// What to do in a shell where genv is not set up.
pub(crate) fn advice(detected: Detected) -> String {
    let (Detected::Supported(shell) | Detected::Unknown(shell)) = detected else {
        return "It works in bash, zsh and fish: start one of them".to_owned();
    };
    let (line, file) = shell.setup();
    format!("Run this line, and add it to {file}:\n\n    {line}")
}

/// Whether these arguments are those of the shell function of genv 1.x, which gives the shell's pid so. It would
/// evaluate what is printed, and is refused like one of another version.
pub(crate) fn called_by_genv_1(arguments: impl Iterator<Item = OsString>) -> Option<CallerError> {
    let words: Vec<OsString> = arguments.skip(1).take(2).collect();
    let is_call = matches!(&words[..], [command, flag] if (command == "activate" || command == "deactivate") && flag == "--shell");
    is_call.then(|| CallerError::OtherVersion(any_shell()))
}

/// The shell that calls, as far as it can be told.
fn any_shell() -> Shell {
    match detect() {
        Detected::Supported(shell) | Detected::Unknown(shell) => shell,
        Detected::Unsupported => Shell::Bash,
    }
}

/// Whether a shell's function waits for this program. A program below the function has its variables, but not its pipe.
pub(crate) fn is_function_waiting() -> bool {
    env::var_os(VARIABLE).is_some() && fs::metadata(CHANNEL).is_ok_and(|file| file.file_type().is_fifo())
}

impl Caller {
    /// The shell whose function called this program.
    ///
    /// Call it before anything is changed.
    ///
    /// # Errors
    /// The program was called without the function, or by one of another version. The exit code is 1.
    pub(crate) fn from_environment() -> Result<Self, CallerError> {
        let Some(text) = env::var_os(VARIABLE) else {
            return Err(CallerError::NotSetUp(detect()));
        };
        let caller = Self::parse(text)?;
        if is_function_waiting() {
            // Ctrl-Z would stop this program, and with it the shell, which waits for it and cannot let it go on.
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
                "interactive" => Kind::Interactive,
                "unhooked" => Kind::Unhooked,
                "subshell" => Kind::Subshell,
                _ => Kind::Script,
            };
            return Ok(Self { shell, pid, kind, watch: None });
        }
        Err(CallerError::OtherVersion(named.unwrap_or_else(any_shell)))
    }

    /// The pid of the shell: of the subshell, where it is one.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether somebody types into the shell.
    pub(crate) const fn interactive(&self) -> bool {
        !matches!(self.kind, Kind::Script)
    }

    /// Whether this is a subshell of an interactive shell.
    pub(crate) const fn is_subshell(&self) -> bool {
        matches!(self.kind, Kind::Subshell)
    }

    /// Whether other code has removed the hook before each prompt.
    pub(crate) const fn is_unhooked(&self) -> bool {
        matches!(self.kind, Kind::Unhooked)
    }

    /// The time at which the shell last looked at its environment, if its prompt does so.
    pub(crate) fn seen(&self) -> Option<SystemTime> {
        self.watch.as_ref()?.since()
    }

    /// Lets the shell enter `environment`; `prompt`: and show it in its prompt, if it is interactive.
    ///
    /// # Errors
    /// The shell is gone.
    pub(crate) fn enter(self, environment: &ShellEnvironment<'_>, prompt: bool) -> Result<(), CallerError> {
        self.show(environment, Occasion::Enter { prompt })
    }

    /// Updates a shell in `environment` after a command of the user.
    ///
    /// # Errors
    /// The shell is gone.
    pub(crate) fn refresh(self, environment: &ShellEnvironment<'_>) -> Result<(), CallerError> {
        self.show(environment, Occasion::Command)
    }

    /// Lets the shell leave its environment: everything is as before it entered.
    ///
    /// # Errors
    /// The shell is gone.
    pub(crate) fn leave(self) -> Result<(), CallerError> {
        let changes = variables::hide(|name| env::var_os(name));
        self.watch.as_ref().inspect(|watch| watch.forget());
        self.hand_over(&changes)
    }

    /// Makes a shell show its environment.
    ///
    /// # Errors
    /// The shell is gone.
    pub(super) fn show(self, environment: &ShellEnvironment<'_>, occasion: Occasion) -> Result<(), CallerError> {
        let read = |name: &str| env::var_os(name);
        let mut changes = variables::show(read, environment, shims::folder(), occasion);
        changes.push(Change::Watch(self.watched(variables::watched(&changes))));
        self.hand_over(&changes)
    }

    /// The words for its prompt's next comparisons; none if comparing is not possible.
    fn watched(&self, [folder, reminder]: [OsString; 2]) -> Vec<OsString> {
        let Some(watch) = self.watch.as_ref().filter(|it| it.keep().is_ok()) else {
            return Vec::new();
        };
        let mut words: Vec<OsString> = watch.paths().collect();
        words.splice(1..1, [folder, reminder]);
        words
    }

    /// Makes its prompt wait for the next change.
    pub(super) fn mark_seen(&self) {
        // Without a stamp the prompt asks again.
        self.watch.as_ref().map(Watch::keep);
    }

    /// Sees to it that the shell still listens, which one that was killed does not.
    ///
    /// # Errors
    /// The shell is gone.
    pub(crate) fn check(&self) -> Result<(), CallerError> {
        // An empty line means nothing to any shell; writing less than that tells nothing.
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
    fn a_call_of_another_version_is_told_how_to_go_on() {
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
