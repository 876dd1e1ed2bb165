//! The states of the threads of a process, as `/proc/PID/task/TID/stat` has them.

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::Pid;

/// Whether a thread of the process sleeps inside of the kernel, so that no signal wakes it, or may do so. A kill of a process
/// inside of the driver can freeze its GPUs.
pub(super) fn any_may_be_uninterruptible(process: Pid) -> bool {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let threads = match fs::read_dir(format!("/proc/{process}/task")) {
        Ok(threads) => threads,
        Err(error) => return !is_gone(&error),
    };
    threads.flatten().any(|thread| match fs::read(thread.path().join("stat")) {
        Ok(stat) => state(&stat).is_none_or(|state| state == 'D'),
        // A thread that ends meanwhile has no such file, or one that cannot be read.
        Err(error) => !is_gone(&error) && error.raw_os_error() != Some(Errno::SRCH.raw_os_error()),
    })
}

/// Whether the first thread of the process runs, or waits for a CPU.
pub(super) fn first_runs(process: Pid) -> bool {
    fs::read(format!("/proc/{process}/task/{process}/stat")).is_ok_and(|stat| state(&stat) == Some('R'))
}

/// The letter after the name, which may have any character.
fn state(stat: &[u8]) -> Option<char> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).map(|letter| char::from(*letter))
}
