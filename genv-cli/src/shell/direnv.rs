//! Detects direnv. It evaluates `.envrc` in a separate shell that ends at once, so that an environment would end too.

use std::env;
use std::fs;
use std::os::unix::process::parent_id;

/// direnv sets this variable during `.envrc`, and for the command of `direnv exec`: <https://direnv.net/man/direnv.1.html>.
const VARIABLE: &str = "DIRENV_IN_ENVRC";

/// The largest number of ancestors that are checked.
const MOST_ANCESTORS: usize = 32;

/// Whether this program was called from an `.envrc`. A shell of `direnv exec` has the variable too, but direnv is not its
/// ancestor: the shell has replaced direnv.
pub(crate) fn is_evaluating() -> bool {
    env::var_os(VARIABLE).is_some()
        && std::iter::successors(Some(parent_id()), |pid| parent(*pid)).take(MOST_ANCESTORS).any(is_direnv)
}

fn is_direnv(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.contains("direnv"))
}

/// The line `PPid:` of `/proc/PID/status` (proc_pid_status(5)).
fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}
