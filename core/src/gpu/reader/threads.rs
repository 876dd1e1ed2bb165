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
    use std::process::{Child, Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    const TEST: &str = "gpu::reader::threads::tests::a_process_runs_while_any_of_its_threads_does";

    /// Set in this test program when its test only computes.
    const COMPUTES: &str = "GENV_TEST_COMPUTES";

    /// A process that is killed with the value.
    struct Started(Child);

    impl Started {
        fn of(command: &mut Command) -> Self {
            Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Started {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_runs_while_any_of_its_threads_does() {
        if std::env::var_os(COMPUTES).is_some() {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(60) {
                spin_loop();
            }
            return;
        }
        let sleeps = Started::of(Command::new("sleep").arg("60"));
        // The first thread of a test program sleeps until the thread of its test ends.
        let this = std::env::current_exe().unwrap();
        let mut computes =
            Started::of(Command::new(this).args(["--exact", TEST, "--test-threads=2"]).env(COMPUTES, "1"));
        let [sleeping, computing] = [&sleeps, &computes].map(|started| Pid::from_child(&started.0));
        // Several looks in a row: both processes have started.
        let mut looks = 0;
        while looks < 5 {
            assert_eq!(computes.0.try_wait().unwrap(), None);
            let is_so = states(computing).unwrap() == [Some('S'), Some('R')] && !any_runs(sleeping);
            looks = if is_so && any_runs(computing) { looks + 1 } else { 0 };
            sleep(Duration::from_millis(10));
        }
    }
}
