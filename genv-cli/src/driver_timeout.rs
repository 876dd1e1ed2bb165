//! How long a command waits for the driver.

use std::env;
use std::sync::OnceLock;
use std::time::Duration;

use genv_core::duration::parse_variable;

use crate::output::print_note;

/// The variable with another time limit.
const VARIABLE: &str = "GENV_DRIVER_TIMEOUT";

/// Time limit for the driver. Without `nvidia-persistenced` it initializes the GPUs for each program, 1 to 3 s for each GPU.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver whose GPUs are initialized answers in this time.
pub(crate) const BRIEF: Duration = Duration::from_millis(100);

/// Time limit for the driver if a command asks who uses devices: `GENV_DRIVER_TIMEOUT`, else 30 s.
pub(crate) fn usage_patience() -> Duration {
    variable().unwrap_or(PATIENCE)
}

/// Time limit for the driver if there is another source, or if the answer only adds a note: `GENV_DRIVER_TIMEOUT`, else
/// [`BRIEF`].
pub(crate) fn brief_patience() -> Duration {
    variable().unwrap_or(BRIEF)
}

/// Time limit for the driver if a command cannot do without its answer: 30 s, and at least `GENV_DRIVER_TIMEOUT`.
pub(crate) fn needed_patience() -> Duration {
    at_least(PATIENCE)
}

/// A time limit for the driver of a command that has one of its own, and at least `GENV_DRIVER_TIMEOUT`.
pub(crate) fn at_least(patience: Duration) -> Duration {
    variable().unwrap_or_default().max(patience)
}

/// The value of `GENV_DRIVER_TIMEOUT`. A value that is not a duration counts as unset, with one note.
fn variable() -> Option<Duration> {
    static VALUE: OnceLock<Option<Duration>> = OnceLock::new();
    *VALUE.get_or_init(|| {
        parse_variable(env::var_os(VARIABLE).as_deref()).unwrap_or_else(|error| {
            print_note(&format!("{VARIABLE} is ignored: {error}"));
            None
        })
    })
}
