//! The command line.

mod peer;
mod tools;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use genv_core::duration::{parse_duration, parse_interval};
use genv_core::enforcement::ENFORCER_DIRECTORY;
use genv_remote::flags::HostFlags;
use genv_web::ListenAddress;
use genv_web::build::LONG_VERSION;
use genv_web::flags::{CollectFlags, LogFlags, SourceFlags, file};
use genv_web::man::ManFlags;

use crate::config::Mode;
use crate::reload::{Overrides, Source};
use crate::report::ReportFlags;
use peer::PeerArguments;
pub(crate) use tools::{ExplainFlags, ReplayFlags};

const EXAMPLE: &str = "Example: see for a week what would be done, then do it
  genv-enforcer check /etc/genv/enforcer.yaml
  genv-enforcer run --config=/etc/genv/enforcer.yaml --dry-run
  genv-enforcer status

Environment: GENV_TMPDIR (genv's state directory), GENV_NVML_LIBRARY, GENV_SCENARIO, GENV_DEVICES (number of simulated devices),
GENV_TERMINATE_PROCESSES=0 (nothing is ever signalled), STATE_DIRECTORY (the enforcer's own directory).
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.";

/// Apply a lab's rules on the use of GPUs.
#[derive(Debug, Parser)]
#[command(name = "genv-enforcer", version = LONG_VERSION, after_help = EXAMPLE, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunFlags>),
    Check(CheckFlags),
    Test(TestFlags),
    Replay(ReplayFlags),
    Explain(Box<ExplainFlags>),
    Report(ReportFlags),
    Status(StatusFlags),
    Pause(PauseFlags),
    Waive(WaiveFlags),
    Reset(ResetFlags),
    ExecuteReport(Box<ExecuteReportFlags>),
    CarryOut(Box<CarryOutFlags>),
    Notify(NotifyFlags),
    #[command(hide = true)]
    Man(ManFlags),
}

/// Enforce the rules until a signal ends the daemon.
#[derive(Debug, Args)]
pub(crate) struct RunFlags {
    /// Rules, in YAML; read again when the file changes, and on SIGHUP.
    #[arg(long, value_name = "FILE", value_parser = file)]
    config: Option<PathBuf>,

    /// Only log what the rules would do, whatever mode the file has.
    #[arg(long, conflicts_with = "enforce")]
    dry_run: bool,

    /// Act, whatever mode the file has.
    #[arg(long)]
    enforce: bool,

    /// Do one cycle, print what was found, and end.
    #[arg(long)]
    once: bool,

    /// Time between two cycles, instead of the file's; a number alone is seconds. 0: one cycle.
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,

    /// Address to listen on, for metrics; may be repeated.
    #[arg(long = "web.listen-address", value_name = "HOST:PORT", default_value = "127.0.0.1:9821")]
    pub(crate) listen_addresses: Vec<ListenAddress>,

    /// Listen on the sockets that systemd has opened instead.
    #[arg(long = "web.systemd-socket")]
    pub(crate) systemd_socket: bool,

    /// TLS and sign-in, in the format of Prometheus' exporter-toolkit.
    #[arg(long = "web.config.file", value_name = "FILE", value_parser = file)]
    pub(crate) web_config_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,

    #[command(flatten)]
    pub(crate) sources: SourceFlags,

    #[command(flatten)]
    pub(crate) collect: CollectFlags,

    #[command(flatten)]
    pub(crate) hosts: HostFlags,

    #[command(flatten)]
    pub(crate) log: LogFlags,

    #[command(flatten)]
    peer: PeerArguments,
}

/// Where the enforcer keeps its own files.
#[derive(Debug, Args)]
pub(crate) struct DirectoryFlag {
    /// Directory of the enforcer's own files [default: $STATE_DIRECTORY, else /var/lib/genv-enforcer].
    #[arg(long, value_name = "FOLDER", value_parser = file)]
    state_directory: Option<PathBuf>,
}

/// Check a configuration, and warn about probable mistakes.
#[derive(Debug, Args)]
pub(crate) struct CheckFlags {
    /// The configuration.
    #[arg(value_name = "FILE", value_parser = file)]
    pub(crate) file: PathBuf,
}

/// Test rules: what they do in cases that are written down, by a clock of their own.
#[derive(Debug, Args)]
pub(crate) struct TestFlags {
    /// Tests, in YAML.
    #[arg(value_name = "FILE", value_parser = file, required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// Print the state of the daemon and all violations.
#[derive(Debug, Args)]
pub(crate) struct StatusFlags {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,
}

/// Pause all warnings and actions for a time; violations keep their age.
#[derive(Debug, Args)]
#[command(after_help = "Example: while the storage is moved
  genv-enforcer pause --for 2h")]
pub(crate) struct PauseFlags {
    /// How long from now on; 0 ends a pause.
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    pub(crate) duration: Duration,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,
}

/// Exempt a user from a rule for a time.
#[derive(Debug, Args)]
#[command(after_help = "Example: alice may leave her devices idle until her deadline
  genv-enforcer waive alice --rule idle --for 3d --reason 'deadline on Friday'")]
pub(crate) struct WaiveFlags {
    /// The user, by name or as uid:1234.
    #[arg(value_name = "USER", value_parser = username)]
    pub(crate) user: String,

    /// The rule; may be repeated.
    #[arg(long = "rule", value_name = "RULE", required = true)]
    pub(crate) rules: Vec<String>,

    /// How long from now on; 0 ends the exemption.
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    pub(crate) duration: Duration,

    /// The reason, for the log and for users.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,
}

/// Close the breaker, after its cause is known.
#[derive(Debug, Args)]
pub(crate) struct ResetFlags {
    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,
}

/// End and detach what a report on stdin names, as genv 1.4.3's 'genv usage execute'; each process is verified first.
#[derive(Debug, Args)]
pub(crate) struct ExecuteReportFlags {
    /// Configuration whose 'never' and 'breaker' apply [default: /etc/genv/enforcer.yaml, if it is there].
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) config: Option<PathBuf>,

    /// Only print what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,

    #[command(flatten)]
    pub(crate) sources: SourceFlags,
}

/// Deliver a notice from stdin to its user by a command, and print whether the command accepted it; genv-notify.socket starts this.
#[derive(Debug, Args)]
pub(crate) struct NotifyFlags {
    /// The command: it gets the notice as JSON on stdin, and accepts it by exit code 0.
    #[arg(long, value_name = "FILE", value_parser = file, default_value = "/etc/genv/notify")]
    pub(crate) command: PathBuf,

    /// How long the command may take; a try that takes longer is killed. There are three tries.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    pub(crate) deadline: Duration,
}

/// Execute the steps that an enforcer on another machine requests on stdin, as far as the plan of this host confirms them; 'genv
/// remote-serve --enforce' runs this.
#[derive(Debug, Args)]
pub(crate) struct CarryOutFlags {
    /// Configuration whose 'never' and 'breaker' apply too [default: /etc/genv/enforcer.yaml, if it is there].
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,

    #[command(flatten)]
    pub(crate) sources: SourceFlags,
}

impl DirectoryFlag {
    /// The chosen directory. The first directory in `STATE_DIRECTORY` of systemd is the enforcer's.
    pub(crate) fn path(&self) -> PathBuf {
        let from_systemd = || {
            let paths = std::env::var_os("STATE_DIRECTORY").filter(|it| !it.is_empty())?;
            std::env::split_paths(&paths).next()
        };
        self.state_directory.clone().or_else(from_systemd).unwrap_or_else(|| ENFORCER_DIRECTORY.into())
    }
}

impl RunFlags {
    /// The source of the rules; absent if the command line names none.
    pub(crate) fn source(&self) -> Option<Source> {
        if let Some(path) = &self.config {
            return Some(Source::File(path.clone()));
        }
        let flags = self.peer.flags(self.interval)?;
        Some(Source::Flags(Box::new(flags)))
    }

    /// The values that override the file.
    pub(crate) fn overrides(&self) -> Overrides {
        let mode = match (self.dry_run, self.enforce) {
            (true, _) => Some(Mode::DryRun),
            (_, true) => Some(Mode::Enforce),
            (false, false) => None,
        };
        Overrides { mode, interval: if self.once { Some(Duration::ZERO) } else { self.interval } }
    }
}

/// An interval, or seconds as genv 1.4.3 takes them; 0 is one cycle.
fn interval(text: &str) -> Result<Duration, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = if digits && text != "0" { format!("{text}s") } else { text.to_owned() };
    if matches!(parse_duration(&text), Ok(Duration::ZERO)) {
        return Ok(Duration::ZERO);
    }
    parse_interval(&text).map_err(|error| error.to_string())
}

/// The longest pause or waiver: a permanent exemption belongs in the configuration.
const LONGEST_SPAN: Duration = Duration::from_secs(366 * 24 * 3600);

fn span(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|error| error.to_string())?;
    if span > LONGEST_SPAN {
        return Err("it is longer than a year: change the configuration instead".to_owned());
    }
    Ok(span)
}

fn username(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err("it is not a username: name one, or uid:1234".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::config::Config;

    fn run(arguments: &[&str]) -> Result<RunFlags, clap::Error> {
        let all = ["genv-enforcer", "run"].iter().chain(arguments);
        match CommandLine::try_parse_from(all)?.command {
            Command::Run(flags) => Ok(*flags),
            command => panic!("{command:?}"),
        }
    }

    #[test]
    fn the_examples_of_help_texts_are_parsed() {
        let mut command = CommandLine::command();
        command.build();
        let helps = std::iter::once(&command).chain(command.get_subcommands());
        let helps: Vec<String> = helps.filter_map(|command| Some(command.get_after_help()?.to_string())).collect();
        let lines = helps.iter().flat_map(|help| help.lines()).filter(|line| line.starts_with("  "));
        let examples: Vec<&str> = lines.filter_map(|line| Some(line.split_once("genv-enforcer ")?.1)).collect();
        assert!(examples.len() > 8, "{examples:?}");
        for example in examples {
            let parts = example.split('\'').enumerate();
            let words = parts.flat_map(|(number, part)| {
                let is_quoted = number % 2 == 1;
                if is_quoted { vec![part] } else { part.split_whitespace().collect() }
            });
            if let Err(error) = CommandLine::try_parse_from(std::iter::once("genv-enforcer").chain(words)) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn promise_04_without_rules_nothing_is_guessed() {
        assert!(run(&[]).unwrap().source().is_none());
        assert!(run(&["--interval=5"]).unwrap().source().is_none());
        assert_eq!(run(&[]).unwrap().overrides().mode, None);
    }

    #[test]
    fn by_default_only_this_machine_can_connect() {
        let flags = run(&[]).unwrap();
        let addresses: Vec<String> = flags.listen_addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["127.0.0.1:9821"]);
    }

    #[test]
    fn flags_of_genv_1_4_3_mean_what_they_mean_there() {
        let config = |arguments: &[&str]| match run(arguments).unwrap().source() {
            Some(Source::Flags(flags)) => Config::from_flags(&flags),
            source => panic!("{source:?}"),
        };
        let kinds = |arguments: &[&str]| -> Vec<String> {
            let rules = config(arguments).rules;
            rules.into_iter().map(|rule| rule.name).collect()
        };
        assert_eq!(kinds(&["--genv-1"]), ["env-devices", "env-memory"]);
        assert_eq!(kinds(&["--non-env-processes", "--no-env-memory"]), ["non-env-processes", "env-devices"]);
        assert_eq!(kinds(&["--no-env-devices", "--no-env-memory"]), [""; 0]);
        assert_eq!(config(&["--genv-1"]).interval, Duration::from_secs(10));
        assert_eq!(config(&["--genv-1", "--interval", "0"]).interval, Duration::ZERO);
        let maxima = [
            "--no-env-devices",
            "--no-env-memory",
            "--max-devices-for-user",
            "alice=1",
            "bob=2",
            "--max-devices-per-user=3",
        ];
        assert_eq!(kinds(&maxima), ["max-devices-per-user"]);
        assert_eq!(config(&maxima).mode, Mode::Enforce);
    }

    #[test]
    fn contradictory_flags_and_invalid_values_are_refused() {
        for arguments in [
            &["--config=a", "--env-devices"][..],
            &["--config=a", "--max-devices-per-user=1"],
            &["--dry-run", "--enforce"],
            &["--interval=1ms"],
            &["--interval=x"],
            &["--interval="],
            &["--max-devices-per-user=-1"],
            &["--max-devices-for-user", "alice"],
            &["--config="],
        ] {
            let error = run(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
        }
    }

    #[test]
    fn an_interval_is_a_duration_or_seconds() {
        assert_eq!(interval("15"), Ok(Duration::from_secs(15)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("0"), Ok(Duration::ZERO));
        assert_eq!(interval("0s"), Ok(Duration::ZERO));
    }
}
