//! `genv completions`

use std::io;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use crate::completion::VARIABLE;
use crate::output::print;

const EXAMPLE: &str = "Example: the line for ~/.bashrc, or for ~/.zshrc after compinit
  source <(genv completions bash)
The line for ~/.config/fish/config.fish
  genv completions fish | source";

/// Print shell code that completes commands, ids of environments and indices of devices.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Completions {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let shell: &dyn EnvCompleter = match self.shell {
            Shell::Bash => &Bash,
            Shell::Zsh => &Zsh,
            Shell::Fish => &Fish,
        };
        let mut code = Vec::new();
        shell
            .write_registration(VARIABLE, "genv", "genv", "genv", &mut code)
            .map_err(io::Error::other)
            .and_then(|()| print(&code))
            .context("cannot print")
    }
}
