//! A thread of its own for something that may hang.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::{Clocks, Moment};

/// A thread that answers one question at a time.
///
/// While an answer is out, nothing more is asked: however long the thread hangs, there is one thread,
/// and nothing queues up. A late answer is taken when it comes. The thread ends with its last
/// answer after the worker is dropped.
pub(super) struct Worker<Q, A> {
    questions: SyncSender<Q>,
    answers: Receiver<Answer<A>>,
    status: Status,
}

#[derive(Clone, Copy)]
enum Status {
    Idle,
    Asked { at: Instant, overdue: bool },
    Ended,
}

/// An answer, and when it was given.
pub(super) struct Answer<A> {
    pub(super) value: A,
    pub(super) asked: Moment,
    pub(super) finished: Moment,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Nothing was asked.
    Idle,
    /// Not yet, after this long.
    Overdue(Duration),
    /// The thread panicked.
    Ended,
}

impl<Q: Send + 'static, A: Send + 'static> Worker<Q, A> {
    /// Starts a thread of this name that answers by calling `answer`.
    pub(super) fn spawn(
        name: &str,
        clocks: Clocks,
        mut answer: impl FnMut(Q) -> A + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, received) = sync_channel(1);
        let (answered, answers) = sync_channel(1);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(question) = received.recv() {
                let asked = clocks.now();
                let value = answer(question);
                let answer = Answer { value, asked, finished: clocks.now() };
                if answered.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, status: Status::Idle })
    }

    /// Whether the worker is free for a question.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.status, Status::Idle)
    }

    /// Asks, unless an answer is still out.
    pub(super) fn ask(&mut self, question: Q) {
        if !self.is_idle() {
            return;
        }
        self.status = match self.questions.send(question) {
            Ok(()) => Status::Asked { at: Instant::now(), overdue: false },
            Err(_) => Status::Ended,
        };
    }

    /// Waits for the answer until `deadline`, the first time. One that is overdue already is taken if it
    /// has come, and not waited for again.
    pub(super) fn wait_until(&mut self, deadline: Instant) -> Result<Answer<A>, NoAnswer> {
        let (at, patience) = match self.status {
            Status::Idle => return Err(NoAnswer::Idle),
            Status::Ended => return Err(NoAnswer::Ended),
            Status::Asked { at, overdue: true } => (at, Duration::ZERO),
            Status::Asked { at, overdue: false } => (at, deadline.saturating_duration_since(Instant::now())),
        };
        match self.answers.recv_timeout(patience) {
            Ok(answer) => {
                self.status = Status::Idle;
                Ok(answer)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.status = Status::Asked { at, overdue: true };
                Err(NoAnswer::Overdue(at.elapsed()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.status = Status::Ended;
                Err(NoAnswer::Ended)
            }
        }
    }
}
