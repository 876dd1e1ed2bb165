//! Flags that genv's daemons have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use genv_core::duration::parse_duration;
use genv_simulator::{GpuSourceKind, SourceOptions};
use tracing::level_filters::LevelFilter;

/// The limit of DNS.
const LONGEST_HOSTNAME: usize = 253;

/// Flags of the sources of facts.
#[derive(Debug, Args)]
pub struct SourceFlags {
    /// Where GPUs are looked for. auto: NVML where it loads, else no devices.
    #[arg(long = "gpu.source", value_name = "SOURCE", default_value = "auto", value_parser = gpu_source())]
    gpu_source: GpuSourceKind,

    /// NVML library to load instead of libnvidia-ml.so.1.
    #[arg(long = "gpu.nvml-library", value_name = "FILE", value_parser = file)]
    nvml_library: Option<PathBuf>,

    /// Scenario of the simulated source, instead of the built-in one.
    #[arg(long = "gpu.scenario", value_name = "FILE", value_parser = file)]
    scenario: Option<PathBuf>,

    /// Value of the label hostname, instead of the machine's name.
    #[arg(long, value_name = "NAME", value_parser = hostname)]
    hostname: Option<String>,
}

/// Flags of the collection on this machine.
#[derive(Clone, Copy, Debug, Args)]
pub struct CollectFlags {
    /// Time after which a high utilization without a process and memory in use is contradictory.
    #[arg(long = "gpu.contradictory-after", value_name = "DURATION", default_value = "30m", value_parser = lasting)]
    pub contradictory_after: Duration,
}

/// Flags of the log.
#[derive(Clone, Copy, Debug, Args)]
pub struct LogFlags {
    /// How much is logged, to stderr.
    #[arg(long = "log.level", value_name = "LEVEL", default_value = "info", value_parser = log_level())]
    pub log_level: LevelFilter,

    /// Form of the log.
    #[arg(long = "log.format", value_name = "FORM", default_value = "text")]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl From<SourceFlags> for SourceOptions {
    fn from(flags: SourceFlags) -> Self {
        Self {
            gpu: flags.gpu_source,
            nvml_library: flags.nvml_library,
            scenario: flags.scenario,
            hostname: flags.hostname,
            ..Self::default()
        }
    }
}

/// Parses a path.
///
/// # Errors
/// The text is empty.
pub fn file(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("the path is empty: name a file, or leave the flag out".to_owned());
    }
    Ok(text.into())
}

/// Parses a duration that is not 0.
fn lasting(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("every short peak would last so long: write a time such as 30m".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

fn hostname(text: &str) -> Result<String, String> {
    let reason = if text.trim().is_empty() {
        "it is empty"
    } else if text.chars().any(char::is_control) {
        "it holds a control character"
    } else if text.len() > LONGEST_HOSTNAME {
        "it is longer than 253 bytes"
    } else {
        return Ok(text.to_owned());
    };
    Err(format!("{reason}, which no label should: name the machine, such as gpu01, or leave the flag out"))
}

fn gpu_source() -> impl TypedValueParser<Value = GpuSourceKind> {
    PossibleValuesParser::new(["auto", "nvml", "simulated"]).try_map(|text| text.parse::<GpuSourceKind>())
}

fn log_level() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["error", "warn", "info", "debug"]).try_map(|text| text.parse::<LevelFilter>())
}
