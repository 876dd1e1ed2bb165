//! A process that does not end by SIGKILL.
//!
//! The kernel keeps a process whose first thread has ended, and of which another one is a zombie that its tracer has not
//! waited for: all of it is killed, and it is still there. No right is needed to bring that about, and it ends when the tracer lets go.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::ptrace;
use nix::unistd::Pid;

use super::*;

struct Tracer {
    stop: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Tracer {
    fn of(tid: i32) -> Self {
        let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
        let (started, has_started) = channel();
        let thread = thread::spawn(move || {
            let traced = ptrace::seize(Pid::from_raw(tid), ptrace::Options::empty());
            started.send(traced).unwrap();
            // What it traces is let go when this thread ends.
            let _ = stopped.recv();
        });
        has_started.recv_timeout(TIMEOUT).unwrap().unwrap();
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

const TEST: &str = "execute::tests::unkillable::promise_18_sigkill_is_sent_once_told_once_and_never_again";

/// Set in this test program when it plays the victim: it has two threads as it is.
const PLAYS_VICTIM: &str = "GENV_TEST_PLAYS_VICTIM";

#[test]
fn promise_18_sigkill_is_sent_once_told_once_and_never_again() {
    if std::env::var_os(PLAYS_VICTIM).is_some() {
        loop {
            thread::park();
        }
    }
    // Under another user's path nobody else could run it.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("victim");
    let this = std::env::current_exe().unwrap();
    assert!(Command::new("cp").args([&this, &copy]).status().unwrap().success());
    let mut victim =
        Victim::of(Command::new(&copy).args(["--exact", TEST]).stdout(Stdio::null()), &[(PLAYS_VICTIM, "1")]);
    let pid = victim.pid();
    let threads = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let tasks = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        tasks.collect::<Vec<i32>>()
    };
    until("it has two threads", || threads().len() == 2);
    let second = threads().into_iter().find(|tid| tid.cast_unsigned() != pid).unwrap();
    let tracer = Tracer::of(second);

    let stage = Stage::new(&[&victim]);
    let target = victim.target();
    let mut executor = stage.executor();
    let nobody = BTreeSet::new();
    let cycle = |executor: &mut Executor| executor.begin_cycle(&nobody, &nobody).unkillable;
    assert_eq!(executor.execute(&kill(&target), "why"), Outcome::Done);
    let told: Vec<Vec<ProcessTarget>> = (0..6).map(|_| cycle(&mut executor)).collect();
    assert_eq!(told.concat(), std::slice::from_ref(&target));
    assert!(victim.runs(), "it cannot end yet");
    for step in [kill(&target), terminate(&target), kill(&target)] {
        refused(&mut executor, &step, "killed already", false);
    }
    let sent = stage.audit().into_iter().filter(|line| line["result"] == "intended");
    assert_eq!(sent.count(), 1);
    let told = stage.audit().into_iter().filter(|line| line["result"] == "unkillable");
    assert_eq!(told.count(), 1);

    drop(tracer);
    assert_eq!(victim.ended_by(), 9);
    assert_eq!(cycle(&mut executor), []);
    assert!(executor.signalled.is_empty());
}
