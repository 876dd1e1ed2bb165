//! The shells that people work in: how `genv` sets a shell up, and how a command changes the shell it is called from.
//!
//! No program can change its parent's variables. `genv shell --init` therefore prints a function `genv` for
//! the shell to evaluate (`templates/`). The function runs the program with stdin, stdout and stderr as they
//! are, and for the commands that change the shell with a pipe as well. What the program writes there
//! is shell code, which the function evaluates when the program has ended; then it returns the program's exit code.
//!
//! A command that changes the shell does this:
//! ```ignore
//! let caller = Caller::from_environment()?; // before anything is changed: fails without the function
//! // … change the state; caller.pid() is the member …
//! caller.enter(&environment, prompt)?; // or refresh, or leave
//! ```
//!
//! The protocol between function and program, version [`PROTOCOL`]:
//! - The function sets `GENV_CALLER` for this one call, to `PROTOCOL SHELL PID interactive|unhooked|subshell|script`.
//!   `unhooked`: other code has removed the hook before each prompt.
//! - File descriptor 9 is the pipe.
//! - The code sets and unsets exported variables, and calls `__genv_prompt on|off` and `__genv_watch`, which the
//!   function's template defines. Nothing else: the content of a value cannot run (`quote`).
//!
//! Before each prompt within an environment the shell compares files with a stamp (`watch`), and calls
//! `genv shell --prompt` if a file is newer, or if the time of a reminder has come (`reminder`). Otherwise it starts no
//! program.

mod caller;
mod child;
mod detect;
mod difference;
mod direnv;
mod news;
mod quote;
mod reminder;
mod resume;
mod shims;
mod template;
mod variables;
mod watch;

pub(crate) use caller::{Caller, CallerError, advice, called_by_genv_1, is_function_waiting};
pub(crate) use child::enter_child;
pub(crate) use detect::{Detected, detect};
pub(crate) use direnv::is_evaluating as is_envrc;
pub(crate) use resume::{ResumeError, Resumed, Wish, resume};
pub(crate) use shims::folder as shims_folder;
pub(crate) use template::{deinit, init};
pub(crate) use variables::{ShellEnvironment, visible};

/// Version of the protocol. A function of another version is refused: its shell has to be set up again.
pub(crate) const PROTOCOL: u32 = 3;

/// A shell that genv can be set up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    pub(crate) const ALL: [Self; 3] = [Self::Bash, Self::Zsh, Self::Fish];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// The line that sets genv up, and the file of a user where it belongs.
    pub(crate) const fn setup(self) -> (&'static str, &'static str) {
        match self {
            Self::Bash => (r#"eval "$(genv shell --init)""#, "~/.bashrc"),
            Self::Zsh => (r#"eval "$(genv shell --init)""#, "~/.zshrc"),
            Self::Fish => ("genv shell --init fish | source", "~/.config/fish/config.fish"),
        }
    }
}
