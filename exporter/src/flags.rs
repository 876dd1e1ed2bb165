//! The command line, and the checked options.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use genv_core::collect::{CollectOptions, Collectors};
use genv_core::duration::{parse_duration, parse_interval};
use genv_remote::flags::HostFlags;
use genv_simulator::SourceOptions;
use genv_web::ListenAddress;
use genv_web::build::LONG_VERSION;
use genv_web::flags::{CollectFlags, LogFlags, SourceFlags, file};
use genv_web::man::ManFlags;

use crate::endpoints::RESERVED_PATHS;
use crate::families::Limits;
use crate::publish::{PublishFlags, PublishOptions};
use crate::usernames::Usernames;

/// The default of `--snapshot.max-age`, unless three intervals are longer.
const SHORTEST_DEFAULT_MAX_AGE: Duration = Duration::from_secs(30);

const EXAMPLE: &str = "Example: see the built-in simulation, on a machine without a GPU
  genv-exporter --gpu.source=simulated --interval=1s
  curl http://127.0.0.1:9820/metrics

Environment: GENV_TMPDIR (state directory), GENV_NVML_LIBRARY, GENV_SCENARIO, GENV_DEVICES (number of simulated devices).
Exit codes: 0 stopped by a signal, 1 failed, 2 wrong usage.";

/// Serve Prometheus metrics of GPU devices, genv environments, users and processes.
#[derive(Debug, Parser)]
#[command(
    name = "genv-exporter",
    version = LONG_VERSION,
    after_help = EXAMPLE,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    web: WebFlags,

    /// Time between two collections.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_interval)]
    interval: Duration,

    /// Age at which values that could not be read again are withdrawn; at least the interval
    /// [default: 30s, or three intervals if that is longer].
    #[arg(long = "snapshot.max-age", value_name = "DURATION", value_parser = parse_duration)]
    max_age: Option<Duration>,

    #[command(flatten)]
    sources: SourceFlags,

    #[command(flatten)]
    collect: CollectFlags,

    #[command(flatten)]
    hosts: HostFlags,

    #[command(flatten)]
    collectors: CollectorFlags,

    /// Processes of a host that have series of their own, the largest first; the others are summed.
    #[arg(
        long = "collector.processes.limit",
        value_name = "NUMBER", value_parser = number,
        default_value_t = 64
    )]
    processes_limit: usize,

    /// Utilization, 0 to 1, from which a device that is held counts as busy.
    #[arg(long = "accounting.busy-above", value_name = "RATIO", default_value = "0.05", value_parser = ratio)]
    busy_above: f64,

    /// How users are named in labels and snapshots.
    #[arg(long, value_name = "FORM", default_value = "name")]
    usernames: Usernames,

    #[command(flatten)]
    log: LogFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    Publish(Box<PublishFlags>),
    #[command(hide = true)]
    Man(ManFlags),
}

#[derive(Debug, Args)]
struct WebFlags {
    /// Address to listen on; may be repeated.
    #[arg(long = "web.listen-address", value_name = "HOST:PORT", default_value = "127.0.0.1:9820")]
    listen_addresses: Vec<ListenAddress>,

    /// Listen on the sockets that systemd has opened instead.
    #[arg(long = "web.systemd-socket")]
    systemd_socket: bool,

    /// TLS and sign-in, in the format of Prometheus' exporter-toolkit.
    #[arg(long = "web.config.file", value_name = "FILE", value_parser = file)]
    config_file: Option<PathBuf>,

    /// Path of the metrics.
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics", value_parser = telemetry_path)]
    telemetry_path: String,

    /// Requests answered at once; one more gets 503. 0: no limit.
    #[arg(long = "web.max-requests", value_name = "NUMBER", value_parser = number, default_value_t = 40)]
    max_requests: usize,
}

#[derive(Debug, Args)]
struct CollectorFlags {
    /// Collect devices (the default).
    #[arg(long = "collector.gpu", overrides_with = "no_gpu", action = ArgAction::SetTrue)]
    gpu: bool,
    /// Leave devices out, and all that depends on them.
    #[arg(long = "no-collector.gpu", action = ArgAction::SetTrue)]
    no_gpu: bool,

    /// Collect processes that use a device (the default).
    #[arg(long = "collector.processes", overrides_with = "no_processes", action = ArgAction::SetTrue)]
    processes: bool,
    /// Leave processes out.
    #[arg(long = "no-collector.processes", action = ArgAction::SetTrue)]
    no_processes: bool,

    /// Collect environments and attachments (the default).
    #[arg(long = "collector.state", overrides_with = "no_state", action = ArgAction::SetTrue)]
    state: bool,
    /// Leave environments and attachments out.
    #[arg(long = "no-collector.state", action = ArgAction::SetTrue)]
    no_state: bool,
}

/// The task of the program.
#[derive(Debug)]
pub(crate) enum Task {
    /// Serve metrics.
    Serve(Options),
    /// Write the configuration of Prometheus, Alertmanager and Grafana.
    Publish(PublishOptions),
    /// Write manual pages.
    Man(ManFlags),
}

/// The options of the exporter.
#[derive(Debug)]
pub(crate) struct Options {
    /// Addresses to listen on; at least one.
    pub(crate) listen_addresses: Vec<ListenAddress>,
    /// Whether to listen on the sockets of the service manager instead.
    pub(crate) systemd_socket: bool,
    /// The exporter-toolkit's configuration.
    pub(crate) web_config_file: Option<PathBuf>,
    /// Path of the metrics, which differs from the exporter's other paths.
    pub(crate) telemetry_path: String,
    /// Requests in flight; 0 means no limit.
    pub(crate) max_requests: usize,
    /// The sources on this machine, unless hosts are named.
    pub(crate) sources: SourceOptions,
    /// Hosts to read instead of this machine.
    pub(crate) hosts: HostFlags,
    /// The options of the collection.
    pub(crate) collect: CollectOptions,
    /// How users are named.
    pub(crate) usernames: Usernames,
    /// The limits of the shown series.
    pub(crate) limits: Limits,
    pub(crate) log: LogFlags,
}

impl Task {
    /// Reads the command line, program name included.
    ///
    /// # Errors
    /// The command line is wrong (exit code 2 by [`clap::Error::exit_code`]), or asks for help or the version (0).
    pub(crate) fn parse<T: Into<std::ffi::OsString> + Clone>(
        arguments: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        let mut flags = Flags::try_parse_from(arguments)?;
        match flags.command.take() {
            Some(Command::Publish(flags)) => return Ok(Self::Publish((*flags).into())),
            Some(Command::Man(flags)) => return Ok(Self::Man(flags)),
            None => {}
        }
        if let Some(max_age) = flags.max_age.filter(|max_age| *max_age < flags.interval) {
            let message = format!(
                "--snapshot.max-age={max_age:?} is shorter than --interval={:?}, so that values would be withdrawn \
                 before they could be read again: raise it to a few intervals",
                flags.interval
            );
            return Err(Flags::command().error(ErrorKind::ValueValidation, message));
        }
        let options = Options::from(flags);
        if let Some(flag) = options.hosts.name_hosts().then(|| options.of_this_machine()).flatten() {
            let message = format!(
                "{flag} is for this machine, and --host or --hostfile reads other hosts instead: leave one out"
            );
            return Err(Flags::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(Self::Serve(options))
    }
}

/// The definition of the command line.
pub(crate) fn command() -> clap::Command {
    Flags::command()
}

impl From<Flags> for Options {
    fn from(flags: Flags) -> Self {
        let Flags { web, collectors, .. } = flags;
        // Several hosts have too many processes for series of their own.
        let processes = (!flags.hosts.name_hosts()).then_some(flags.processes_limit);
        Self {
            listen_addresses: web.listen_addresses,
            systemd_socket: web.systemd_socket,
            web_config_file: web.config_file,
            telemetry_path: web.telemetry_path,
            max_requests: web.max_requests,
            sources: flags.sources.into(),
            hosts: flags.hosts,
            collect: CollectOptions {
                interval: flags.interval,
                max_age: flags.max_age.unwrap_or_else(|| SHORTEST_DEFAULT_MAX_AGE.max(flags.interval * 3)),
                busy_above: flags.busy_above,
                contradictory_after: flags.collect.contradictory_after,
                collectors: Collectors {
                    gpu: !collectors.no_gpu,
                    processes: !collectors.no_processes,
                    state: !collectors.no_state,
                },
            },
            usernames: flags.usernames,
            limits: Limits { processes },
            log: flags.log,
        }
    }
}

impl Options {
    /// A given flag that applies only to this machine.
    fn of_this_machine(&self) -> Option<&'static str> {
        let defaults = CollectOptions::default();
        if self.sources != SourceOptions::default() {
            return Some("--gpu.… or --hostname");
        }
        if self.collect.collectors != defaults.collectors {
            return Some("--no-collector.…");
        }
        if self.collect.contradictory_after != defaults.contradictory_after {
            return Some("--gpu.contradictory-after");
        }
        (self.collect.busy_above != defaults.busy_above).then_some("--accounting.busy-above")
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it is not a number: write a whole number from 0 on, such as 40".to_owned())
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok();
    ratio
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| "it is not a ratio: write a number from 0 to 1, such as 0.05 for 5 %".to_owned())
}

fn telemetry_path(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
    if !text.starts_with('/') || !text.chars().all(plain) {
        return Err(
            "it is not a path: start it with /, and use letters, digits and -._~ only, such as /metrics".to_owned()
        );
    }
    if RESERVED_PATHS.contains(&text) {
        return Err("this path serves another page: choose another one, such as /metrics".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_help_texts_are_parsed() {
        let mut command = command();
        command.build();
        let helps = std::iter::once(&command).chain(command.get_subcommands());
        let helps: Vec<String> = helps.filter_map(|command| Some(command.get_after_help()?.to_string())).collect();
        let lines = helps.iter().flat_map(|help| help.lines());
        let examples: Vec<&str> = lines.filter_map(|line| line.strip_prefix("  genv-exporter ")).collect();
        assert_eq!(examples.len(), 2, "{examples:?}");
        for example in examples {
            if let Err(error) = Task::parse(["genv-exporter"].into_iter().chain(example.split_whitespace())) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn by_default_only_this_machine_can_connect() {
        let Task::Serve(options) = Task::parse(["genv-exporter"]).unwrap() else {
            panic!("it does not serve");
        };
        let addresses: Vec<String> = options.listen_addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["127.0.0.1:9820"]);
    }

    #[test]
    fn a_long_interval_lengthens_the_age_at_which_values_are_withdrawn() {
        let max_age = |arguments: &[&str]| {
            let task = Task::parse(["genv-exporter"].iter().chain(arguments));
            match task.unwrap() {
                Task::Serve(options) => options.collect.max_age.as_secs(),
                task => panic!("{task:?}"),
            }
        };
        assert_eq!(max_age(&[]), 30);
        assert_eq!(max_age(&["--interval=1m"]), 180);
        assert_eq!(max_age(&["--interval=1m", "--snapshot.max-age=1m"]), 60);
    }
}
