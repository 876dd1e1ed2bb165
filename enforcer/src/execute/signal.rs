//! One process, from its descriptor to its signal.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::audit::{self, Action, Record};
use super::evidence::{ended, later, never};
use super::never::within_reach;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::plan::{Outcome, ProcessTarget, Target};

/// In how many cycles a process that was killed may still be there: the kernel takes its memory apart first.
const CYCLES_TO_DIE: u32 = 3;

/// A process that was signalled, by the descriptor through which it will be signalled again.
#[derive(Debug)]
pub(super) struct Signalled {
    pidfd: OwnedFd,
    record: Record,
    target: ProcessTarget,
    killed: Option<Killed>,
}

#[derive(Debug)]
struct Killed {
    cycles: u32,
    told: bool,
}

impl Executor {
    /// Signals a process if its turn has come and it is still what the plan took it for, or says why not.
    pub(super) fn signal(
        &mut self,
        action: Action,
        target: &ProcessTarget,
        gpus: Option<&BTreeSet<u32>>,
        cause: &Cause<'_>,
    ) -> Outcome {
        if let Err(outcome) = self.pace(&target.username) {
            let named = Target::Process(target.clone().into());
            let record = self.record(action, &named, cause);
            self.conclude(record, named, &outcome);
            return outcome;
        }
        self.signal_now(action, target, gpus, cause)
    }

    /// The same, whatever the pace.
    pub(super) fn signal_now(
        &mut self,
        action: Action,
        target: &ProcessTarget,
        gpus: Option<&BTreeSet<u32>>,
        cause: &Cause<'_>,
    ) -> Outcome {
        let named = Target::Process(target.clone().into());
        let mut record = self.record(action, &named, cause);
        let outcome = match self.verify(action, target, gpus) {
            Ok(Verified::Sent) => Outcome::Done,
            Ok(Verified::Ready(_)) if self.policy.mode == Mode::DryRun => Outcome::Would,
            Ok(Verified::Ready(pidfd)) => self.send(action, target, pidfd, &mut record),
            Err(outcome) => outcome,
        };
        self.conclude(record, named, &outcome);
        outcome
    }

    /// All that can be found out without doing anything.
    fn verify(
        &mut self,
        action: Action,
        target: &ProcessTarget,
        gpus: Option<&BTreeSet<u32>>,
    ) -> Result<Verified, Outcome> {
        if target.hostname != self.hostname {
            return Err(never("it is on another host"));
        }
        if !self.may_signal {
            return Err(later("GENV_TERMINATE_PROCESSES=0 keeps processes from being signalled".to_owned()));
        }
        if action == Action::Kill && self.is_left(target) {
            return Err(later("it was not told to end yet".to_owned()));
        }
        let pidfd = match self.signalled.remove(&key(target)) {
            Some(signalled) => {
                let killed = signalled.killed.is_some();
                let pidfd = signalled.pidfd.try_clone();
                self.signalled.insert(key(target), signalled);
                if killed {
                    return Err(never("it was killed already, and has not ended"));
                }
                if action == Action::Terminate {
                    return Ok(Verified::Sent);
                }
                pidfd.map_err(|error| later(format!("its descriptor cannot be copied: {error}")))?
            }
            None => open(target.pid)?,
        };
        let witnessed = self.evidence.of(target.pid)?;
        if witnessed.facts.start_time_ticks != target.start_time_ticks {
            return Err(never("its pid is another process's now"));
        }
        within_reach(target.pid, &witnessed, &self.policy.never)?;
        witnessed.is_still(target, gpus)?;
        // Had it ended meanwhile, what was read could be of another process with its pid.
        if has_ended(pidfd.as_fd()) {
            return Err(ended());
        }
        Ok(Verified::Ready(pidfd))
    }

    fn send(&mut self, action: Action, target: &ProcessTarget, pidfd: OwnedFd, record: &mut Record) -> Outcome {
        let prepared =
            self.check_breaker().and_then(|()| self.intend(record)).and_then(|()| self.count_act(&target.username));
        if let Err(outcome) = prepared {
            return outcome;
        }
        let signal = match action {
            Action::Kill => Signal::KILL,
            Action::Terminate | Action::Detach | Action::Report => Signal::TERM,
        };
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => {
                // A stopped process (Ctrl-Z, SIGSTOP) receives SIGTERM only after SIGCONT. SIGKILL needs no SIGCONT.
                // SIGCONT has no effect on a running process. The process may end in between: this is no failure.
                if signal == Signal::TERM {
                    _ = pidfd_send_signal(&pidfd, Signal::CONT);
                }
                let killed = (action == Action::Kill).then_some(Killed { cycles: 0, told: false });
                let signalled = Signalled { pidfd, record: record.clone(), target: target.clone(), killed };
                self.signalled.insert(key(target), signalled);
                Outcome::Done
            }
            Err(errno) => {
                self.uncount_acts(&[&target.username]);
                match errno {
                    Errno::SRCH => ended(),
                    errno => Outcome::Failed { reason: format!("it may not be signalled: {}", text(errno)) },
                }
            }
        }
    }

    /// Lets go of processes that ended; returns those that did not although they were killed.
    pub(super) fn look_after_signalled(&mut self) -> Vec<ProcessTarget> {
        let mut unkillable = Vec::new();
        self.signalled.retain(|_, signalled| {
            if has_ended(signalled.pidfd.as_fd()) {
                return false;
            }
            if let Some(killed) = &mut signalled.killed {
                killed.cycles += 1;
                if killed.cycles >= CYCLES_TO_DIE && !killed.told {
                    killed.told = true;
                    unkillable.push((signalled.record.clone(), signalled.target.clone()));
                }
            }
            true
        });
        let told = unkillable.into_iter().map(|(mut record, target)| {
            record.result = audit::Result::Unkillable;
            record.reason = Some("it has not ended since SIGKILL: see what it waits for in the kernel".to_owned());
            record.time = audit::time(self.now());
            if let Err(error) = self.audit.write(&self.directory, &record) {
                tracing::error!(%error, "what was found is not in the audit");
            }
            target
        });
        told.collect()
    }
}

/// What a verification ends with.
enum Verified {
    /// It may be signalled through this.
    Ready(OwnedFd),
    /// SIGTERM was sent to it already, perhaps for another rule.
    Sent,
}

fn key(target: &ProcessTarget) -> (u32, u64) {
    (target.pid, target.start_time_ticks)
}

fn open(pid: u32) -> Result<OwnedFd, Outcome> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Err(never("it has no pid that can be"));
    };
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
        Errno::SRCH => ended(),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => later(format!("it cannot be opened: {}", text(errno))),
        errno => no_descriptor(errno),
    })
}

/// Without a descriptor nobody can say who would be hit.
fn no_descriptor(errno: Errno) -> Outcome {
    Outcome::Failed {
        reason: format!(
            "no descriptor of it can be had (pidfd_open), and nothing is signalled by its pid: {}",
            text(errno)
        ),
    }
}

/// Whether a process has ended, waited for or not. One of which that cannot be told has, as far as signals go.
fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(retry_on_intr(|| poll(&mut polled, Some(&at_once))), Ok(0))
}

fn text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
