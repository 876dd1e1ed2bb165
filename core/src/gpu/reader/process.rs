//! The parent's end of one reader.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::Pid;

use super::message::{self, Answer};
use super::serve::ARGUMENT;
use super::threads;
use crate::gpu::current_call::{CallOf, CurrentCall, Notes};
use crate::gpu::{Gpus, XidEvent};

/// A reader. It ends after it is dropped; [`Reader::leave`] gives what is to be waited for.
pub(super) struct Reader {
    process: Process,
    socket: UnixStream,
    notes: Notes,
    /// What has come of an answer, with its length.
    received: Vec<u8>,
    /// The number of XID errors that its answers had.
    events: u64,
}

/// What one look at a reader shows.
pub(super) enum Look {
    /// It has answered.
    Answered(Answer),
    /// Nothing yet.
    Pending,
    /// It ends, or has ended.
    Ended,
    /// Its answer cannot be read.
    Garbled(String),
}

/// The process of a reader.
pub(super) struct Process {
    child: Child,
    /// Why it is to end, as in "GPU 2: nvmlDeviceGetTemperature does not answer".
    pub(super) fault: String,
    /// Whether it is left in state D, and ends when the driver lets it.
    pub(super) is_left: bool,
}

impl Reader {
    /// Starts the program as a reader.
    ///
    /// # Errors
    /// The program cannot be started, or the kernel has no memory or descriptor for it.
    pub(super) fn start(program: &Path, library: Option<&Path>) -> io::Result<Self> {
        let (socket, of_child) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let (notes, file) = Notes::create()?;
        let child = Command::new(program)
            // The link in /proc would be its name.
            .arg0(std::env::args_os().next().as_deref().unwrap_or(OsStr::new("genv")))
            .arg(ARGUMENT)
            .args(library)
            .stdin(Stdio::from(OwnedFd::from(of_child)))
            .stdout(Stdio::from(file))
            // An interrupt from the terminal is for the parent, which then ends it.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            process: Process { child, fault: "it is no longer needed".to_owned(), is_left: false },
            socket,
            notes,
            received: Vec::new(),
            events: 0,
        })
    }

    /// Asks for a sample. A reader that has ended is noticed by the next look.
    pub(super) fn ask(&mut self, which: &Gpus) -> io::Result<()> {
        match self.socket.write_all(&message::framed(which)?) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for the answer, for at most this time.
    pub(super) fn look(&mut self, patience: Duration) -> Look {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Look::Pending,
            Ok(_) => {}
            Err(error) => return Look::Garbled(error.to_string()),
        }
        let ended = loop {
            let wanted = match self.wanted() {
                Err(length) => return Look::Garbled(format!("a length of {length} bytes")),
                Ok(0) => break false,
                Ok(wanted) => wanted,
            };
            match (&self.socket).take(wanted as u64).read_to_end(&mut self.received) {
                Ok(read) if read < wanted => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Look::Pending,
                Err(_) => break true,
            }
        };
        if ended {
            return Look::Ended;
        }
        let answer = postcard::from_bytes::<Answer>(&self.received[message::LENGTH..]);
        self.received.clear();
        match answer {
            Ok(answer) => {
                self.events += answer.events() as u64;
                Look::Answered(answer)
            }
            Err(error) => Look::Garbled(error.to_string()),
        }
    }

    /// The bytes that are missing of the length, or of the answer; a length that no answer has is an error.
    fn wanted(&self) -> Result<usize, usize> {
        let Some(length) = self.received.first_chunk::<{ message::LENGTH }>() else {
            return Ok(message::LENGTH - self.received.len());
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > message::LONGEST {
            return Err(length);
        }
        Ok(message::LENGTH + length - self.received.len())
    }

    /// The XID errors that no answer had.
    pub(super) fn last_events(&self) -> Vec<XidEvent> {
        self.notes.events_since(self.events)
    }

    /// A number that changes with each call of a sample, and with what comes of its answer.
    pub(super) fn progress(&self) -> u64 {
        let of_events = if self.is_subscribing() { self.notes.progress(CallOf::Events) } else { 0 };
        self.notes.progress(CallOf::Sweep) + of_events + self.received.len() as u64
    }

    /// Whether the sweep has ended, and waits for a call about the XID errors of a GPU.
    fn is_subscribing(&self) -> bool {
        self.notes.current(CallOf::Sweep).name.is_empty() && self.notes.current(CallOf::Events).gpu.is_some()
    }

    /// Whether a thread of the reader computes, or waits for a CPU. Then the call may be slow, or wait for a lock of the library
    /// that this thread holds.
    pub(super) fn runs(&self) -> bool {
        threads::any_runs(Pid::from_child(&self.process.child))
    }

    /// The call of the sample that goes on.
    pub(super) fn call(&self) -> CurrentCall {
        self.notes.current(if self.is_subscribing() { CallOf::Events } else { CallOf::Sweep })
    }

    /// The call that probably went on when it ended: a call about the XID errors of a GPU is rare, and the thread that waits
    /// for XID errors has a call also while there is no sample.
    pub(super) fn last_call(&self) -> CurrentCall {
        let (sweep, events) = (self.notes.current(CallOf::Sweep), self.notes.current(CallOf::Events));
        if sweep.name.is_empty() || events.gpu.is_some() { events } else { sweep }
    }

    /// Lets it end: it does so when its socket is closed, unless a call hangs.
    pub(super) fn leave(self) -> Process {
        self.process
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// How it ended, waiting for at most a second: the socket closes a little earlier.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        for _ in 0..100 {
            if let Ok(Some(status)) = self.process.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Process {
    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it, unless a thread of it is inside of the driver. Returns whether it is killed.
    pub(super) fn kill(&mut self) -> bool {
        self.is_left = threads::any_may_be_uninterruptible(Pid::from_child(&self.child)) || self.child.kill().is_err();
        !self.is_left
    }

    /// Has a thread wait for it, so that it leaves nothing behind.
    pub(super) fn wait(mut self) {
        // Without a thread it is waited for when this process ends.
        let _ = std::thread::Builder::new().spawn(move || self.child.wait());
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// How a process ended, after the words "the process".
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by {}", name_of_signal(signal)),
        (None, code) => format!("ended with status {}", code.unwrap_or_default()),
    }
}

/// Whether a signal ended it that no fault of its own sends: others send it, and the kernel where memory is short.
pub(super) fn is_ended_from_outside(status: ExitStatus) -> bool {
    status.signal().is_some_and(|signal| [1, 2, 9, 15].contains(&signal))
}

/// The usual name of a signal that a fault or the kernel sends.
fn name_of_signal(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
