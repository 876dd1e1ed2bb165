//! Attaches devices, and waits in the queue if they are not free: first come, first served. A process passes others that it
//! does not delay.

mod added;
mod refusal;
mod status;
mod wait_display;

use std::time::{Duration, Instant};
use std::{env, process};

use added::Added;
use anyhow::{Context as _, ensure};
use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _};
use genv_core::state::allocate::{DeviceKind, DeviceUsage};
use genv_core::state::{EditableState, State, StoreError};
use refusal::{blocking_uses, is_refusal, timed_out_message};
use signal_hook::low_level::emulate_default_handler;
use status::QueueStatus;
use wait_display::WaitDisplay;

use crate::ago::whole_units;
use crate::failure::Failure;
use crate::machine::{Machine, NoSample, Survey};
use crate::output::print_note;
use crate::shell::Caller;

/// The interval of attempts while waiting. The state is not locked in between.
const POLL: Duration = Duration::from_millis(300);

/// The flag for the queue.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct WaitFlag {
    /// Wait in the queue for devices that are not free, without limit or at most this long.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = parse_duration)]
    wait: Option<Option<Duration>>,

    /// A note to print when the wait starts.
    #[arg(skip)]
    note: Option<&'static str>,
}

impl WaitFlag {
    /// Whether the flag was given without a value.
    pub(crate) fn is_without_limit(self) -> bool {
        self.wait == Some(None)
    }

    /// Prints this note when the wait starts.
    pub(crate) fn note_first(&mut self, note: &'static str) {
        self.note = Some(note);
    }
}

/// A request for devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRequest<'a> {
    /// The environment, which may not exist yet.
    pub(crate) eid: &'a str,
    /// The accepted devices.
    pub(crate) kind: &'a DeviceKind,
    /// The shell that gets the devices. If it was killed meanwhile, nothing is changed.
    pub(crate) caller: Option<&'a Caller>,
    /// Whether devices of other environments may be shared, without a wait.
    pub(crate) over_subscribe: bool,
    /// Whether the attempt may take devices that other users' processes use without holding them.
    pub(crate) force: ForceFlag,
    pub(crate) wait: WaitFlag,
}

/// The flag for devices that other users' processes use without holding them.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ForceFlag {
    /// Also attach devices that other users' processes use without holding them, with a warning.
    #[arg(long)]
    force: bool,
}

/// If set to 1, the processes on a device do not prevent its assignment, as in genv 1.x.
const ATTACH_USED: &str = "GENV_ATTACH_USED";

/// If set to 1, a request also passes processes in the queue that it delays.
const PASS_QUEUE: &str = "GENV_PASS_QUEUE";

/// An attempt to change the state so that the environment has its devices.
pub(crate) trait Attempt<T>: FnMut(&mut EditableState, &Survey) -> anyhow::Result<T> {}

impl<T, F: FnMut(&mut EditableState, &Survey) -> anyhow::Result<T>> Attempt<T> for F {}

/// Repeats an attempt until it succeeds; without the flag `--wait`, attempts once. A failed attempt changes nothing.
///
/// # Errors
/// The devices do not exist, or are not free now or in time, or the attempt fails for another reason.
pub(crate) fn obtain<T>(
    machine: &mut Machine,
    request: DeviceRequest<'_>,
    mut attempt: impl Attempt<T>,
) -> anyhow::Result<T> {
    let mut waiter =
        Waiter { pid: process::id(), request, waited: None, usage: DeviceUsage::default(), is_refused: false };
    let done = waiter.obtain(machine, &mut attempt);
    if waiter.is_refused {
        machine.count_refused();
    }
    if let (Err(_), Some(_)) = (&done, &waiter.waited) {
        waiter.leave(machine);
    }
    done
}

enum AttemptResult<T> {
    /// The attempt succeeded.
    Done(T, Added),
    /// The process is the first of the queue, and needs a survey for its next attempt.
    Next,
    /// The process is in the queue, for this reason.
    Waits(QueueStatus, anyhow::Error),
}

/// A process that requests devices. It enters the queue after the first failed attempt.
struct Waiter<'a> {
    pid: u32,
    request: DeviceRequest<'a>,
    waited: Option<WaitDisplay>,
    /// The last survey's use of the devices, with the last known models.
    usage: DeviceUsage,
    /// Whether the devices are not free now, but may be free later.
    is_refused: bool,
}

impl Waiter<'_> {
    fn obtain<T>(&mut self, machine: &mut Machine, attempt: &mut impl Attempt<T>) -> anyhow::Result<T> {
        let asked_at = Instant::now();
        let caller = self.request.caller;
        let shell = || caller.map(|caller| start_of(caller.pid()));
        let started = shell();
        let mut ahead = 0;
        loop {
            // Only the first process of the queue needs a survey.
            let survey = match ahead {
                0 => Some(self.survey(machine)?),
                _ => None,
            };
            let effective = survey.as_ref().map(|survey| self.request.force.effective(survey));
            let outcome = machine.update(|state| self.attempt(state, effective.as_ref(), attempt));
            let (status, refusal) = match outcome? {
                AttemptResult::Done(value, added) => {
                    if let Some(waiting) = self.waited.take() {
                        drop(waiting);
                        let waited = i64::try_from(asked_at.elapsed().as_secs());
                        let waited = whole_units(waited.unwrap_or(i64::MAX));
                        print_note(&format!("it is your turn, after {waited} in the queue"));
                    }
                    if let Some(survey) = &survey {
                        added.note(survey);
                    }
                    return Ok(value);
                }
                AttemptResult::Next => {
                    ahead = 0;
                    continue;
                }
                AttemptResult::Waits(status, refusal) => {
                    ahead = status.ahead;
                    (status, refusal)
                }
            };
            let waiting = match &mut self.waited {
                Some(waiting) => waiting,
                None => {
                    if let Some(note) = self.request.wait.note {
                        print_note(note);
                    }
                    self.waited.insert(WaitDisplay::new().context("cannot wait")?)
                }
            };
            waiting.show(&status, blocking_uses(&refusal));
            let patience = self.request.wait.wait.flatten();
            let rest = patience.map(|patience| patience.saturating_sub(asked_at.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                self.is_refused = true;
                return Err(Failure::NotInTime(timed_out_message(&refusal.to_string())).into());
            }
            let signal = waiting.pause(rest.map_or(POLL, |rest| rest.min(POLL)));
            ensure!(
                shell() == started,
                "cannot attach devices: the shell that waits for them was killed. Try again in another shell"
            );
            if let Some(signal) = signal {
                self.leave(machine);
                // A stopped program has left the queue meanwhile. After a signal that ends the program this call does not return.
                emulate_default_handler(signal).context("cannot handle the signal")?;
            }
        }
    }

    fn attempt<T>(
        &mut self,
        state: &mut EditableState,
        survey: Option<&Survey>,
        attempt: &mut impl Attempt<T>,
    ) -> anyhow::Result<AttemptResult<T>> {
        let eid = self.request.eid;
        let is_surveyed = survey.is_some();
        let survey = &survey.cloned().unwrap_or_else(|| Survey {
            usage: DeviceUsage { models: self.usage.models.clone(), ..DeviceUsage::default() },
            ..Survey::default()
        });
        if let Some(inventory) = &survey.inventory {
            state.merge_inventory(inventory);
        }
        let ahead = state.queue_position(self.pid);
        let ahead = ahead.unwrap_or_else(|| state.queue().len());
        if ahead == 0 && !is_surveyed {
            return Ok(AttemptResult::Next);
        }
        let before = state.clone();
        let had = state.attached(eid);
        let refusal: anyhow::Error = match attempt(state, survey) {
            Ok(value) => {
                let mut added = Added::new(state, eid, &had, survey);
                let waiting = &state.queue()[..ahead];
                let expectation = before.expectation(&self.usage);
                let after = state.expectation(&self.usage);
                let is_first = ahead == 0 || added.devices.is_empty() || self.request.over_subscribe;
                let environment = (eid, &added.devices[..]);
                let any_time = is_set(PASS_QUEUE);
                if is_first || expectation.delays_none(&after, waiting, environment, any_time) {
                    if !is_surveyed {
                        *state = before;
                        return Ok(AttemptResult::Next);
                    }
                    if !is_first {
                        added.passed = waiting.to_vec();
                    }
                    self.request.caller.map_or(Ok(()), Caller::check)?;
                    state.leave_queue(self.pid);
                    return Ok(AttemptResult::Done(value, added));
                }
                Failure::OthersWait(waiting.to_vec()).into()
            }
            Err(error) if is_refusal(&error) => {
                if !may_become_free(&before, eid, survey, attempt) {
                    return Err(error);
                }
                error
            }
            Err(error) => return Err(error),
        };
        if self.request.wait.wait.is_none() {
            self.is_refused = true;
            return Err(refusal);
        }
        let requested = state.requested().cloned();
        *state = before;
        let ahead = state.enqueue(self.pid, requested.clone());
        let status = QueueStatus::new(state, &self.usage, eid, ahead, requested);
        Ok(AttemptResult::Waits(status, refusal))
    }

    /// Surveys the GPUs for an attachment.
    fn survey(&mut self, machine: &mut Machine) -> anyhow::Result<Survey> {
        let kind = self.request.kind;
        let models_needed = !kind.types.is_empty() && self.usage.models.is_empty();
        // The later change repairs a damaged state.
        let state = machine.state().unwrap_or_default();
        let mut survey = machine.survey(&state, self.request.eid, models_needed).map_err(|error| match error {
            NoSample::Source(error) => error.into(),
            error => not_known(kind, &error.to_string()),
        })?;
        if survey.usage.models.is_empty() {
            survey.usage.models = std::mem::take(&mut self.usage.models);
        }
        self.usage = survey.usage.clone();
        check_known(kind, &survey, &state)?;
        Ok(survey)
    }

    /// Leaves the queue. After an error other processes skip this one when it has ended.
    fn leave(&self, machine: &mut Machine) {
        if let Some(waiting) = &self.waited {
            waiting.clear();
        }
        let left = machine.update(|state| {
            state.leave_queue(self.pid);
            Ok::<_, StoreError>(())
        });
        if let Err(error) = left {
            print_note(&error.to_string());
        }
    }
}

/// Checks that the models or memory sizes for a kind are known.
fn check_known(kind: &DeviceKind, survey: &Survey, state: &State) -> anyhow::Result<()> {
    let has_gpus = survey.inventory.as_ref().is_none_or(|it| it.count() > 0);
    let is_type_unknown = !kind.types.is_empty() && survey.usage.models.is_empty();
    let is_memory_unknown = kind.memory_at_least.is_some()
        && survey.silence.is_some()
        && state.devices.iter().all(|it| it.total_memory.is_none());
    if has_gpus && (is_type_unknown || is_memory_unknown) {
        let why = survey.silence.as_deref();
        let why = why.unwrap_or("the driver does not report the models of the GPUs: see whether 'nvidia-smi' does");
        return Err(not_known(kind, why));
    }
    Ok(())
}

fn not_known(kind: &DeviceKind, why: &str) -> anyhow::Error {
    let remedy = if kind.is_any() { "" } else { ", or choose devices by '--index'" };
    Failure::NotEnoughDevices(format!("cannot attach devices{kind}: {why}{remedy}")).into()
}

/// The start of a process, if it exists.
fn start_of(pid: u32) -> Option<u64> {
    let table = ProcReader::new().read(&ProcessRequest { members: vec![pid], ..ProcessRequest::default() });
    Some(table.lineage.get(&pid)?.start_time_ticks)
}

impl ForceFlag {
    /// The survey without the uses that the flag ignores.
    fn effective(self, survey: &Survey) -> Survey {
        let mut effective = survey.clone();
        if self.force || is_set(ATTACH_USED) {
            effective.usage.outside.clear();
        }
        effective
    }
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| value == "1")
}

/// Whether the attempt would succeed without other environments and other use of devices.
fn may_become_free<T>(state: &EditableState, eid: &str, survey: &Survey, attempt: &mut impl Attempt<T>) -> bool {
    let mut alone = state.clone();
    for other in state.environments().iter().filter(|it| it.eid != eid) {
        // Without an index this cannot fail.
        let _ = alone.detach(&other.eid, None);
    }
    let mut unused = survey.clone();
    unused.usage.outside.clear();
    attempt(&mut alone, &unused).is_ok()
}
