//! `genv remote-serve`. Other machines start it over SSH.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use genv_core::duration::{format_duration, parse_duration};
use genv_remote::serve::{FindEnforcer, Server, SessionEnd};

use crate::handover;
use crate::output::print_note;
use crate::source_flags::SourceFlags;

const EXAMPLE: &str = "Example: the line of authorized_keys that allows a monitoring machine only this command
  restrict,command=\"genv remote-serve\" ssh-ed25519 AAAA… monitor@example.org

docs/remote.md describes the lines of JSON on stdin and stdout.";

/// Answer requests of another machine over SSH: read requests from stdin, and write snapshots to stdout.
///
/// The program ends at the end of its input, when stdout has no reader, and after two minutes without a request.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct RemoteServe {
    /// Also execute step requests of an enforcer on that machine, by genv-enforcer.
    #[arg(long)]
    enforce: bool,

    /// End after this time without a request.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    silence: Duration,

    #[command(flatten)]
    sources: SourceFlags,
}

impl RemoteServe {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let sources = self.sources.options().or_from_environment()?;
        let find_enforcer: FindEnforcer = || handover::find("genv-enforcer");
        let server = Server::open(sources, self.enforce.then_some(find_enforcer))?;
        let end = server.run(self.silence).context("cannot serve")?;
        if end == SessionEnd::Silence {
            print_note(&format!("no request came for {}: the session ends", format_duration(self.silence)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use genv_remote::protocol::LONGEST_SILENCE_SECONDS;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: RemoteServe,
    }

    #[test]
    fn the_default_silence_is_the_silence_that_clients_rely_on() {
        let cli = Cli::try_parse_from(["genv"]).unwrap();
        assert_eq!(cli.serve.silence, Duration::from_secs(LONGEST_SILENCE_SECONDS));
    }
}
