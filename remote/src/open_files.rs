//! How many files a program may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Takes as many open files as the administrator allows at all: each host takes one, and by default a program has 1,024.
/// Where that is refused the log says so.
pub fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the number of open files to what is allowed; hosts beyond it are down (ulimit -n)");
    }
}
