//! Flags of the commands that call the plan without acting: `explain` and `replay`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use genv_web::flags::{SourceFlags, file};

use super::DirectoryFlag;

const EXPLAIN_EXAMPLE: &str = "Example: may this process stay?
  genv-enforcer explain 4711";

/// Explain whether a process is safe: rule by rule, with the limit that applies.
#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_EXAMPLE)]
pub(crate) struct ExplainFlags {
    /// The process, on this host.
    #[arg(value_name = "PID")]
    pub(crate) pid: NonZeroU32,

    /// The rules, instead of those that the enforcer of this host follows.
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) config: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) directory: DirectoryFlag,

    #[command(flatten)]
    pub(crate) sources: SourceFlags,
}

const REPLAY_EXAMPLE: &str = "Example: record a day, then see what rules would have done
  genv snapshot --follow > monday.jsonl
  genv-enforcer replay monday.jsonl --config enforcer.yaml

Recordings of several hosts are merged by their times first:
  jq -sc 'sort_by(.timestamp_seconds)[]' gpu*.jsonl | genv-enforcer replay - --config enforcer.yaml";

/// Show what rules would have done in the time of a recording, and when.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLE)]
pub(crate) struct ReplayFlags {
    /// What 'genv snapshot --follow' printed, also compressed by gzip; '-' is standard input.
    #[arg(value_name = "RECORDING", value_parser = file)]
    pub(crate) recording: PathBuf,

    /// The rules, in YAML.
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) config: PathBuf,

    /// Print JSON: an event a line, and the summary at the end.
    #[arg(long)]
    pub(crate) json: bool,
}
