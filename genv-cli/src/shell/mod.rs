//! The setup of `genv` in shells, and changes of the calling shell.
//!
//! A program cannot change its parent's variables. So `genv shell --init` prints a function `genv` that the shell evaluates
//! (`templates/`). The function runs the program with unchanged stdin, stdout and stderr, and with an additional pipe for
//! commands that change the shell. The program writes shell code to the pipe. After the end of the program the function
//! evaluates this code, and returns the program's exit code.
//!
//! A command that changes the shell does this:
//! ```ignore
//! let caller = Caller::from_environment()?; // before any change: fails without the function
//! // … change the state; caller.pid() is the member …
//! caller.enter(&environment, prompt)?; // or refresh, or leave
//! ```
//!
//! The protocol between function and program, with the version [`PROTOCOL`]:
//! - For each call the function sets `GENV_CALLER` to `PROTOCOL SHELL PID interactive|unhooked|subshell|script`.
//!   `unhooked`: other code has removed the hook before each prompt.
//! - File descriptor 9 is the pipe.
//! - The code only sets and unsets exported variables, and calls the functions `__genv_prompt on|off` and `__genv_watch` of
//!   the template. Values are quoted, so that their content is never executed (`quote`).
//!
//! Before each prompt within an environment the shell compares files with a stamp (`watch`). If a file is newer, or if a
//! reminder is due (`reminder`), the shell calls `genv shell --prompt`. Otherwise it starts no program.

mod caller;
mod child;
mod detect;
mod device_changes;
mod difference;
mod direnv;
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
pub(crate) use resume::{ResumeError, ResumePurpose, Resumed, resume};
pub(crate) use shims::folder as shims_folder;
pub(crate) use template::{deinit, init};
pub(crate) use variables::{ShellEnvironment, visible};

/// The version of the protocol. A function of another version is refused: genv must be set up again in its shell.
pub(crate) const PROTOCOL: u32 = 3;

/// A supported shell.
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

    /// The line that sets up genv, and the user's file for the line.
    pub(crate) const fn setup(self) -> (&'static str, &'static str) {
        match self {
            Self::Bash => (r#"eval "$(genv shell --init)""#, "~/.bashrc"),
            Self::Zsh => (r#"eval "$(genv shell --init)""#, "~/.zshrc"),
            Self::Fish => ("genv shell --init fish | source", "~/.config/fish/config.fish"),
        }
    }
}
