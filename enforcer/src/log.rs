//! The destination of the log: the journal, if stderr is connected to it; else stderr.

use genv_web::flags::LogFlags;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::journal::Journal;

/// Starts the log of this program.
pub(crate) fn start(flags: LogFlags) {
    let registry = tracing_subscriber::registry();
    match Journal::of_this_service() {
        Some(journal) => registry.with(journal.with_filter(flags.log_level)).init(),
        None => registry.with(genv_web::log::to_stderr(flags)).init(),
    }
}
