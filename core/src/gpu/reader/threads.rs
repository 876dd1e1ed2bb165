//! The states of the threads of a process, as `/proc/PID/task/TID/stat` has them.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

/// Whether a thread of the process sleeps inside of the kernel, so that no signal wakes it. A kill of a process inside of
/// the driver can freeze its GPUs.
pub(super) fn any_is_uninterruptible(process: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| state(&thread.path()) == Some('D'))
}

/// Whether the first thread of the process runs, or waits for a CPU.
pub(super) fn first_runs(process: Pid) -> bool {
    state(Path::new(&format!("/proc/{process}/task/{process}"))) == Some('R')
}

/// The letter after the name, which may have any character.
fn state(thread: &Path) -> Option<char> {
    let stat = fs::read(thread.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).map(|letter| char::from(*letter))
}
