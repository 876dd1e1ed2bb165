//! The log of a daemon.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::flags::{LogFlags, LogFormat};

/// A log on stderr by the flags, in colours on a terminal unless `NO_COLOR` is set.
pub fn to_stderr<S>(flags: LogFlags) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colour).with_target(false);
    // Libraries write through the crate `log` without our limits on repetition: the SSH library logs each failed connection.
    let ours = filter_fn(|event| event.target() != "log");
    match flags.log_format {
        LogFormat::Text => log.with_filter(ours).with_filter(flags.log_level).boxed(),
        LogFormat::Json => log.json().with_filter(ours).with_filter(flags.log_level).boxed(),
    }
}
