//! `genv shell`

use std::env;
use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use clap::Args;
use genv_core::state::{StateStore, directory_path};
use genv_simulator::SourceOptions;

use super::why::print_unread;
use crate::failure::Failure;
use crate::machine::store;
use crate::output::print_note;
use crate::shell::{self, Caller, CallerError, Detected, ResumeError, ResumePurpose, Resumed, Shell as Kind, resume};

const EXAMPLE: &str = r#"Example: the line for ~/.bashrc or ~/.zshrc that sets up genv in every new shell
  eval "$(genv shell --init)"
The line for ~/.config/fish/config.fish
  genv shell --init fish | source"#;

/// Set up genv in a shell, or print whether genv is set up.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Shell {
    #[command(flatten)]
    action: Action,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Action {
    /// Print the code that sets up genv. Default: for the calling shell.
    #[arg(long, value_name = "SHELL", num_args = 0..=1)]
    init: Option<Option<Kind>>,

    /// Print the code that removes genv from the shell.
    #[arg(long, value_name = "SHELL", num_args = 0..=1)]
    deinit: Option<Option<Kind>>,

    /// Print that genv is set up.
    #[arg(long)]
    ok: bool,

    /// Update the shell's variables to the environment's devices, as 'genv attach --refresh'.
    #[arg(long)]
    reattach: bool,

    /// Update the shell's variables to the configuration, as 'genv config --refresh'.
    #[arg(long)]
    reconfigure: bool,

    /// Join the environment that the shell was started in, or leave it if it has ended.
    #[arg(long, hide = true)]
    join: bool,

    /// Update the shell's variables, and print the changes of its devices. The shell runs this before a prompt.
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

/// Prints the code that sets up genv in the calling shell.
pub(crate) fn print_init() -> anyhow::Result<()> {
    let code = known(None).map(shell::init).unwrap_or_default();
    io::stdout().write_all(code.as_bytes()).context("cannot print")
}

/// Whether genv is set up, or else the instructions.
fn status() -> Result<String, CallerError> {
    match Caller::from_environment() {
        Ok(_) => Ok(SET_UP.to_owned()),
        Err(CallerError::NotSetUp(detected)) => {
            Ok(format!("genv is not set up in this shell. {}\n", shell::advice(detected)))
        }
        Err(error) => Err(error),
    }
}

/// The work of a shell that was started within an environment.
fn join() -> anyhow::Result<()> {
    let caller = Caller::from_environment()?;
    let interactive = caller.interactive();
    if let Resumed::Left(why) = resumed(caller, ResumePurpose::Join)?
        && interactive
    {
        note(&why);
    }
    Ok(())
}

/// The work of a shell before a prompt, after a watched file has changed.
fn prompt() -> anyhow::Result<()> {
    match resumed(Caller::from_environment()?, ResumePurpose::Prompt)? {
        Resumed::Shown(lines) => lines.iter().for_each(|line| print_note(line)),
        Resumed::Left(why) => note(&why),
        Resumed::Nothing => {}
    }
    print_unread();
    Ok(())
}

/// Runs [`resume`], and prints the notices about the state.
fn resumed(caller: Caller, purpose: ResumePurpose) -> Result<Resumed, ResumeError> {
    let options = SourceOptions::default().or_from_environment();
    let mut store = options.map_or_else(
        // Commands that query the GPUs report the invalid variable.
        |_| StateStore::new(directory_path(env::var_os("GENV_TMPDIR").as_deref())),
        |options| store(&options),
    );
    let resumed = resume(caller, &mut store, purpose);
    store.take_notices().iter().for_each(|notice| print_note(notice));
    resumed
}

/// Updates the shell's variables to its environment.
pub(crate) fn refresh() -> anyhow::Result<()> {
    match resumed(Caller::from_environment()?, ResumePurpose::Refresh)? {
        Resumed::Shown(_) => {}
        Resumed::Left(why) => note(&why),
        Resumed::Nothing => bail!(Failure::NotActive("refresh")),
    }
    Ok(())
}

fn note(why: &str) {
    print_note(&format!("{why}: this shell is in no environment any more. 'genv activate' starts one."));
}

const SET_UP: &str = "genv is set up in this shell. 'genv status' shows its environment, 'genv activate' starts one.\n";

/// The named shell, or else the calling shell. Absent if the calling shell is not supported: it must not get code for
/// another shell.
fn known(named: Option<Kind>) -> Option<Kind> {
    match named.map_or_else(shell::detect, Detected::Supported) {
        Detected::Supported(shell) | Detected::Unknown(shell) => Some(shell),
        Detected::Unsupported => None,
    }
}
