//! The limit of open files of a program.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit: each host needs one, and the usual soft limit is 1,024. An error
/// goes to the log.
pub fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files to its maximum; hosts beyond the limit are down (ulimit -n)");
    }
}
