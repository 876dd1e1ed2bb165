//! Attaches devices, and waits in the queue if they are not free: first come, first served. A process passes others that it
//! does not delay.

mod added;
mod status;
mod timed_out;
mod wait_display;

use std::collections::BTreeMap;
use std::env;
use std::time::{Duration, Instant};

use added::Added;
use anyhow::{Context as _, ensure};
use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _};
use genv_core::state::allocate::{AllocateError, DeviceKind, DeviceUsage};
use genv_core::state::{EditableState, Facts, Refusal, Reply, Request, State, Wish};
use signal_hook::low_level::emulate_default_handler;
use status::QueueStatus;
use timed_out::timed_out_message;
use wait_display::WaitDisplay;

use crate::ago::{now_seconds, whole_units};
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

    /// A wish with the flags for the queue and for devices that others use.
    pub(crate) fn wish(self, force: ForceFlag) -> Wish {
        Wish {
            force: force.force || is_set(ATTACH_USED),
            wait: self.wait.is_some(),
            pass_queue: is_set(PASS_QUEUE),
            ..Wish::default()
        }
    }
}

/// A request for devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRequest<'a> {
    pub(crate) request: &'a Request,
    /// The environment, which may not exist yet.
    pub(crate) eid: &'a str,
    /// The accepted devices.
    pub(crate) kind: &'a DeviceKind,
    /// The shell that gets the devices. If it was killed meanwhile, nothing is changed.
    pub(crate) caller: Option<&'a Caller>,
    pub(crate) wait: WaitFlag,
    /// Whether the driver is asked before the first attempt. Later ones ask it at the head of the queue, or where the
    /// decision needs it.
    pub(crate) asks_driver: bool,
}

/// The state before and after a request that was granted.
pub(crate) struct Granted<'a> {
    pub(crate) before: &'a EditableState,
    pub(crate) after: &'a EditableState,
    pub(crate) reply: &'a Reply,
    /// The models of the devices, as far as the driver was asked.
    pub(crate) models: &'a BTreeMap<u32, String>,
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

/// Repeats a request until it is granted; without the flag `--wait`, asks once. A refused request changes nothing.
/// `view` runs while the state is locked.
///
/// # Errors
/// The devices do not exist, or are not free now or in time, or the request is refused for another reason.
pub(crate) fn obtain<T>(
    machine: &mut Machine,
    request: DeviceRequest<'_>,
    view: impl Fn(&Granted<'_>) -> T,
) -> anyhow::Result<T> {
    let mut waiter = Waiter { request, waited: None, usage: DeviceUsage::default() };
    let done = waiter.obtain(machine, &view);
    let is_refused = |error: &anyhow::Error| {
        matches!(error.downcast_ref(), Some(Failure::NotInTime(_)))
            || error.downcast_ref().is_some_and(Refusal::is_temporary)
    };
    if done.as_ref().is_err_and(is_refused) {
        machine.count_refused();
    }
    if let (Err(_), Some(_)) = (&done, &waiter.waited) {
        waiter.leave(machine);
    }
    done
}

enum Outcome<T> {
    Granted(T, Added),
    FactsNeeded,
    /// The process is in the queue, for this reason.
    Waits(QueueStatus, Refusal),
}

/// A process that requests devices. It enters the queue after the first failed attempt.
struct Waiter<'a> {
    request: DeviceRequest<'a>,
    waited: Option<WaitDisplay>,
    /// The last survey's use of the devices, with the last known models.
    usage: DeviceUsage,
}

impl Waiter<'_> {
    fn obtain<T>(&mut self, machine: &mut Machine, view: &impl Fn(&Granted<'_>) -> T) -> anyhow::Result<T> {
        let asked_at = Instant::now();
        let caller = self.request.caller;
        let shell = || caller.map(|caller| start_of(caller.pid()));
        let started = shell();
        let mut asks_driver = self.request.asks_driver;
        loop {
            let survey = match asks_driver {
                true => Some(self.survey(machine)?),
                false => None,
            };
            let (status, refusal) = match self.ask(machine, survey.as_ref(), view)? {
                Outcome::Granted(value, added) => {
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
                Outcome::FactsNeeded => {
                    asks_driver = true;
                    continue;
                }
                Outcome::Waits(status, refusal) => (status, refusal),
            };
            // Only the first process of the queue needs a survey.
            asks_driver = status.ahead == 0;
            let waiting = match &mut self.waited {
                Some(waiting) => waiting,
                None => {
                    if let Some(note) = self.request.wait.note {
                        print_note(note);
                    }
                    self.waited.insert(WaitDisplay::new().context("cannot wait")?)
                }
            };
            waiting.show(&status, refusal.devices().map_or(&[], AllocateError::outside));
            let patience = self.request.wait.wait.flatten();
            let rest = patience.map(|patience| patience.saturating_sub(asked_at.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
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

    /// Asks for the devices, with the facts of a survey.
    fn ask<T>(
        &self,
        machine: &mut Machine,
        survey: Option<&Survey>,
        view: &impl Fn(&Granted<'_>) -> T,
    ) -> anyhow::Result<Outcome<T>> {
        let DeviceRequest { request, eid, caller, .. } = self.request;
        let facts = Facts {
            inventory: survey.and_then(|it| it.inventory.clone()),
            usage: self.usage.clone(),
            taken_seconds: survey.map(|_| now_seconds()),
        };
        let models = &self.usage.models;
        machine.change(request, &facts, |before, after, reply| {
            Ok(match reply {
                Reply::FactsNeeded => Outcome::FactsNeeded,
                Reply::Waits { ahead, requested, refusal } => {
                    Outcome::Waits(QueueStatus::new(after, &facts.usage, eid, ahead, requested), refusal)
                }
                reply => {
                    caller.map_or(Ok(()), Caller::check)?;
                    let added = Added::new(after, eid, &reply, models);
                    Outcome::Granted(view(&Granted { before, after, reply: &reply, models }), added)
                }
            })
        })
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
        let left = machine.change(&Request::Withdraw, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()));
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

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| value == "1")
}
