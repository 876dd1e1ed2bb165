//! `genv shell`

use std::env;
use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use clap::Args;
use genv_core::state::{StateStore, directory_path};
use genv_simulator::SourceOptions;

use super::why::print_unread;
use crate::failure::Failure;
use crate::machine::{store, tell};
use crate::shell::{self, Caller, CallerError, Detected, ResumeError, Resumed, Shell as Kind, Wish, resume};

const EXAMPLE: &str = r#"Example: in ~/.bashrc or ~/.zshrc, so that 'genv activate' works in every new shell
  eval "$(genv shell --init)"
and in ~/.config/fish/config.fish
  genv shell --init fish | source"#;

/// Set up genv in a shell, or print whether the shell is set up.
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

    /// Show the devices that the environment is attached to now, as 'genv attach --refresh'.
    #[arg(long)]
    reattach: bool,

    /// Show how the environment is configured now, as 'genv config --refresh'.
    #[arg(long)]
    reconfigure: bool,

    /// Become a member of the environment that the shell was started in, or leave it if it ended.
    #[arg(long, hide = true)]
    join: bool,

    /// Show the environment as it is now, and print what became of its devices. The shell asks before a prompt.
    #[arg(long, hide = true)]
    prompt: bool,
}

impl Shell {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let action = self.action;
        if action.join {
            return join();
        }
        if action.prompt {
            return prompt();
        }
        if action.reattach || action.reconfigure {
            return refresh();
        }
        let text = match (action.init, action.deinit) {
            (Some(named), _) => known(named).map(shell::init).unwrap_or_default(),
            (_, Some(named)) => known(named).map(|shell| shell::deinit(shell).to_owned()).unwrap_or_default(),
            _ if action.ok => SET_UP.to_owned(),
            _ => status()?,
        };
        io::stdout().write_all(text.as_bytes()).context("cannot print")
    }
}

/// Prints the code that sets genv up in the shell that asks.
pub(crate) fn print_init() -> anyhow::Result<()> {
    let code = known(None).map(shell::init).unwrap_or_default();
    io::stdout().write_all(code.as_bytes()).context("cannot print")
}

/// Whether genv is set up, and if not, how it is.
fn status() -> Result<String, CallerError> {
    match Caller::from_environment() {
        Ok(_) => Ok(SET_UP.to_owned()),
        Err(CallerError::NotSetUp(detected)) => {
            Ok(format!("genv is not set up in this shell. {}\n", shell::advice(detected)))
        }
        Err(error) => Err(error),
    }
}

/// What every shell does that was started within an environment.
fn join() -> anyhow::Result<()> {
    let caller = Caller::from_environment()?;
    let interactive = caller.interactive();
    if let Resumed::Left(why) = resumed(caller, Wish::Join)?
        && interactive
    {
        note(&why);
    }
    Ok(())
}

/// The work of a shell before a prompt after a file has changed.
fn prompt() -> anyhow::Result<()> {
    match resumed(Caller::from_environment()?, Wish::Prompt)? {
        Resumed::Shown(lines) => lines.iter().for_each(|line| tell(line)),
        Resumed::Left(why) => note(&why),
        Resumed::Nothing => {}
    }
    print_unread();
    Ok(())
}

/// What [`resume`] does, with what is said of the state's files.
fn resumed(caller: Caller, wish: Wish) -> Result<Resumed, ResumeError> {
    let options = SourceOptions::default().or_from_environment();
    let mut store = options.map_or_else(
        // What is wrong with it, the commands that ask the GPUs say.
        |_| StateStore::new(directory_path(env::var_os("GENV_TMPDIR").as_deref())),
        |options| store(&options),
    );
    let resumed = resume(caller, &mut store, wish);
    store.take_notices().iter().for_each(|notice| tell(notice));
    resumed
}

/// Shows the shell its environment as it is now.
pub(crate) fn refresh() -> anyhow::Result<()> {
    match resumed(Caller::from_environment()?, Wish::Refresh)? {
        Resumed::Shown(_) => {}
        Resumed::Left(why) => note(&why),
        Resumed::Nothing => bail!(Failure::NotActive("refresh")),
    }
    Ok(())
}

fn note(why: &str) {
    tell(&format!("{why}: this shell is in no environment any more. 'genv activate' starts one."));
}

const SET_UP: &str =
    "genv is set up in this shell. 'genv status' tells of its environment, 'genv activate' starts one.\n";

/// The shell that is named, or the one that asks. None: one that nothing can be set up in, and that must not be
/// given code of another.
fn known(named: Option<Kind>) -> Option<Kind> {
    match named.map_or_else(shell::detect, Detected::Supported) {
        Detected::Supported(shell) | Detected::Unknown(shell) => Some(shell),
        Detected::Unsupported => None,
    }
}
