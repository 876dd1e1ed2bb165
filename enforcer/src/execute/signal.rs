//! Signals to a process: opened, verified, then signalled through its descriptor.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::audit::{self, AuditAction, AuditRecord};
use super::evidence::{already_ended, refuse_for_good, refuse_for_now};
use super::exempt::check_exempt;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::plan::{Outcome, ProcessTarget, Target};

/// The number of cycles in which a killed process may still exist: the kernel frees its memory first.
const CYCLES_AFTER_KILL: u32 = 3;

/// A signalled process, with the descriptor for the next signal.
#[derive(Debug)]
pub(super) struct Signalled {
    pidfd: OwnedFd,
    record: AuditRecord,
    target: ProcessTarget,
    killed: Option<Killed>,
}

#[derive(Debug)]
struct Killed {
    cycles: u32,
    reported: bool,
}

impl Executor {
    /// Signals a process if the pace permits and the process is still the target of the plan.
    pub(super) fn signal(
        &mut self,
        action: AuditAction,
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
        action: AuditAction,
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

    /// Verifies a process without any effect on it.
    fn verify(
        &mut self,
        action: AuditAction,
        target: &ProcessTarget,
        gpus: Option<&BTreeSet<u32>>,
    ) -> Result<Verified, Outcome> {
        if target.hostname != self.hostname {
            return Err(refuse_for_good("it is on another host"));
        }
        if !self.may_signal {
            return Err(refuse_for_now("GENV_TERMINATE_PROCESSES=0 keeps processes from being signalled".to_owned()));
        }
        if action == AuditAction::Kill && self.is_remaining(target) {
            return Err(refuse_for_now("it was not told to end yet".to_owned()));
        }
        let pidfd = match self.signalled.remove(&key(target)) {
            Some(signalled) => {
                let killed = signalled.killed.is_some();
                let pidfd = signalled.pidfd.try_clone();
                self.signalled.insert(key(target), signalled);
                if killed {
                    return Err(refuse_for_good("it was killed already, and has not ended"));
                }
                if action == AuditAction::Terminate {
                    return Ok(Verified::Sent);
                }
                pidfd.map_err(|error| refuse_for_now(format!("its descriptor cannot be copied: {error}")))?
            }
            None => open(target.pid)?,
        };
        let current = self.evidence.of(target.pid)?;
        if current.facts.start_time_ticks != target.start_time_ticks {
            return Err(refuse_for_good("its pid is another process's now"));
        }
        check_exempt(target.pid, &current, &self.policy.never)?;
        current.is_still(target, gpus)?;
        // If the process has ended, the facts may be those of another process with its pid.
        if has_ended(pidfd.as_fd()) {
            return Err(already_ended());
        }
        Ok(Verified::Ready(pidfd))
    }

    fn send(
        &mut self,
        action: AuditAction,
        target: &ProcessTarget,
        pidfd: OwnedFd,
        record: &mut AuditRecord,
    ) -> Outcome {
        let prepared =
            self.check_breaker().and_then(|()| self.intend(record)).and_then(|()| self.count_act(&target.username));
        if let Err(outcome) = prepared {
            return outcome;
        }
        let signal = match action {
            AuditAction::Kill => Signal::KILL,
            AuditAction::Terminate | AuditAction::Detach | AuditAction::Report => Signal::TERM,
        };
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => {
                // A stopped process (Ctrl-Z, SIGSTOP) receives SIGTERM only after SIGCONT. SIGKILL needs no SIGCONT.
                // SIGCONT has no effect on a running process. The process may end in between: this is no failure.
                if signal == Signal::TERM {
                    _ = pidfd_send_signal(&pidfd, Signal::CONT);
                }
                let killed = (action == AuditAction::Kill).then_some(Killed { cycles: 0, reported: false });
                let signalled = Signalled { pidfd, record: record.clone(), target: target.clone(), killed };
                self.signalled.insert(key(target), signalled);
                Outcome::Done
            }
            Err(errno) => {
                self.uncount_acts(&[&target.username]);
                match errno {
                    Errno::SRCH => already_ended(),
                    errno => Outcome::Failed { reason: format!("it may not be signalled: {}", text(errno)) },
                }
            }
        }
    }

    /// Drops ended processes, and returns processes that SIGKILL did not end.
    pub(super) fn check_signalled(&mut self) -> Vec<ProcessTarget> {
        let mut unkillable = Vec::new();
        self.signalled.retain(|_, signalled| {
            if has_ended(signalled.pidfd.as_fd()) {
                return false;
            }
            if let Some(killed) = &mut signalled.killed {
                killed.cycles += 1;
                if killed.cycles >= CYCLES_AFTER_KILL && !killed.reported {
                    killed.reported = true;
                    unkillable.push((signalled.record.clone(), signalled.target.clone()));
                }
            }
            true
        });
        let told = unkillable.into_iter().map(|(mut record, target)| {
            record.result = audit::AuditResult::Unkillable;
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

/// The result of a verification.
enum Verified {
    /// The process may be signalled through this descriptor.
    Ready(OwnedFd),
    /// SIGTERM was sent already, perhaps for another rule.
    Sent,
}

fn key(target: &ProcessTarget) -> (u32, u64) {
    (target.pid, target.start_time_ticks)
}

fn open(pid: u32) -> Result<OwnedFd, Outcome> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Err(refuse_for_good("it has no pid that can be"));
    };
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
        Errno::SRCH => already_ended(),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => refuse_for_now(format!("it cannot be opened: {}", text(errno))),
        errno => no_descriptor(errno),
    })
}

/// Without a descriptor the signal could hit another process.
fn no_descriptor(errno: Errno) -> Outcome {
    Outcome::Failed {
        reason: format!(
            "no descriptor of it can be had (pidfd_open), and nothing is signalled by its pid: {}",
            text(errno)
        ),
    }
}

/// Whether a process has ended, also as a zombie. On an error the process counts as ended, so that it gets no signal.
fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(retry_on_intr(|| poll(&mut polled, Some(&at_once))), Ok(0))
}

fn text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
