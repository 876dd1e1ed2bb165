//! The states of the threads of a process, as `/proc/PID/task/TID/stat` has them.

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::Pid;

/// Whether a thread of the process sleeps inside of the kernel, so that no signal wakes it, or may do so. A kill of a process
/// inside of the driver can freeze its GPUs.
pub(super) fn any_may_be_uninterruptible(process: Pid) -> bool {
    match states(process) {
        Ok(states) => states.into_iter().any(|state| state.is_none_or(|state| state == 'D')),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Whether a thread of the process runs, or waits for a CPU.
pub(super) fn any_runs(process: Pid) -> bool {
    states(process).is_ok_and(|states| states.contains(&Some('R')))
}

/// The state of each thread; nothing for one whose state cannot be read.
fn states(process: Pid) -> io::Result<Vec<Option<char>>> {
    let has_ended = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
    };
    let mut states = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        match fs::read(thread?.path().join("stat")) {
            Ok(stat) => states.push(state(&stat)),
            Err(error) if has_ended(&error) => {}
            Err(_) => states.push(None),
        }
    }
    Ok(states)
}

/// The letter after the name, which may have any character.
fn state(stat: &[u8]) -> Option<char> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).map(|letter| char::from(*letter))
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    const SPINS: &str = "GENV_TEST_SPINS";

    #[test]
    fn a_process_runs_while_any_of_its_threads_does() {
        if std::env::var_os(SPINS).is_some() {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(60) {
                spin_loop();
            }
            return;
        }
        // The first thread of a program of tests waits for that of a test.
        let mut spins = Command::new(std::env::current_exe().unwrap())
            .args(["a_process_runs_while_any_of_its_threads_does", "--test-threads=2"])
            .env(SPINS, "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut sleeps = Command::new("sleep").arg("60").spawn().unwrap();
        let [spinning, sleeping] = [&spins, &sleeps].map(Pid::from_child);
        let first = || state(&fs::read(format!("/proc/{spinning}/stat")).unwrap());
        while !(first() == Some('S') && any_runs(spinning) && !any_runs(sleeping)) {
            assert_eq!(spins.try_wait().unwrap(), None);
            sleep(Duration::from_millis(10));
        }
        for child in [&mut spins, &mut sleeps] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
