//! Other hosts that are asked to carry out steps. Each answers by itself: one that hangs costs the others nothing, and is
//! asked nothing more until it has answered or its time is over.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use genv_core::model::HostSnapshot;
use genv_core::text::{harmless, shortened};
use genv_remote::follow::{Fleet, NotEnforced};
use genv_remote::{FailureKind, HostFailure};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::config::BreakerLimits;
use crate::execute::surprise::Expected;
use crate::execute::{Asked, Mark};
use crate::host::users_of_devices;
use crate::intents::{Outcomes, VERSION};
use crate::plan::words;
use crate::plan::{AttachmentTarget, Key, Outcome, Plan, ProcessTarget, Step, StepKind, Violation};

/// What a host takes to answer: a session may be slow, and GPUs are asked anew there.
const ANSWER_DEADLINE: Duration = Duration::from_secs(25);

/// How long a cycle waits for answers. Later ones are taken by a later cycle.
const PATIENCE: Duration = Duration::from_secs(2);

/// A step that a host has refused for now is not sent again for so long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A host that cannot be asked to act is asked nothing for so long, unless its session ends before.
const UNABLE_FOR: Duration = Duration::from_secs(300);

/// For how long a host is asked to go on ending the processes of a device that it took.
const COME_BACK_FOR: Duration = Duration::from_secs(600);

/// In how many cycles a process that was killed may still be told of.
const CYCLES_TO_DIE: u32 = 3;

/// How much of a reason that a host gives is taken.
const MOST_REASON_CHARACTERS: usize = 300;

/// What a host answered, or why it did not.
pub(crate) type Answer = Result<Value, NotEnforced>;

/// Hosts that can be asked.
pub(crate) trait Hosts: Debug + Send {
    /// Asks one. `answered` is called once, in any thread, at the latest after [`ANSWER_DEADLINE`].
    fn ask(&self, hostname: &str, intents: Value, answered: Box<dyn FnOnce(Answer) + Send>);
}

/// Hosts that are followed over SSH; others take their place when the interval changes.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    fleet: Arc<RwLock<Fleet>>,
    runtime: Handle,
}

impl Followed {
    /// These, asked in this runtime.
    pub(crate) fn new(fleet: Fleet, runtime: Handle) -> Self {
        let fleet = Arc::new(RwLock::new(fleet));
        Self { fleet, runtime }
    }

    pub(crate) fn replace(&self, fleet: Fleet) {
        *self.fleet.write().unwrap_or_else(PoisonError::into_inner) = fleet;
    }
}

impl Hosts for Followed {
    fn ask(&self, hostname: &str, intents: Value, answered: Box<dyn FnOnce(Answer) + Send>) {
        let fleet = self.fleet.read().unwrap_or_else(PoisonError::into_inner);
        let fleet = fleet.clone();
        let hostname = hostname.to_owned();
        self.runtime.spawn(async move {
            let answer = timeout(ANSWER_DEADLINE, fleet.enforce(&hostname, intents)).await;
            answered(answer.unwrap_or_else(|_| {
                let seconds = ANSWER_DEADLINE.as_secs();
                Err(NotEnforced {
                    failure: HostFailure::new(
                        FailureKind::TimedOut,
                        format_args!("it did not answer within {seconds} s"),
                    ),
                    may_be_done: true,
                })
            }));
        });
    }
}

/// A step that a host is asked to carry out.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) step: Step,
    pub(crate) violation: Violation,
    /// What the audit has of it; nothing of what only tells.
    pub(crate) asked: Option<Asked>,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) begun: Begun,
    pub(crate) outcome: Outcome,
    /// Whether anybody knows that.
    pub(crate) is_known: bool,
}

/// Everything that is being asked.
#[derive(Debug)]
pub(crate) struct Asking {
    hosts: Box<dyn Hosts>,
    in_flight: BTreeMap<String, Vec<Begun>>,
    /// Before which intention the oldest of it is.
    begun_at: Option<Mark>,
    sender: Sender<(String, Answer)>,
    answers: Receiver<(String, Answer)>,
    refused: BTreeMap<(Key, String), Instant>,
    /// Hosts that cannot be asked to act: since when, and why.
    unable: BTreeMap<String, (Instant, String)>,
    killed: Vec<Killed>,
    /// Devices that hosts took, and processes that end with them there at the pace.
    taken: Vec<(Instant, AttachmentTarget)>,
    /// Hosts that are to go on with these now.
    unfinished: Vec<String>,
    /// By host, how many users have or use a device there, and whom this cycle hits.
    users: BTreeMap<String, (usize, BTreeSet<String>)>,
    /// How long a cycle waits.
    patience: Duration,
}

#[derive(Debug)]
struct Killed {
    asked: Asked,
    target: ProcessTarget,
    cycles: u32,
    told: bool,
}

impl Asking {
    /// Asks these; `patiently`, each cycle waits until all have answered.
    pub(crate) fn new(hosts: Box<dyn Hosts>, patiently: bool) -> Self {
        let (sender, answers) = channel();
        Self {
            hosts,
            in_flight: BTreeMap::new(),
            begun_at: None,
            sender,
            answers,
            refused: BTreeMap::new(),
            unable: BTreeMap::new(),
            killed: Vec::new(),
            taken: Vec::new(),
            unfinished: Vec::new(),
            users: BTreeMap::new(),
            patience: if patiently { ANSWER_DEADLINE + PATIENCE } else { PATIENCE },
        }
    }

    /// Whether nothing is being asked.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The deeds that are being asked for, and before which intention they are.
    pub(crate) fn in_flight(&self) -> (Option<Mark>, impl Iterator<Item = &Step>) {
        let begun = self.in_flight.values().flatten();
        let deeds = begun.filter(|it| it.asked.is_some()).map(|it| &it.step);
        (self.begun_at.clone(), deeds)
    }

    /// Whether a host may be asked this now: it can act, is not busy with something else, and did not refuse it a moment
    /// ago.
    pub(crate) fn may_ask(&self, hostname: &str, step: &Step) -> bool {
        !self.unable.contains_key(hostname)
            && !self.in_flight.contains_key(hostname)
            && !self.refused.contains_key(&what(hostname, step))
    }

    /// Whether a host may be asked this in this cycle: of its users no more are hit than a cycle here may hit of all, so that
    /// what is no surprise among the users of all hosts opens no breaker there. The users of the step count from now on.
    pub(crate) fn may_hit(&mut self, hostname: &str, step: &Step, limits: &BreakerLimits) -> bool {
        let Some((all, hit)) = self.users.get_mut(hostname) else {
            return true;
        };
        let plan = Plan { steps: vec![step.clone()], ..Plan::default() };
        let mut users = Expected::default().hits(&plan).users();
        users.extend(hit.iter().cloned());
        let most = limits.most_users(*all);
        let may_hit = hit.is_empty() || most.is_none_or(|most| users.len() <= most);
        if may_hit {
            *hit = users;
        }
        may_hit
    }

    /// The hosts that cannot be asked to act, each with why.
    pub(crate) fn unable(&self) -> impl Iterator<Item = (&str, &str)> {
        let unable = self.unable.iter();
        unable.map(|(hostname, (_, why))| (hostname.as_str(), why.as_str()))
    }

    /// Asks a host, which was not asked anything else since it answered last.
    pub(crate) fn ask(&mut self, hostname: &str, intents: Value, begun: Vec<Begun>, mark: Mark) {
        self.begun_at.get_or_insert(mark);
        self.in_flight.insert(hostname.to_owned(), begun);
        let sender = self.sender.clone();
        let asked = hostname.to_owned();
        let answered = move |answer| {
            // The program may be ending.
            let _ = sender.send((asked, answer));
        };
        self.hosts.ask(hostname, intents, Box::new(answered));
    }

    /// What was answered since, without waiting. What kept a host from acting may have been mended since it was away.
    pub(crate) fn take(&mut self, hosts: &[HostSnapshot]) -> Vec<Settled> {
        let is_up = |hostname: &str| hosts.iter().any(|it| it.hostname == hostname && it.up);
        self.unable.retain(|hostname, (since, _)| since.elapsed() < UNABLE_FOR && is_up(hostname));
        self.refused.retain(|_, refused| refused.elapsed() < ASK_AGAIN_AFTER);
        self.follow_taken(hosts);
        let users = hosts.iter().map(|host| {
            let all = users_of_devices(std::slice::from_ref(host)).len();
            (host.hostname.clone(), (all, BTreeSet::new()))
        });
        self.users = users.collect();
        self.take_until(Instant::now(), &[])
    }

    /// What these hosts answer, as long as a cycle waits for it.
    pub(crate) fn wait(&mut self, hostnames: &[String]) -> Vec<Settled> {
        self.take_until(Instant::now() + self.patience, hostnames)
    }

    fn take_until(&mut self, deadline: Instant, hostnames: &[String]) -> Vec<Settled> {
        let mut settled = Vec::new();
        loop {
            let awaited = hostnames.iter().any(|it| self.in_flight.contains_key(it));
            let left = match awaited {
                true => deadline.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            match self.answers.recv_timeout(left) {
                Ok((hostname, answer)) => settled.extend(self.settle(&hostname, answer)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return settled,
            }
        }
    }

    fn settle(&mut self, hostname: &str, answer: Answer) -> Vec<Settled> {
        let begun = self.in_flight.remove(hostname).unwrap_or_default();
        if self.in_flight.is_empty() {
            self.begun_at = None;
        }
        if let Err(error) = &answer
            && error.failure.kind == FailureKind::Unsupported
        {
            let why = (Instant::now(), reason(&error.to_string()));
            self.unable.insert(hostname.to_owned(), why);
        }
        let outcomes = outcomes(answer, begun.len());
        let each = begun.into_iter().zip(outcomes);
        each.map(|(begun, (outcome, is_known))| {
            if matches!(outcome, Outcome::Refused { again: true, .. }) && !self.unable.contains_key(hostname) {
                let what = what(hostname, &begun.step);
                self.refused.insert(what, Instant::now());
            }
            Settled { begun, outcome, is_known }
        })
        .collect()
    }

    /// Remembers a device that its host has taken: it comes to all of its processes only if it is asked again.
    pub(crate) fn took(&mut self, target: AttachmentTarget) {
        if target.processes.len() > 1 {
            self.taken.push((Instant::now(), target));
        }
    }

    /// Hosts of which nothing else is asked, and that are to go on ending processes of devices that they took.
    pub(crate) fn unfinished(&mut self) -> Vec<String> {
        let mut hostnames = std::mem::take(&mut self.unfinished);
        hostnames.retain(|hostname| !self.unable.contains_key(hostname) && !self.in_flight.contains_key(hostname));
        hostnames
    }

    /// Forgets devices of which no process is there any more.
    fn follow_taken(&mut self, hosts: &[HostSnapshot]) {
        self.unfinished.clear();
        self.taken.retain(|(since, target)| {
            let mut hosts = hosts.iter();
            let host = hosts.find(|host| host.hostname == target.hostname && host.up);
            let shown = host.and_then(|host| host.snapshot.as_ref());
            let is_there = shown.is_some_and(|snapshot| {
                let mut processes = snapshot.processes.iter();
                processes.any(|process| {
                    target
                        .processes
                        .iter()
                        .any(|it| it.pid == process.pid && Some(it.start_time_ticks) == process.start_time_ticks)
                })
            });
            if is_there && !self.unfinished.contains(&target.hostname) {
                self.unfinished.push(target.hostname.clone());
            }
            // Of a host that shows nothing it is not known.
            (is_there || shown.is_none()) && since.elapsed() < COME_BACK_FOR
        });
    }

    /// Remembers a process that its host has killed.
    pub(crate) fn killed(&mut self, target: ProcessTarget, asked: Asked) {
        self.killed.push(Killed { asked, target, cycles: 0, told: false });
    }

    /// Processes that were killed, and that their hosts tell of all the same; each once.
    pub(crate) fn unkillable(&mut self, hosts: &[HostSnapshot]) -> Vec<(ProcessTarget, &Asked)> {
        self.killed.retain_mut(|killed| {
            let target = &killed.target;
            let mut hosts = hosts.iter();
            let host = hosts.find(|host| host.hostname == target.hostname);
            let Some(host) = host else { return false };
            let Some(snapshot) = host.snapshot.as_ref().filter(|_| host.up) else {
                return true;
            };
            killed.cycles += 1;
            snapshot
                .processes
                .iter()
                .any(|process| process.pid == target.pid && process.start_time_ticks == Some(target.start_time_ticks))
        });
        let stay = self.killed.iter_mut();
        let untold = stay.filter(|killed| killed.cycles > CYCLES_TO_DIE && !killed.told);
        untold
            .map(|killed| {
                killed.told = true;
                (killed.target.clone(), &killed.asked)
            })
            .collect()
    }
}

/// What a step does on a host, apart from when.
fn what(hostname: &str, step: &Step) -> (Key, String) {
    let what = match words::deed(&step.kind) {
        Some((deed, target)) => format!("{deed} {target}"),
        None => "tell".to_owned(),
    };
    (step.key.clone(), format!("{hostname} {what}"))
}

/// How each of so many steps went, and whether that is known.
fn outcomes(answer: Answer, steps: usize) -> Vec<(Outcome, bool)> {
    let all = |outcome: Outcome, is_known| vec![(outcome, is_known); steps];
    let unknown = |why: &str| Outcome::Failed {
        reason: format!(
            "whether it was done is not known, and it is not tried again: {}: the audit of that host tells",
            reason(why)
        ),
    };
    match answer {
        Ok(answer) => match serde_json::from_value::<Outcomes>(answer) {
            Ok(answer) if answer.version == VERSION && answer.outcomes.len() == steps => {
                answer.outcomes.into_iter().map(told).collect()
            }
            Ok(_) => all(unknown("its genv-enforcer is of another version, and its answer of other steps"), false),
            Err(error) => all(unknown(&format!("its answer cannot be understood ({error})")), false),
        },
        Err(error) if error.may_be_done => all(unknown(&error.to_string()), false),
        Err(error) => {
            let reason = reason(&error.to_string());
            all(Outcome::Refused { reason, again: true }, true)
        }
    }
}

/// What a host tells, which could be anything.
fn told(outcome: Outcome) -> (Outcome, bool) {
    let outcome = match outcome {
        Outcome::Done => Outcome::Done,
        Outcome::Would => Outcome::Refused { reason: "that host is in dry-run".to_owned(), again: true },
        Outcome::Refused { reason: why, again } => Outcome::Refused { reason: reason(&why), again },
        Outcome::Failed { reason: why } => Outcome::Failed { reason: reason(&why) },
    };
    (outcome, true)
}

fn reason(text: &str) -> String {
    shortened(&harmless(text), MOST_REASON_CHARACTERS)
}

/// The hosts on which a step is to be taken: that of its target, and of what only tells, those that it is about.
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
