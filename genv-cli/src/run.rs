//! From the command line to a command, and from its outcome to an exit code.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};
use clap_complete::CompleteEnv;

use crate::commands::{Command, overview, spelled_out};
use crate::completion;
use crate::failure::{EXIT_CODES, Failure, exit_code};
use crate::machine::tell;
use crate::output::{Color, harmless};
use crate::shell;

const EXAMPLE: &str = "Example: two GPUs for this shell, once it is set up (see 'genv shell')
  genv activate --gpus 2
  genv deactivate";

/// Share the GPUs of a machine: reserve devices, and see who holds and uses them.
///
/// On a terminal, genv without a command shows the devices and their use, as 'genv devices' does.
#[derive(Debug, Parser)]
#[command(name = "genv", version, after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Options {
    /// When to use colours.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 1000)]
    color: Color,
}

impl Cli {
    fn of(words: &[OsString]) -> Result<Self, clap::Error> {
        match Self::of_one_command(words) {
            Some(cli) => Ok(cli),
            None => Self::try_parse_from(words),
        }
    }

    /// Defining all commands takes longer than what some of them do. Whatever is wrong, or asks for help, is left to the
    /// whole definition.
    fn of_one_command(words: &[OsString]) -> Option<Self> {
        let name = words.get(1)?.to_str()?;
        let line = Options::augment_args(clap::Command::new("genv"));
        let line = line.subcommand(Command::define_alone(name)?);
        let matches = line.try_get_matches_from(words).ok()?;
        Self::from_arg_matches(&matches).ok()
    }
}

/// Reads the command line and does what it says.
pub(crate) fn run() -> ExitCode {
    if env::var_os(completion::VARIABLE).is_some() {
        return complete();
    }
    if let Some(error) = shell::called_by_genv_1(env::args_os()) {
        complain(&error.to_string());
        return ExitCode::FAILURE;
    }
    let words = spelled_out(env::args_os());
    let cli = match Cli::of(&words) {
        Ok(cli) => cli,
        Err(answer) => return answered(&answer),
    };
    cli.options.color.choose();
    let done = match cli.command {
        Some(command) => command.run(),
        None if io::stdout().is_terminal() => {
            let shown = overview();
            tell("'genv --help' lists the commands");
            shown
        }
        // Programs call it so to see whether it is there.
        None => Cli::command().print_help().map_err(Into::into),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as `head` has.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error.downcast_ref(), Some(Failure::Silent(_))) {
                // What went wrong elsewhere says what it was to do.
                let task = if error.is::<io::Error>() { "cannot print: " } else { "" };
                complain(&format!("{task}{error:#}"));
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The command line as it is defined.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Answers a shell that asks how the line may go on.
fn complete() -> ExitCode {
    let completion = CompleteEnv::with_factory(command).var(completion::VARIABLE);
    let folder = env::current_dir().ok();
    match completion.try_complete(env::args_os(), folder.as_deref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => answered(&error),
    }
}

/// Prints help and version, which are answers too, and tells in one line what is wrong with a command line.
fn answered(answer: &clap::Error) -> ExitCode {
    let whole = !answer.use_stderr() || answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if whole {
        // Nobody is left to tell if printing fails.
        let _ = answer.print();
    } else {
        complain(&one_line(answer));
    }
    ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1))
}

/// How much is shown of a word that is wrong.
const MOST_SHOWN_CHARACTERS: usize = 40;

/// What is wrong, and the hint if there is one, of what clap says in many lines.
fn one_line(error: &clap::Error) -> String {
    let mut rendered = error.render().to_string();
    for (_, value) in error.context() {
        if let ContextValue::String(value) = value
            && let Some((end, _)) = value.char_indices().nth(MOST_SHOWN_CHARACTERS)
        {
            rendered = rendered.replace(value, &format!("{}…", &value[..end]));
        }
    }
    let paragraphs = rendered.split("\n\n").map(|paragraph| {
        let lines = paragraph.lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    });
    let mut paragraphs = paragraphs.filter(|it| !it.is_empty());
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    if error.kind() == ErrorKind::ValueValidation {
        // The reason tells what to write instead.
        return harmless(what);
    }
    let tips = paragraphs.find_map(|it| it.strip_prefix("tip: ").map(str::to_owned));
    let tips = tips.filter(|_| !is_option_of_another(error));
    // No value begins with a hyphen: what clap says about those helps nobody.
    let hint = tips.and_then(|tips| {
        let mut tips = tips.split(" tip: ");
        let hint = tips.find(|it| !it.contains("' as a value, use '-- "));
        hint.map(str::to_owned)
    });
    let hint = hint.unwrap_or_else(|| "'--help' tells what there is".to_owned());
    harmless(&format!("{what}. {hint}"))
}

/// Whether the unknown argument is an option of another command, and so not misspelled: a similar option of this command
/// means another thing.
fn is_option_of_another(error: &clap::Error) -> bool {
    fn has(command: &clap::Command, name: &str) -> bool {
        let mut options = command.get_arguments();
        options.any(|it| {
            let names = it.get_long_and_visible_aliases();
            names.is_some_and(|names| names.contains(&name))
        }) || command.get_subcommands().any(|it| has(it, name))
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    let name = unknown.strip_prefix("--");
    name.is_some_and(|name| has(&Cli::command(), name))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

fn complain(message: &str) {
    // Nobody is left to tell if that fails.
    let _ = writeln!(io::stderr(), "genv: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of these words.
    fn said(words: &[&str]) -> String {
        let words = ["genv"].iter().chain(words);
        one_line(&Cli::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn a_wrong_command_line_is_told_in_one_line() {
        for (words, expected) in [
            (&["snapshto"][..], "unrecognized subcommand 'snapshto'. a similar subcommand exists: 'snapshot'"),
            (
                &["snapshot", "--intervall"],
                "unexpected argument '--intervall' found. a similar argument exists: '--interval'",
            ),
            (&["exec", "-d", "--", "sleep", "1"], "unexpected argument '-d' found. '--help' tells what there is"),
            (&["extend", "-1h"], "unexpected argument '-1' found. '--help' tells what there is"),
            (&["exec", "--gpu", "1"], "unexpected argument '--gpu' found. a similar argument exists: '--gpus'"),
            (&["snapshot", "more"], "unexpected argument 'more' found. '--help' tells what there is"),
        ] {
            assert_eq!(said(words), expected);
        }
    }

    #[test]
    fn of_a_word_that_is_too_long_the_beginning_is_shown() {
        let long = "ü".repeat(5_000);
        let shown = "ü".repeat(40);
        assert_eq!(
            said(&["activate", "--name", &long]),
            format!("invalid value '{shown}…' for '--name <NAME>': a name has at most 128 characters: choose another")
        );
        assert_eq!(said(&[&long]), format!("unrecognized subcommand '{shown}…'. '--help' tells what there is"));
    }

    #[test]
    fn a_command_that_is_defined_alone_means_the_same_and_leaves_what_is_wrong_to_the_whole() {
        for (line, is_alone) in [
            ("status", true),
            ("status --json", true),
            ("status --color never", true),
            ("shell --init", true),
            ("shell --init fish", true),
            ("envs --json", true),
            ("devices ps", true),
            ("activate --gpus 2 --name a", true),
            ("deactivate", true),
            ("snapshot", false),
            ("--color never status", false),
            ("status --help", false),
            ("status --jsom", false),
            ("help status", false),
            ("statu", false),
            ("", false),
        ] {
            let words = ["genv"].into_iter().chain(line.split_whitespace());
            let words: Vec<OsString> = words.map(OsString::from).collect();
            let alone = Cli::of_one_command(&words);
            assert_eq!(alone.is_some(), is_alone, "{line}");
            let said = |cli: Result<Cli, clap::Error>| cli.map_or_else(|it| it.to_string(), |it| format!("{it:?}"));
            assert_eq!(said(Cli::of(&words)), said(Cli::try_parse_from(&words)), "{line}");
        }
    }

    #[test]
    fn help_of_each_command_ends_its_options_with_color() {
        fn check(command: &mut clap::Command) {
            let help = command.render_help().to_string();
            let is_option = |line: &&str| line.trim_start().starts_with('-');
            let last = help.lines().rfind(is_option);
            assert!(last.is_none_or(|it| it.contains("--color")), "{help}");
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        command.get_subcommands_mut().for_each(check);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
