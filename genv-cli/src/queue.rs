//! Getting devices, and waiting in a queue for them: first come, first served.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use anyhow::{Context as _, ensure};
use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::outside::OutsideUse;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _, username};
use genv_core::state::allocate::AllocateError;
use genv_core::state::{ChangeError, EditableState, StoreError, Waiting};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::ago::whole_units;
use crate::failure::Failure;
use crate::machine::{Machine, NoSample, Survey, tell};
use crate::output::harmless;
use crate::shell::{self, Caller};

/// How often those who wait look again. Nothing is locked in between.
const POLL: Duration = Duration::from_millis(300);

/// Whether to wait.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct WaitFlag {
    /// Wait in the queue for devices that cannot be had now, for ever or at most so long.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = parse_duration)]
    wait: Option<Option<Duration>>,
}

/// How devices are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    /// For this environment, which may not be there yet.
    pub(crate) eid: &'a str,
    /// The shell that shall have them: nothing is changed for one that was killed meanwhile.
    pub(crate) caller: Option<&'a Caller>,
    /// Whether devices of others may be shared: then nobody waits.
    pub(crate) over_subscribe: bool,
    /// Whether the attempt may take devices that other users' processes use without holding them.
    pub(crate) force: ForceFlag,
    pub(crate) wait: WaitFlag,
}

/// Whether use by those who do not hold a device is heeded.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ForceFlag {
    /// Take devices that other users' processes use and do not hold too, with a warning.
    #[arg(long)]
    force: bool,
}

/// If set to 1, devices are assigned as by genv 1.x, whatever processes use them.
const ATTACH_USED: &str = "GENV_ATTACH_USED";

/// One attempt: changes the state such that the environment has its devices.
pub(crate) trait Attempt<T>:
    FnMut(&mut EditableState, &Survey) -> anyhow::Result<T>
{
}

impl<T, F: FnMut(&mut EditableState, &Survey) -> anyhow::Result<T>> Attempt<T> for F {}

/// Attempts until it succeeds, once if nobody wants to wait. What an attempt changed is kept only if it succeeds.
///
/// # Errors
/// The devices cannot be had at all, or not now or not in time; or the attempt fails otherwise.
pub(crate) fn obtain<T>(
    machine: &mut Machine,
    asking: Asking<'_>,
    mut attempt: impl Attempt<T>,
) -> anyhow::Result<T> {
    let mut place = Place {
        pid: process::id(),
        asking,
        waited: None,
    };
    let done = place.obtain(machine, &mut attempt);
    if let (Err(_), Some(_)) = (&done, &place.waited) {
        place.leave(machine);
    }
    done
}

/// What came of an attempt.
enum Outcome<T> {
    /// The attempt succeeded, and added these devices.
    Done(T, Vec<u32>),
    /// The process is next in the queue, and has to learn the processes on the devices.
    Next,
    /// The process is in the queue, behind this number of others, for this reason.
    Waits(usize, anyhow::Error),
}

/// A place in the queue, taken when the first attempt fails.
struct Place<'a> {
    pid: u32,
    asking: Asking<'a>,
    waited: Option<Person>,
}

impl Place<'_> {
    fn obtain<T>(
        &mut self,
        machine: &mut Machine,
        attempt: &mut impl Attempt<T>,
    ) -> anyhow::Result<T> {
        let asked_at = Instant::now();
        let shell = || self.asking.caller.map(|caller| start_of(caller.pid()));
        let started = shell();
        let mut ahead = 0;
        loop {
            // Whoever is not the next to get devices need not know who uses them.
            let survey = match ahead {
                0 => Some(survey(machine, self.asking.eid)?),
                _ => None,
            };
            let heeded = survey
                .as_ref()
                .map(|survey| self.asking.force.heeded(survey));
            let outcome = machine.update(|state| self.attempt(state, heeded.as_ref(), attempt));
            let refusal = match outcome? {
                Outcome::Done(value, more) => {
                    if let Some(waiting) = self.waited.take() {
                        drop(waiting);
                        let waited = i64::try_from(asked_at.elapsed().as_secs());
                        let waited = whole_units(waited.unwrap_or(i64::MAX));
                        tell(&format!("it is your turn, after {waited} in the queue"));
                    }
                    if let Some(survey) = &survey {
                        note(survey, &more);
                    }
                    return Ok(value);
                }
                Outcome::Next => {
                    ahead = 0;
                    continue;
                }
                Outcome::Waits(now_ahead, refusal) => {
                    ahead = now_ahead;
                    refusal
                }
            };
            let waiting = match &mut self.waited {
                Some(waiting) => waiting,
                None => self.waited.insert(Person::new().context("cannot wait")?),
            };
            waiting.show(ahead, in_the_way(&refusal));
            let patience = self.asking.wait.wait.flatten();
            let rest = patience.map(|patience| patience.saturating_sub(asked_at.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return Err(
                    Failure::NotInTime(format!("{refusal}. That did not change in time")).into(),
                );
            }
            let signal = waiting.pause(rest.map_or(POLL, |rest| rest.min(POLL)));
            ensure!(
                shell() == started,
                "cannot attach devices: the shell that waits for them was killed. Ask again in another one"
            );
            if let Some(signal) = signal {
                self.leave(machine);
                // One that stops this program lets others pass meanwhile. One that ends it does not return.
                emulate_default_handler(signal).context("cannot end")?;
            }
        }
    }

    fn attempt<T>(
        &self,
        state: &mut EditableState,
        survey: Option<&Survey>,
        attempt: &mut impl Attempt<T>,
    ) -> anyhow::Result<Outcome<T>> {
        let eid = self.asking.eid;
        let is_surveyed = survey.is_some();
        let survey = &survey.cloned().unwrap_or_default();
        if let Some(inventory) = &survey.inventory {
            state.merge_inventory(inventory);
        }
        let ahead = state.queue_position(self.pid);
        let ahead = ahead.unwrap_or_else(|| state.queue().len());
        if ahead == 0 && !is_surveyed {
            return Ok(Outcome::Next);
        }
        let before = state.clone();
        let had = state.attached(eid);
        let refusal: anyhow::Error = match attempt(state, survey) {
            Ok(value) => {
                let mut more = state.attached(eid);
                more.retain(|index| !had.contains(index));
                if more.is_empty() || ahead == 0 || self.asking.over_subscribe {
                    self.asking.caller.map_or(Ok(()), Caller::check)?;
                    state.leave_queue(self.pid);
                    return Ok(Outcome::Done(value, more));
                }
                Failure::OthersWait(state.queue()[..ahead].to_vec()).into()
            }
            Err(error) if is_refusal(&error) => {
                if !comes_free(&before, eid, survey, attempt) {
                    return Err(error);
                }
                error
            }
            Err(error) => return Err(error),
        };
        if self.asking.wait.wait.is_none() {
            return Err(refusal);
        }
        let requested = state.requested();
        *state = before;
        Ok(Outcome::Waits(state.enqueue(self.pid, requested), refusal))
    }

    /// Leaves the queue, if it can: whoever ends is passed by anyway.
    fn leave(&self, machine: &mut Machine) {
        if let Some(waiting) = &self.waited {
            waiting.clear();
        }
        let left = machine.update(|state| {
            state.leave_queue(self.pid);
            Ok::<_, StoreError>(())
        });
        if let Err(error) = left {
            tell(&error.to_string());
        }
    }
}

/// The waiting processes as the beginning of a sentence; the first with user and pid.
pub(crate) fn who_waits(waiting: &[Waiting]) -> String {
    let first = waiting.first().map_or_else(
        || "another process".to_owned(),
        |it| format!("{} (process {})", harmless(&username(it.uid)), it.pid),
    );
    match waiting.len() {
        0 | 1 => format!("{first} waits"),
        2 => format!("{first} and 1 other wait"),
        all => format!("{first} and {} others wait", all - 1),
    }
}

/// Asks the GPUs what an attachment needs to know.
fn survey(machine: &mut Machine, eid: &str) -> anyhow::Result<Survey> {
    // A damaged state is repaired by the change that follows.
    let state = machine.state().unwrap_or_default();
    machine.survey(&state, eid).map_err(|error| match error {
        NoSample::Source(error) => error.into(),
        error => Failure::NotEnoughDevices(format!("cannot attach devices: {error}")).into(),
    })
}

/// When a process was started, if it is there.
fn start_of(pid: u32) -> Option<u64> {
    let table = ProcReader::new().read(&ProcessRequest {
        members: vec![pid],
        ..ProcessRequest::default()
    });
    Some(table.lineage.get(&pid)?.start_time_ticks)
}

fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ChangeError::Allocate(_))) || error.is::<AllocateError>()
}

/// The processes that caused the refusal by using devices without holding them.
fn in_the_way(refusal: &anyhow::Error) -> &[OutsideUse] {
    let refusal = match refusal.downcast_ref() {
        Some(ChangeError::Allocate(refusal)) => Some(refusal),
        _ => refusal.downcast_ref::<AllocateError>(),
    };
    refusal.map_or(&[], AllocateError::outside)
}

impl ForceFlag {
    /// The part of a survey that decides about available devices.
    fn heeded(self, survey: &Survey) -> Survey {
        let mut heeded = survey.clone();
        if self.force || attaches_used() {
            heeded.usage.outside.clear();
        }
        heeded
    }
}

fn attaches_used() -> bool {
    env::var_os(ATTACH_USED).is_some_and(|value| value == "1")
}

/// Warns of assigned devices that processes use without holding them, or whose processes are not known.
fn note(survey: &Survey, handed_out: &[u32]) {
    if attaches_used() {
        return;
    }
    for index in handed_out {
        if let Some(first) = survey
            .usage
            .outside
            .get(index)
            .and_then(|uses| uses.first())
        {
            tell(&format!(
                "device {index} is used by {first}, which does not hold it: its memory and its time are shared with that process. \
                 'genv who {index}' tells more"
            ));
        }
    }
    let unknown: Vec<String> = handed_out
        .iter()
        .filter(|index| survey.unknown.contains(index))
        .map(u32::to_string)
        .collect();
    if !unknown.is_empty() {
        let why = match &survey.silence {
            Some(why) => harmless(why),
            None => "the driver does not tell which processes use it".to_owned(),
        };
        let unknown = unknown.join(", ");
        tell(&format!(
            "it is not known whether other users use device {unknown}, which was attached all the same: {why}"
        ));
    }
}

/// Whether the attempt would succeed without other environments and other use of devices.
fn comes_free<T>(
    state: &EditableState,
    eid: &str,
    survey: &Survey,
    attempt: &mut impl Attempt<T>,
) -> bool {
    let mut alone = state.clone();
    for other in state.environments().iter().filter(|it| it.eid != eid) {
        // It names no index that could be wrong.
        let _ = alone.detach(&other.eid, None);
    }
    let mut unused = survey.clone();
    unused.usage.outside.clear();
    attempt(&mut alone, &unused).is_ok()
}

/// A person who waits, at a terminal or not.
struct Person {
    signals: Receiver<i32>,
    /// The place in the queue, and the processes that the user waits for.
    shown: Option<(usize, Vec<u32>)>,
    terminal: bool,
}

impl Person {
    fn new() -> io::Result<Self> {
        let mut caught = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        if !shell::is_function_waiting() {
            caught.add_signal(SIGTSTP)?;
        }
        let (sender, signals) = channel();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in caught.forever() {
                    if sender.send(signal).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            signals,
            shown: None,
            terminal: io::stderr().is_terminal(),
        })
    }

    /// Waits so long, or until a signal comes.
    fn pause(&self, time: Duration) -> Option<i32> {
        self.signals.recv_timeout(time).ok()
    }

    /// Shows the place in the queue and the processes that the user waits for. On a terminal the line is kept up to
    /// date. Otherwise the line appears once, and again when other processes hinder the attempt.
    fn show(&mut self, ahead: usize, uses: &[OutsideUse]) {
        let pids: Vec<u32> = uses.iter().map(|it| it.pid).collect();
        if let Some((shown_ahead, shown)) = &self.shown {
            let is_same = *shown_ahead == ahead || !self.terminal;
            if is_same && (*shown == pids || pids.is_empty()) {
                return;
            }
        }
        self.shown = Some((ahead, pids));
        let place = match ahead {
            0 => "next in the queue".to_owned(),
            1 => "one before you".to_owned(),
            ahead => format!("{ahead} before you"),
        };
        let whom = match uses {
            [] => String::new(),
            [first] => format!(", device {} waits for {first}", first.gpu),
            [first, rest @ ..] => format!(
                ", device {} waits for {first} and {} more",
                first.gpu,
                rest.len()
            ),
        };
        let (begin, end) = if self.terminal {
            ("\r\x1b[K", "")
        } else {
            ("", "\n")
        };
        // Nobody is left to tell if printing fails.
        let _ = write!(
            io::stderr(),
            "{begin}genv: waiting for devices: {place}{whom}. Ctrl-C leaves the queue{end}"
        );
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        self.clear();
    }
}
