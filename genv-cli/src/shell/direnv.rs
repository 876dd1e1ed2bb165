//! direnv, which evaluates `.envrc` in a shell of its own: that shell ends at once, and with it an environment of which it is a member.

use std::env;
use std::fs;
use std::os::unix::process::parent_id;

/// Set by direnv while it evaluates `.envrc`, and left to what `direnv exec` runs: <https://direnv.net/man/direnv.1.html>.
const VARIABLE: &str = "DIRENV_IN_ENVRC";

/// The most ancestors that are looked at.
const MOST_ANCESTORS: usize = 32;

/// Whether this program is called from an `.envrc`. A shell that `direnv exec` runs has the variable too, but direnv is
/// no ancestor of it: the shell has taken its place.
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
