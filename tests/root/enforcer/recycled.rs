//! Pids that are reused, which in a pid namespace of its own a test can force (proc_sys_kernel(5), `ns_last_pid`).

use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use genv_enforcer::plan::Outcome;
use genv_tests::enforcer::{is_alive, sleeper_of, terminate};
use genv_tests::patience::{PATIENCE, output};
use genv_tests::process::Sleeper;
use genv_tests::root::require_root;
use rustix::time::{ClockId, clock_gettime};

use crate::enforcer::refused;
use crate::enforcer::stage::{Stage, target};
use crate::{ALICE, ANYTHING};

/// Set in this program when it runs in the namespace.
const INSIDE: &str = "GENV_TEST_PID_NAMESPACE";

/// Runs a test of this program again as the first process of a pid namespace; returns whether it already is.
fn in_a_pid_namespace(test: &str) -> Result<bool> {
    require_root();
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let mut unshare = Command::new("unshare");
    let unshare = unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let again = unshare.arg(std::env::current_exe()?).args(["--exact", test]);
    let done = output(again.env(INSIDE, "1"))?;
    let printed = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success(), "in the namespace: {done:?}");
    ensure!(printed.contains("1 passed"), "it was not run: {printed}");
    Ok(false)
}

/// Starts processes of the user until one has this pid, whose process has ended.
fn reuse(pid: u32) -> Sleeper {
    let deadline = Instant::now() + PATIENCE;
    loop {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let next = sleeper_of(ALICE, &ANYTHING).unwrap();
        if next.pid() == pid {
            return next;
        }
        assert!(Instant::now() < deadline, "no process got the pid {pid}");
    }
}

/// Clock ticks since boot, as start times are told.
fn now_ticks() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let seconds = time.tv_sec.cast_unsigned();
    let rest = time.tv_nsec.cast_unsigned() * ticks_per_second / 1_000_000_000;
    seconds * ticks_per_second + rest
}

#[test]
fn promise_01_a_pid_that_is_reused_after_it_was_opened_is_never_signalled() -> Result<()> {
    let test = "enforcer::recycled::promise_01_a_pid_that_is_reused_after_it_was_opened_is_never_signalled";
    if !in_a_pid_namespace(test)? {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let guilty = sleeper_of(ALICE, &ANYTHING)?;
        let pid = guilty.pid();
        let stage = Stage::new();
        // The worst case: all that is read fits, the start time too, because it is foreseen.
        let mut foreseen = target(pid)?;
        foreseen.start_time_ticks = now_ticks() + 30;
        let start_ticks = foreseen.start_time_ticks;
        let processes = Arc::new(Mutex::new((Some(guilty), None)));
        let shared = Arc::clone(&processes);
        // Who uses GPUs is asked when the process is open and before anything of it is read.
        let mut executor = stage.asking(Box::new(move || {
            let mut shared = shared.lock().unwrap();
            if let Some(guilty) = shared.0.take() {
                drop(guilty);
                // Whoever sleeps may be woken too late.
                while now_ticks() < start_ticks {
                    thread::yield_now();
                }
                shared.1 = Some(reuse(pid));
            }
            Ok([(pid, [0].into())].into())
        }));
        let outcome = executor.execute(&terminate(&foreseen), "why");
        let innocent = processes.lock().unwrap().1.take().unwrap();
        assert!(is_alive(innocent.pid()));
        assert!(stage.results().iter().all(|result| result == "refused"));
        if target(pid)?.start_time_ticks == start_ticks {
            refused(&outcome, "it ended by itself");
            // Only the descriptor knew: a new one of the same pid is signalled.
            stage.uses_gpu(pid);
            let outcome = stage.executor().execute(&terminate(&foreseen), "why");
            assert_eq!(outcome, Outcome::Done);
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "never was a process started when it should");
    }
}
