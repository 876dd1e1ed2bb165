//! The reader's own end: it answers its parent until the parent closes the socket.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdin, stdout};
use rustix::thread::set_name;

use super::message::{self, Answer};
use super::threads;
use crate::gpu::Gpus;
use crate::gpu::current_call::{self, Notes};
use crate::gpu::nvml::NvmlSource;

/// The argument that makes a program a reader, before the path of a library, if one is named.
pub(super) const ARGUMENT: &str = "read-gpus-for-parent";

/// The time in which a reader ends by itself after its parent has, unless a call hangs.
const GRACE: Duration = Duration::from_secs(2);

/// The time in which a subscription to XID errors delays an answer: long enough for the parent to see that a call about a
/// GPU is late, and shorter than its patience with a call without a GPU, which costs the XID errors alone.
const SUBSCRIPTION: Duration = Duration::from_secs(7);

/// The pause between two looks at the states of the threads.
const LOOK: Duration = Duration::from_millis(250);

/// Reads GPUs for the parent, if this program was started for that. Programs with a [`ReaderSource`](super::ReaderSource) call
/// this first.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let is_asked = arguments.next().as_deref() == Some(OsStr::new(ARGUMENT));
    is_asked.then(|| match serve(arguments.next().map(PathBuf::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{ARGUMENT} is for processes that this program starts itself: {error}");
            ExitCode::from(2)
        }
    })
}

/// The standard input is the socket to the parent, the standard output the file of the notes.
fn serve(library: Option<PathBuf>) -> io::Result<()> {
    // The name of the link in /proc that it was started by says nothing.
    set_name(c"gpu-reader")?;
    current_call::share(Notes::map(stdout())?);
    // What a library prints is for the log.
    dup2_stdout(stderr())?;
    let mut parent = UnixStream::from(stdin().try_clone_to_owned()?);
    thread::Builder::new().name("parent".to_owned()).spawn(end_with_parent)?;
    let mut source = NvmlSource::new(library);
    let mut question = Vec::new();
    while next_question(&mut parent, &mut question)? {
        let which: Gpus = postcard::from_bytes(&question).map_err(io::Error::other)?;
        let sample = source.sample_of(&which).map_err(|error| error.to_string());
        source.wait_for_xids(SUBSCRIPTION);
        let answer = Answer::new(sample, source.counted());
        // A parent that has ended needs no answer.
        if parent.write_all(&message::framed(&answer)?).is_err() {
            break;
        }
    }
    // The end of the process releases the driver, without a wait for the thread of XID errors.
    std::mem::forget(source);
    Ok(())
}

/// Reads a question. Returns whether there is one: the parent may have ended.
fn next_question(parent: &mut UnixStream, question: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; message::LENGTH];
    match parent.read_exact(&mut length) {
        Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            return Ok(false);
        }
        read => read?,
    }
    question.resize(u32::from_le_bytes(length) as usize, 0);
    parent.read_exact(question)?;
    Ok(true)
}

/// Ends this process after its parent, also while a call hangs; but not while a thread is inside of the driver.
fn end_with_parent() {
    let socket = stdin();
    while poll(&mut [PollFd::new(&socket, PollFlags::empty())], None) == Err(Errno::INTR) {}
    // Whoever reads what the parent wrote does not wait for this process.
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stdout(&nothing).and_then(|()| dup2_stderr(&nothing));
    }
    thread::sleep(GRACE);
    let own: Pid = getpid();
    while threads::any_may_be_uninterruptible(own) {
        thread::sleep(LOOK);
    }
    let _ = kill_process(own, Signal::KILL);
}
