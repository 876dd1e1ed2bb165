//! `genv shell`

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::Args;

use crate::shell::{self, Caller, CallerError, Detected, Shell as Kind};

const EXAMPLE: &str = r#"Example: in ~/.bashrc or ~/.zshrc, so that 'genv activate' works in every new shell
  eval "$(genv shell --init)"
and in ~/.config/fish/config.fish
  genv shell --init fish | source"#;

/// Set genv up in a shell, or tell whether it is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Shell {
    #[command(flatten)]
    action: Action,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Action {
    /// Print the code that sets it up. Without a name it is the shell that asks.
    #[arg(long, value_name = "SHELL", num_args = 0..=1)]
    init: Option<Option<Kind>>,

    /// Print the code that removes it.
    #[arg(long, value_name = "SHELL", num_args = 0..=1)]
    deinit: Option<Option<Kind>>,

    /// Say that it is set up.
    #[arg(long)]
    ok: bool,
}

impl Shell {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Action { init, deinit, ok } = self.action;
        let text = match (init, deinit) {
            (Some(named), _) => known(named).map(shell::init).unwrap_or_default(),
            (_, Some(named)) => known(named)
                .map(|shell| shell::deinit(shell).to_owned())
                .unwrap_or_default(),
            _ if ok => SET_UP.to_owned(),
            _ => match Caller::from_environment() {
                Ok(_) => SET_UP.to_owned(),
                Err(CallerError::NotSetUp(detected)) => {
                    format!(
                        "genv is not set up in this shell. {}\n",
                        shell::advice(detected)
                    )
                }
                Err(error) => return Err(error.into()),
            },
        };
        io::stdout()
            .write_all(text.as_bytes())
            .context("cannot print")
    }
}

const SET_UP: &str = "genv is set up in this shell. 'genv status' tells of its environment, 'genv activate' starts one.\n";

/// The shell that is named, or the one that asks. None: one that nothing can be set up in, and that must not be
/// given code of another.
fn known(named: Option<Kind>) -> Option<Kind> {
    match named.map_or_else(shell::detect, Detected::Supported) {
        Detected::Supported(shell) | Detected::Unknown(shell) => Some(shell),
        Detected::Unsupported => None,
    }
}
