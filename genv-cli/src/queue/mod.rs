//! Getting devices, and waiting in a queue for them: first come, first served. A process passes those that it does not
//! delay.

mod added;
mod person;
mod refusal;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{env, process};

use added::Added;
use anyhow::{Context as _, ensure};
use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _, username};
use genv_core::state::allocate::{DeviceKind, DeviceUsage};
use genv_core::state::{EditableState, State, StoreError, Waiting};
use person::Person;
use refusal::{in_the_way, is_refusal, not_in_time};
use signal_hook::low_level::emulate_default_handler;

use crate::ago::whole_units;
use crate::failure::Failure;
use crate::machine::{Machine, NoSample, Survey, tell};
use crate::output::harmless;
use crate::shell::Caller;

/// How often those who wait look again. Nothing is locked in between.
const POLL: Duration = Duration::from_millis(300);

/// Whether to wait.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct WaitFlag {
    /// Wait in the queue for devices that are not free, without limit or at most this long.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = parse_duration)]
    wait: Option<Option<Duration>>,

    /// A note for the beginning of the wait.
    #[arg(skip)]
    note: Option<&'static str>,
}

impl WaitFlag {
    /// Whether the flag was given without a value.
    pub(crate) fn is_without_limit(self) -> bool {
        self.wait == Some(None)
    }

    /// Prints this note at the beginning of the wait.
    pub(crate) fn note_first(&mut self, note: &'static str) {
        self.note = Some(note);
    }
}

/// How devices are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    /// For this environment, which may not be there yet.
    pub(crate) eid: &'a str,
    /// The accepted devices.
    pub(crate) kind: &'a DeviceKind,
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

/// If set to 1, processes in the queue are passed that may get their devices later than without it.
const PASS_QUEUE: &str = "GENV_PASS_QUEUE";

/// One attempt: changes the state such that the environment has its devices.
pub(crate) trait Attempt<T>: FnMut(&mut EditableState, &Survey) -> anyhow::Result<T> {}

impl<T, F: FnMut(&mut EditableState, &Survey) -> anyhow::Result<T>> Attempt<T> for F {}

/// Attempts until it succeeds, once if nobody wants to wait. What an attempt changed is kept only if it succeeds.
///
/// # Errors
/// The devices cannot be had at all, or not now or not in time; or the attempt fails otherwise.
pub(crate) fn obtain<T>(machine: &mut Machine, asking: Asking<'_>, mut attempt: impl Attempt<T>) -> anyhow::Result<T> {
    let mut place = Place { pid: process::id(), asking, waited: None, models: BTreeMap::new(), is_refused: false };
    let done = place.obtain(machine, &mut attempt);
    if place.is_refused {
        machine.count_refused();
    }
    if let (Err(_), Some(_)) = (&done, &place.waited) {
        place.leave(machine);
    }
    done
}

/// What came of an attempt.
enum Outcome<T> {
    /// The attempt succeeded.
    Done(T, Added),
    /// The process has its turn, and has to learn the processes on the devices.
    Next,
    /// The process is in the queue, for this reason.
    Waits(Standing, anyhow::Error),
}

/// How a process stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Standing {
    /// How many are before it.
    ahead: usize,
    /// When it is expected to get its devices, by leases, Unix time.
    expected: Option<f64>,
}

/// A place in the queue, taken when the first attempt fails.
struct Place<'a> {
    pid: u32,
    asking: Asking<'a>,
    waited: Option<Person>,
    /// The models of the devices by the last answer of the GPUs. They do not change.
    models: BTreeMap<u32, String>,
    /// Whether the devices could not be had in time, but may be had later.
    is_refused: bool,
}

impl Place<'_> {
    fn obtain<T>(&mut self, machine: &mut Machine, attempt: &mut impl Attempt<T>) -> anyhow::Result<T> {
        let asked_at = Instant::now();
        let caller = self.asking.caller;
        let shell = || caller.map(|caller| start_of(caller.pid()));
        let started = shell();
        let mut ahead = 0;
        loop {
            // A process without its turn need not know who uses the devices.
            let survey = match ahead {
                0 => Some(self.survey(machine)?),
                _ => None,
            };
            let heeded = survey.as_ref().map(|survey| self.asking.force.heeded(survey));
            let outcome = machine.update(|state| self.attempt(state, heeded.as_ref(), attempt));
            let (standing, refusal) = match outcome? {
                Outcome::Done(value, added) => {
                    if let Some(waiting) = self.waited.take() {
                        drop(waiting);
                        let waited = i64::try_from(asked_at.elapsed().as_secs());
                        let waited = whole_units(waited.unwrap_or(i64::MAX));
                        tell(&format!("it is your turn, after {waited} in the queue"));
                    }
                    if let Some(survey) = &survey {
                        added.note(survey);
                    }
                    return Ok(value);
                }
                Outcome::Next => {
                    ahead = 0;
                    continue;
                }
                Outcome::Waits(standing, refusal) => {
                    ahead = standing.ahead;
                    (standing, refusal)
                }
            };
            let waiting = match &mut self.waited {
                Some(waiting) => waiting,
                None => {
                    if let Some(note) = self.asking.wait.note {
                        tell(note);
                    }
                    self.waited.insert(Person::new().context("cannot wait")?)
                }
            };
            waiting.show(standing, in_the_way(&refusal));
            let patience = self.asking.wait.wait.flatten();
            let rest = patience.map(|patience| patience.saturating_sub(asked_at.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                self.is_refused = true;
                return Err(Failure::NotInTime(not_in_time(&refusal.to_string())).into());
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
        &mut self,
        state: &mut EditableState,
        survey: Option<&Survey>,
        attempt: &mut impl Attempt<T>,
    ) -> anyhow::Result<Outcome<T>> {
        let eid = self.asking.eid;
        let is_surveyed = survey.is_some();
        let survey = &survey.cloned().unwrap_or_else(|| Survey {
            usage: DeviceUsage { models: self.models.clone(), ..DeviceUsage::default() },
            ..Survey::default()
        });
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
                let mut added = Added::new(state, eid, &had, survey);
                let waiting = &state.queue()[..ahead];
                let models = &survey.usage.models;
                let expectation = before.expectation(models);
                let after = state.expectation(models);
                let is_first = ahead == 0 || added.devices.is_empty() || self.asking.over_subscribe;
                let environment = (eid, &added.devices[..]);
                let any_time = is_set(PASS_QUEUE);
                if is_first || expectation.delays_none(&after, waiting, environment, any_time) {
                    if !is_surveyed {
                        *state = before;
                        return Ok(Outcome::Next);
                    }
                    if !is_first {
                        added.passed = waiting.to_vec();
                    }
                    self.asking.caller.map_or(Ok(()), Caller::check)?;
                    state.leave_queue(self.pid);
                    return Ok(Outcome::Done(value, added));
                }
                Failure::OthersWait(waiting.to_vec()).into()
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
            self.is_refused = true;
            return Err(refusal);
        }
        let requested = state.requested().cloned();
        *state = before;
        let ahead = state.enqueue(self.pid, requested);
        let standing = Standing { ahead, expected: self.expected(state, ahead) };
        Ok(Outcome::Waits(standing, refusal))
    }

    /// When it is expected to get its devices, if so many processes of the queue are before it.
    fn expected(&self, state: &EditableState, ahead: usize) -> Option<f64> {
        let expectation = state.expectation(&self.models);
        let times = expectation.of_queue(state.queue());
        times.get(ahead).copied().flatten()
    }

    /// Asks the GPUs what an attachment needs to know.
    fn survey(&mut self, machine: &mut Machine) -> anyhow::Result<Survey> {
        let kind = self.asking.kind;
        let models_needed = !kind.types.is_empty() && self.models.is_empty();
        // A damaged state is repaired by the change that follows.
        let state = machine.state().unwrap_or_default();
        let mut survey = machine.survey(&state, self.asking.eid, models_needed).map_err(|error| match error {
            NoSample::Source(error) => error.into(),
            error => not_known(kind, &error.to_string()),
        })?;
        if survey.usage.models.is_empty() {
            survey.usage.models = self.models.clone();
        } else {
            self.models = survey.usage.models.clone();
        }
        check_known(kind, &survey, &state)?;
        Ok(survey)
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

/// The waiting processes as the beginning of a sentence.
pub(crate) fn who_waits(waiting: &[Waiting]) -> String {
    let who = first_and_others(waiting).unwrap_or_else(|| "another process".to_owned());
    let wait = if waiting.len() < 2 { "waits" } else { "wait" };
    format!("{who} {wait}")
}

/// The first of the waiting processes with user and pid, and the number of others.
fn first_and_others(waiting: &[Waiting]) -> Option<String> {
    let first = waiting.first()?;
    let first = format!("{} (process {})", harmless(&username(first.uid)), first.pid);
    Some(match waiting.len() {
        1 => first,
        2 => format!("{first} and 1 other"),
        all => format!("{first} and {} others", all - 1),
    })
}

/// Whether it is known which devices are of a kind.
///
/// # Errors
/// It is not.
fn check_known(kind: &DeviceKind, survey: &Survey, state: &State) -> anyhow::Result<()> {
    let has_gpus = survey.inventory.as_ref().is_none_or(|it| it.count() > 0);
    let is_type_unknown = !kind.types.is_empty() && survey.usage.models.is_empty();
    let is_memory_unknown = kind.memory_at_least.is_some()
        && survey.inventory.is_none()
        && state.devices.iter().all(|it| it.total_memory.is_none());
    if has_gpus && (is_type_unknown || is_memory_unknown) {
        let why = survey.silence.as_deref();
        let why = why.unwrap_or("the driver does not tell the models of the GPUs: see whether 'nvidia-smi' does");
        return Err(not_known(kind, why));
    }
    Ok(())
}

fn not_known(kind: &DeviceKind, why: &str) -> anyhow::Error {
    let remedy = if kind.is_any() { "" } else { ", or ask for devices by '--index'" };
    Failure::NotEnoughDevices(format!("cannot attach devices{kind}: {why}{remedy}")).into()
}

/// When a process was started, if it is there.
fn start_of(pid: u32) -> Option<u64> {
    let table = ProcReader::new().read(&ProcessRequest { members: vec![pid], ..ProcessRequest::default() });
    Some(table.lineage.get(&pid)?.start_time_ticks)
}

impl ForceFlag {
    /// The part of a survey that decides about available devices.
    fn heeded(self, survey: &Survey) -> Survey {
        let mut heeded = survey.clone();
        if self.force || is_set(ATTACH_USED) {
            heeded.usage.outside.clear();
        }
        heeded
    }
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| value == "1")
}

/// Whether the attempt would succeed without other environments and other use of devices.
fn comes_free<T>(state: &EditableState, eid: &str, survey: &Survey, attempt: &mut impl Attempt<T>) -> bool {
    let mut alone = state.clone();
    for other in state.environments().iter().filter(|it| it.eid != eid) {
        // It names no index that could be wrong.
        let _ = alone.detach(&other.eid, None);
    }
    let mut unused = survey.clone();
    unused.usage.outside.clear();
    attempt(&mut alone, &unused).is_ok()
}
