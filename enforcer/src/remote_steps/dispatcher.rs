//! Sends steps to other hosts and collects their reports. A host that hangs does not delay other hosts. It gets no further
//! request before its report or the timeout.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use genv_core::model::{HostSnapshot, Snapshot};
use genv_core::text::{harmless, shortened};
use genv_remote::FailureKind;
use serde_json::Value;

use super::messages::{StepReport, VERSION};
use super::transport::{HostReply, REPORT_TIMEOUT, Transport};
use crate::config::BreakerLimits;
use crate::execute::surprise::Expected;
use crate::execute::{Dispatched, LogPosition};
use crate::host::users_of_devices;
use crate::plan::words;
use crate::plan::{AttachmentTarget, Key, Outcome, Plan, ProcessTarget, Step, StepKind, Violation};

/// How long a cycle waits for reports. A later cycle takes later reports.
const CYCLE_WAIT: Duration = Duration::from_secs(2);

/// After a host has refused a step for now, the step is sent again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// How long a host gets no request that cannot execute steps, unless its session ends before.
const UNABLE_FOR: Duration = Duration::from_secs(300);

/// How long a host gets requests to end the remaining processes of a device that it has detached.
const REMAINING_FOR: Duration = Duration::from_secs(600);

/// In how many cycles a process may still be in the snapshots of its host after SIGKILL.
const CYCLES_AFTER_KILL: u32 = 3;

/// The reason that a host gives is cut after so many characters.
const MAX_REASON_CHARACTERS: usize = 300;

/// A step in a request to a host.
#[derive(Debug)]
pub(crate) struct SentStep {
    pub(crate) step: Step,
    pub(crate) violation: Violation,
    /// The step in the audit log; absent for a step that only reports or warns.
    pub(crate) dispatched: Option<Dispatched>,
}

/// A step whose outcome is decided.
#[derive(Debug)]
pub(crate) struct FinishedStep {
    pub(crate) sent: SentStep,
    pub(crate) outcome: Outcome,
    /// False if the host may have executed the step and its report is missing.
    pub(crate) is_known: bool,
}

/// The requests to all hosts.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    transport: Box<dyn Transport>,
    in_flight: BTreeMap<String, Vec<SentStep>>,
    /// The position in the audit log before the oldest step in flight.
    oldest: Option<LogPosition>,
    sender: Sender<(String, HostReply)>,
    replies: Receiver<(String, HostReply)>,
    refused: BTreeMap<(Key, String), Instant>,
    /// Hosts that cannot execute steps: since when, and why.
    unable: BTreeMap<String, (Instant, String)>,
    killed: Vec<Killed>,
    /// Devices that hosts have detached, with the processes that the hosts end at the pace of the rules.
    detached: Vec<(Instant, Arc<AttachmentTarget>)>,
    /// Hosts that still have to end processes of detached devices.
    unfinished: Vec<String>,
    /// By host, the number of its users, and the users that this cycle hits.
    users: BTreeMap<String, (usize, BTreeSet<String>)>,
    cycle_wait: Duration,
}

#[derive(Debug)]
struct Killed {
    dispatched: Dispatched,
    target: ProcessTarget,
    cycles: u32,
    is_reported: bool,
}

impl Dispatcher {
    /// With `wait_for_all`, each cycle waits until every host has sent its report.
    pub(crate) fn new(transport: Box<dyn Transport>, wait_for_all: bool) -> Self {
        let (sender, replies) = channel();
        Self {
            transport,
            in_flight: BTreeMap::new(),
            oldest: None,
            sender,
            replies,
            refused: BTreeMap::new(),
            unable: BTreeMap::new(),
            killed: Vec::new(),
            detached: Vec::new(),
            unfinished: Vec::new(),
            users: BTreeMap::new(),
            cycle_wait: if wait_for_all { REPORT_TIMEOUT + CYCLE_WAIT } else { CYCLE_WAIT },
        }
    }

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The steps in flight that end or detach, and the position in the audit log before them.
    pub(crate) fn in_flight(&self) -> (Option<LogPosition>, impl Iterator<Item = &Step>) {
        let sent = self.in_flight.values().flatten();
        let steps = sent.filter(|sent| sent.dispatched.is_some()).map(|sent| &sent.step);
        (self.oldest.clone(), steps)
    }

    /// Whether a step can be sent to a host now: the host can execute steps, has no request in flight, and has not refused
    /// the step a moment ago.
    pub(crate) fn may_send(&self, hostname: &str, step: &Step) -> bool {
        !self.unable.contains_key(hostname)
            && !self.in_flight.contains_key(hostname)
            && !self.refused.contains_key(&operation(hostname, step))
    }

    /// Whether a step can be sent to a host in this cycle: the cycle hits no larger share of the host's users than a cycle
    /// may hit of all users. Otherwise the breaker of the host could open at a plan that is no surprise here. If the step
    /// can be sent, its users count as hit.
    pub(crate) fn may_hit(&mut self, hostname: &str, step: &Step, limits: &BreakerLimits) -> bool {
        let Some((all, hit)) = self.users.get_mut(hostname) else {
            return true;
        };
        let plan = Plan { steps: vec![step.clone()], ..Plan::default() };
        let mut users = Expected::default().hits(&plan).users();
        users.extend(hit.iter().cloned());
        let max_users = limits.most_users(*all);
        let may_hit = hit.is_empty() || max_users.is_none_or(|max| users.len() <= max);
        if may_hit {
            *hit = users;
        }
        may_hit
    }

    /// The hosts that cannot execute steps, each with the reason.
    pub(crate) fn unable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.unable.iter().map(|(hostname, (_, why))| (hostname.as_str(), why.as_str()))
    }

    /// Sends a [`StepRequest`](super::StepRequest) to a host that has no request in flight.
    pub(crate) fn send(&mut self, hostname: &str, request: Value, steps: Vec<SentStep>, position: LogPosition) {
        self.oldest.get_or_insert(position);
        self.in_flight.insert(hostname.to_owned(), steps);
        let sender = self.sender.clone();
        let sent_to = hostname.to_owned();
        let on_reply = move |reply| {
            // While the program ends there is no receiver.
            let _ = sender.send((sent_to, reply));
        };
        self.transport.send(hostname, request, Box::new(on_reply));
    }

    /// Begins a cycle with these snapshots, and takes the reports that have arrived. A host that was away can be repaired:
    /// it is not unable any more.
    pub(crate) fn begin_cycle(&mut self, hosts: &[HostSnapshot]) -> Vec<FinishedStep> {
        let is_up = |hostname: &str| hosts.iter().any(|host| host.hostname == hostname && host.up);
        self.unable.retain(|hostname, (since, _)| since.elapsed() < UNABLE_FOR && is_up(hostname));
        self.refused.retain(|_, since| since.elapsed() < RETRY_AFTER);
        self.follow_detached(hosts);
        let users = hosts.iter().map(|host| {
            let all = users_of_devices(std::slice::from_ref(host)).len();
            (host.hostname.clone(), (all, BTreeSet::new()))
        });
        self.users = users.collect();
        self.take_until(Instant::now(), &[])
    }

    /// Takes the reports that arrive while a cycle waits for these hosts.
    pub(crate) fn wait_for(&mut self, hostnames: &[String]) -> Vec<FinishedStep> {
        self.take_until(Instant::now() + self.cycle_wait, hostnames)
    }

    fn take_until(&mut self, deadline: Instant, hostnames: &[String]) -> Vec<FinishedStep> {
        let mut finished = Vec::new();
        loop {
            let is_waiting = hostnames.iter().any(|hostname| self.in_flight.contains_key(hostname));
            let left = match is_waiting {
                true => deadline.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            match self.replies.recv_timeout(left) {
                Ok((hostname, reply)) => finished.extend(self.finish(&hostname, reply)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return finished,
            }
        }
    }

    fn finish(&mut self, hostname: &str, reply: HostReply) -> Vec<FinishedStep> {
        let steps = self.in_flight.remove(hostname).unwrap_or_default();
        if self.in_flight.is_empty() {
            self.oldest = None;
        }
        if let Err(error) = &reply
            && error.failure.kind == FailureKind::Unsupported
        {
            self.unable.insert(hostname.to_owned(), (Instant::now(), reason(&error.to_string())));
        }
        let outcomes = outcomes(reply, steps.len());
        let finished = steps.into_iter().zip(outcomes).map(|(sent, (outcome, is_known))| {
            if matches!(outcome, Outcome::Refused { again: true, .. }) && !self.unable.contains_key(hostname) {
                self.refused.insert(operation(hostname, &sent.step), Instant::now());
            }
            FinishedStep { sent, outcome, is_known }
        });
        finished.collect()
    }

    /// Remembers a device that its host has detached. The host ends the processes at the pace of the rules, which can take
    /// several requests.
    pub(crate) fn remember_detached(&mut self, target: Arc<AttachmentTarget>) {
        if target.processes.len() > 1 {
            self.detached.push((Instant::now(), target));
        }
    }

    /// Takes the hosts that still have to end processes of detached devices and can get a request now.
    pub(crate) fn take_unfinished(&mut self) -> Vec<String> {
        let mut hostnames = std::mem::take(&mut self.unfinished);
        hostnames.retain(|hostname| !self.unable.contains_key(hostname) && !self.in_flight.contains_key(hostname));
        hostnames
    }

    /// Forgets the detached devices whose processes have ended.
    fn follow_detached(&mut self, hosts: &[HostSnapshot]) {
        self.unfinished.clear();
        self.detached.retain(|(since, target)| {
            let host = hosts.iter().find(|host| host.hostname == target.hostname && host.up);
            let snapshot = host.and_then(|host| host.snapshot.as_deref());
            let is_running = snapshot.is_some_and(|snapshot| target.processes.iter().any(|it| is_in(snapshot, it)));
            if is_running && !self.unfinished.contains(&target.hostname) {
                self.unfinished.push(target.hostname.clone());
            }
            // Without a snapshot the processes may be running.
            (is_running || snapshot.is_none()) && since.elapsed() < REMAINING_FOR
        });
    }

    /// Remembers a process to which its host has sent SIGKILL.
    pub(crate) fn remember_killed(&mut self, target: ProcessTarget, dispatched: Dispatched) {
        self.killed.push(Killed { dispatched, target, cycles: 0, is_reported: false });
    }

    /// Processes that are still running after SIGKILL and some cycles. Each is returned once.
    pub(crate) fn unkillable(&mut self, hosts: &[HostSnapshot]) -> Vec<(ProcessTarget, &Dispatched)> {
        self.killed.retain_mut(|killed| {
            let Some(host) = hosts.iter().find(|host| host.hostname == killed.target.hostname) else {
                return false;
            };
            let Some(snapshot) = host.snapshot.as_ref().filter(|_| host.up) else {
                return true;
            };
            killed.cycles += 1;
            is_in(snapshot, &killed.target)
        });
        let unkillable =
            self.killed.iter_mut().filter(|killed| killed.cycles > CYCLES_AFTER_KILL && !killed.is_reported);
        unkillable
            .map(|killed| {
                killed.is_reported = true;
                (killed.target.clone(), &killed.dispatched)
            })
            .collect()
    }
}

fn is_in(snapshot: &Snapshot, target: &ProcessTarget) -> bool {
    snapshot
        .processes
        .iter()
        .any(|process| process.pid == target.pid && process.start_time_ticks == Some(target.start_time_ticks))
}

/// Identifies what a step does on a host, in any cycle.
fn operation(hostname: &str, step: &Step) -> (Key, String) {
    let operation = match words::deed(&step.kind) {
        Some((deed, target)) => format!("{deed} {target}"),
        None => "warn".to_owned(),
    };
    (step.key.clone(), format!("{hostname} {operation}"))
}

/// The outcome of each step in a request, and whether it is known.
fn outcomes(reply: HostReply, steps: usize) -> Vec<(Outcome, bool)> {
    let all = |outcome: Outcome, is_known| vec![(outcome, is_known); steps];
    let unknown = |why: &str| {
        let why = reason(why);
        let reason = format!(
            "whether it was done is not known, and it is not tried again: {why}: the audit log of that host shows it"
        );
        all(Outcome::Failed { reason }, false)
    };
    match reply {
        Ok(report) => match serde_json::from_value::<StepReport>(report) {
            Ok(report) if report.version == VERSION && report.outcomes.len() == steps => {
                report.outcomes.into_iter().map(|outcome| (checked(outcome), true)).collect()
            }
            Ok(_) => unknown("its genv-enforcer is of another version, and its report is about other steps"),
            Err(error) => unknown(&format!("its report cannot be understood ({error})")),
        },
        Err(error) if error.may_be_done => unknown(&error.to_string()),
        Err(error) => all(Outcome::Refused { reason: reason(&error.to_string()), again: true }, true),
    }
}

/// The outcome with texts that are safe to print. A host in dry-run has executed nothing.
fn checked(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Done => Outcome::Done,
        Outcome::Would => Outcome::Refused { reason: "that host is in dry-run".to_owned(), again: true },
        Outcome::Refused { reason: why, again } => Outcome::Refused { reason: reason(&why), again },
        Outcome::Failed { reason: why } => Outcome::Failed { reason: reason(&why) },
    }
}

fn reason(text: &str) -> String {
    shortened(&harmless(text), MAX_REASON_CHARACTERS)
}

/// The hosts of a step: the host of its target, or for a report or a warning all hosts of the violation.
pub(crate) fn hosts_of(step: &Step, violation: &Violation) -> Vec<String> {
    match &step.kind {
        StepKind::Detach(target) => vec![target.hostname.clone()],
        StepKind::Terminate(target) | StepKind::Kill(target) => vec![target.hostname.clone()],
        StepKind::Report | StepKind::Warn { .. } => {
            let mut hostnames: Vec<String> = match &violation.hostname {
                Some(hostname) => vec![hostname.clone()],
                None => violation.targets.iter().map(|target| target.hostname().to_owned()).collect(),
            };
            hostnames.sort();
            hostnames.dedup();
            hostnames
        }
    }
}
