//! Parses the command line, runs the command, and returns the exit code.

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
use crate::output::{Color, harmless, print_note};
use crate::shell;

const EXAMPLE: &str = "Example: reserve two GPUs for this shell after the setup (see 'genv shell'), and release them
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
    /// Choose when to use colours.
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

    /// Parses the command line of a frequent command by its own definition, since the definition of all commands takes longer than
    /// some commands. `None` for other commands, errors and help.
    fn of_one_command(words: &[OsString]) -> Option<Self> {
        let name = words.get(1)?.to_str()?;
        let line = Options::augment_args(clap::Command::new("genv"));
        let line = line.subcommand(Command::define_alone(name)?);
        let matches = line.try_get_matches_from(words).ok()?;
        Self::from_arg_matches(&matches).ok()
    }
}

/// Runs the program.
pub(crate) fn run() -> ExitCode {
    if env::var_os(completion::VARIABLE).is_some() {
        return complete();
    }
    if let Some(error) = shell::called_by_genv_1(env::args_os()) {
        print_error(&error.to_string());
        return ExitCode::FAILURE;
    }
    let words = spelled_out(env::args_os());
    let cli = match Cli::of(&words) {
        Ok(cli) => cli,
        Err(answer) => return print_clap_error(&answer),
    };
    cli.options.color.choose();
    let done = match cli.command {
        Some(command) => command.run(),
        None if io::stdout().is_terminal() => {
            let shown = overview();
            print_note("'genv --help' lists the commands");
            shown
        }
        // Programs run genv without arguments to see whether it is installed.
        None => Cli::command().print_help().map_err(Into::into),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of stdout has ended, for example `head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error.downcast_ref(), Some(Failure::Silent(_))) {
                // Other errors name their task.
                let task = if error.is::<io::Error>() { "cannot print: " } else { "" };
                print_error(&format!("{task}{error:#}"));
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The definition of the command line.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Prints candidates for the completion of a command line.
fn complete() -> ExitCode {
    let completion = CompleteEnv::with_factory(command).var(completion::VARIABLE);
    let folder = env::current_dir().ok();
    match completion.try_complete(env::args_os(), folder.as_deref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => print_clap_error(&error),
    }
}

/// Prints help or the version, or an error of the command line in one line.
fn print_clap_error(answer: &clap::Error) -> ExitCode {
    let whole = !answer.use_stderr() || answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if whole {
        // An error of stderr cannot be reported.
        let _ = answer.print();
    } else {
        print_error(&one_line(answer));
    }
    ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1))
}

/// The largest number of characters of a quoted word.
const MOST_SHOWN_CHARACTERS: usize = 40;

/// Converts a message of clap to one line with the error and the hint.
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
        // The message contains a hint already.
        return harmless(what);
    }
    let tips = paragraphs.find_map(|it| it.strip_prefix("tip: ").map(str::to_owned));
    let tips = tips.filter(|_| !is_option_of_another(error));
    // No value of genv begins with a hyphen, so that clap's tip about such values does not help.
    let hint = tips.and_then(|tips| {
        let mut tips = tips.split(" tip: ");
        let hint = tips.find(|it| !it.contains("' as a value, use '-- "));
        hint.map(str::to_owned)
    });
    let hint = hint.unwrap_or_else(|| "'--help' lists commands and flags".to_owned());
    harmless(&format!("{what}. {hint}"))
}

/// Whether the unknown argument is an option of another command. Then it is not misspelled, and a similar option of this
/// command is no useful hint.
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

fn print_error(message: &str) {
    // An error of stderr cannot be reported.
    let _ = writeln!(io::stderr(), "genv: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(words: &[&str]) -> String {
        let words = ["genv"].iter().chain(words);
        one_line(&Cli::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn the_error_of_a_command_line_is_one_line() {
        for (words, expected) in [
            (&["snapshto"][..], "unrecognized subcommand 'snapshto'. a similar subcommand exists: 'snapshot'"),
            (
                &["snapshot", "--intervall"],
                "unexpected argument '--intervall' found. a similar argument exists: '--interval'",
            ),
            (&["exec", "-d", "--", "sleep", "1"], "unexpected argument '-d' found. '--help' lists commands and flags"),
            (&["extend", "-1h"], "unexpected argument '-1' found. '--help' lists commands and flags"),
            (&["exec", "--gpu", "1"], "unexpected argument '--gpu' found. a similar argument exists: '--gpus'"),
            // An option of another command is no misspelling.
            (&["detach", "--gpus", "2"], "unexpected argument '--gpus' found. '--help' lists commands and flags"),
            (&["attach", "--id", "4"], "unexpected argument '--id' found. '--help' lists commands and flags"),
            (&["exec", "--count", "1"], "unexpected argument '--count' found. '--help' lists commands and flags"),
            (&["snapshot", "more"], "unexpected argument 'more' found. '--help' lists commands and flags"),
        ] {
            assert_eq!(error_of(words), expected);
        }
    }

    #[test]
    fn each_command_that_attaches_has_the_options_that_refusals_name() {
        for line in ["activate OPTION", "attach OPTION", "exec OPTION -- true", "devices attach --eid a OPTION"] {
            for option in ["--wait", "-o", "--force", "--index=0"] {
                let line = format!("genv {}", line.replace("OPTION", option));
                assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn a_long_word_is_shortened_in_the_error() {
        let long = "ü".repeat(5_000);
        let shown = "ü".repeat(40);
        assert_eq!(
            error_of(&["activate", "--name", &long]),
            format!("invalid value '{shown}…' for '--name <NAME>': a name has at most 128 characters: choose another")
        );
        assert_eq!(
            error_of(&[&long]),
            format!("unrecognized subcommand '{shown}…'. '--help' lists commands and flags")
        );
    }

    #[test]
    fn a_frequent_command_is_parsed_as_by_the_whole_definition() {
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
            let described =
                |cli: Result<Cli, clap::Error>| cli.map_or_else(|it| it.to_string(), |it| format!("{it:?}"));
            assert_eq!(described(Cli::of(&words)), described(Cli::try_parse_from(&words)), "{line}");
        }
    }

    /// The indented lines at the end of the help of a command and of the commands below it.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().filter(|line| line.starts_with("  ")).map(str::to_owned);
        lines.chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn the_command_line_is_well_formed_and_the_examples_of_help_texts_are_parsed() {
        Cli::command().debug_assert();
        let mut command = Cli::command();
        command.build();
        let lines = examples(&command);
        assert!(lines.len() > 30, "{lines:?}");
        for example in lines {
            // As in `eval "$(genv shell --init)"`, `mkdir -p .genv && genv config --save` and `genv jobs | jq`.
            let (_, line) = example.rsplit_once("genv ").unwrap_or_else(|| panic!("{example}"));
            let line = line.split([')', '"', '|']).next().unwrap_or_default();
            let words = ["genv"].into_iter().chain(line.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{example}: {error}");
            }
        }
    }
}
