//! The state and the GPUs of this machine, for commands.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::mem;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::attribute::environments_of;
use genv_core::collect::withhold;
use genv_core::gpu::bounds::Bounds;
use genv_core::gpu::{GpuError, GpuSample, GpuSource};
use genv_core::proc::{ProcessSource, in_initial_pid_namespace, own_uid};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{EditableState, Inventory, State, StateError, StateStore, StoreError, Waiting, directory_path};
use genv_simulator::{SourceError, SourceOptions};

use crate::device_facts::{DeviceProcess, contexts, outside_uses, processes_of_environment, usage};
use crate::driver_timeout::{BRIEF, at_least, brief_patience, needed_patience, usage_patience};
use crate::exporter;
use crate::output::print_note;
use crate::outside::{self, DeviceUse, MAX_AGE_SECONDS, OutsideUses, Published};

/// Time limit for the contexts on the GPUs, if they decide about an environment without a shell.
const CONTEXT_PATIENCE: Duration = Duration::from_secs(1);

/// The time after which a line on a terminal names the driver as the cause of the wait.
const NOTE_AFTER: Duration = Duration::from_millis(300);

/// An answer to a question that is older than this is not current: the question is asked again.
const SAME_MOMENT: Duration = Duration::from_secs(1);

/// The state and the GPUs of this machine. The GPUs are opened at the first query.
pub(crate) struct Machine {
    store: StateStore,
    gpus: SharedGpus,
    /// The printed notices about the state files.
    notices: BTreeSet<String>,
}

/// Why the GPUs have no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSample {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The GPUs did not answer in this time, the longest wait since their last answer. The answer may come later.
    #[error(
        "the GPUs have not answered within {} s: see whether 'nvidia-smi' works",
        .0.as_secs_f64()
    )]
    TooLate(Duration),
    /// The driver does not list the processes of a device.
    #[error("the driver does not list the processes on device {0}: see whether 'nvidia-smi' does")]
    ProcessesUnknown(u32),
}

/// The GPUs, which one thread queries for all parts of a command: each session with the driver may cost seconds.
#[derive(Clone)]
struct SharedGpus {
    options: SourceOptions,
    opened: Arc<Mutex<Option<Gpus>>>,
}

/// The GPUs. A separate thread queries the driver, since it may hang.
struct Gpus {
    processes: Box<dyn ProcessSource>,
    questions: Sender<()>,
    answers: Receiver<Result<GpuSample, GpuError>>,
    /// The time of the question without an answer.
    asked: Option<Instant>,
    /// The longest wait in vain since the last answer.
    waited: Duration,
    /// The last sample, with its time.
    last: Option<(Instant, GpuSample)>,
    /// Whether the line about the wait was printed.
    noted: bool,
}

/// The newest facts about the GPUs.
pub(crate) struct Newest {
    pub(crate) sample: Result<GpuSample, NoSample>,
    /// Whether the sample is from an exporter's snapshot. It may lack a change of the last seconds: it ends no use, and never
    /// gets into the state.
    is_of_exporter: bool,
}

impl Machine {
    /// This machine, with the state and the GPUs that `GENV_TMPDIR`, `GENV_DEVICES`, `GENV_SCENARIO` and
    /// `GENV_NVML_LIBRARY` choose.
    pub(crate) fn here() -> Result<Self, SourceError> {
        let gpus = SharedGpus::new(SourceOptions::default().or_from_environment()?);
        Ok(Self { store: gpus.store(), gpus, notices: BTreeSet::new() })
    }

    /// Sets whether ended members are removed.
    pub(crate) fn cleaning(mut self, cleaning: bool) -> Self {
        self.store = self.store.cleaning(cleaning);
        self
    }

    /// Whether the GPUs are simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.gpus.options.are_simulated()
    }

    pub(crate) fn state_directory(&self) -> &Path {
        self.store.path()
    }

    /// Takes the lock of the state within `patience`, and releases it at once.
    pub(crate) fn try_lock(&self, patience: Duration) -> Result<(), StoreError> {
        self.store.try_lock(patience)
    }

    /// Reads the state without its lock, and prints notices about damaged files. Records news about the caller's environments:
    /// new processes on devices, and environments that continue without a shell.
    pub(crate) fn state(&mut self) -> Result<State, StateError> {
        let read = self.store.read();
        self.store.note_news();
        self.print_notices();
        read
    }

    /// As [`Machine::state`], for one environment alone, which is faster.
    pub(crate) fn state_of(&mut self, eid: &str) -> Result<State, StateError> {
        let read = self.store.read_environment(eid);
        self.store.note_news();
        self.print_notices();
        read
    }

    /// The processes that wait in the queue of a state, in order of arrival.
    pub(crate) fn waiting(&mut self, state: &State) -> Vec<Waiting> {
        self.store.waiting(state)
    }

    /// The state with the machine's devices. The driver is queried only if the state has no devices.
    pub(crate) fn state_with_devices(&mut self) -> anyhow::Result<State> {
        let mut state = self.state()?;
        if state.devices.is_empty() {
            let inventory = Inventory::of(&self.sample(needed_patience())?);
            state.devices = inventory.devices();
            // After an error the next command queries the driver again.
            let _ = self.update(|state| {
                state.merge_inventory(&inventory);
                Ok::<_, StoreError>(())
            });
        }
        Ok(state)
    }

    /// Changes the state under its lock, and prints notices about damaged files. If the change fails, nothing is written. The
    /// change must not query the GPUs.
    pub(crate) fn update<T, E: From<StoreError>>(
        &mut self,
        change: impl FnOnce(&mut EditableState) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = self.store.update(change);
        self.print_notices();
        done
    }

    /// Counts a refused request for devices.
    pub(crate) fn count_refused(&self) {
        self.store.count_refused();
    }

    fn print_notices(&mut self) {
        for notice in self.store.take_notices() {
            if self.notices.insert(notice.clone()) {
                print_note(&notice);
            }
        }
    }

    /// Queries the GPUs, and waits at most this long for the answer.
    pub(crate) fn sample(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        self.gpus.query(|gpus| gpus.sample(patience))?
    }

    /// The newest facts about the GPUs of this state: those of the driver, or of a running exporter if the driver does not answer
    /// at once. Without either, waits for the driver for `patience`.
    fn newest(&mut self, state: &State, patience: Duration) -> Newest {
        let sample = self.gpus.query(|gpus| gpus.newest(patience.min(BRIEF))).flatten();
        let Err(NoSample::TooLate(waited)) = sample else {
            return Newest { sample, is_of_exporter: false };
        };
        if let Some(sample) = self.of_exporter(state) {
            return Newest { sample: Ok(sample), is_of_exporter: true };
        }
        // A second whole wait would be in vain.
        let sample = if waited < patience { self.sample(patience) } else { sample };
        Newest { sample, is_of_exporter: false }
    }

    /// Whether an exporter at its default address reads the same GPUs as this program, and names the same processes by their
    /// pids: no variable chooses other GPUs, and the program runs in no container.
    pub(crate) fn shares_gpus_with_exporter(&self) -> bool {
        let SourceOptions { nvml_library, scenario, .. } = &self.gpus.options;
        !self.is_simulated() && nvml_library.is_none() && scenario.is_none() && in_initial_pid_namespace()
    }

    /// The newest sample of a running exporter that shows all GPUs of the state.
    fn of_exporter(&self, state: &State) -> Option<GpuSample> {
        if !self.shares_gpus_with_exporter() {
            return None;
        }
        let sample = exporter::newest_sample(&self.gpus.options.own_hostname(), MAX_AGE_SECONDS)?;
        // In a container an exporter may see a part of the GPUs.
        let shows = |gpu: u32| sample.devices.iter().any(|it| it.index.gpu == gpu);
        state.devices.iter().all(|it| shows(it.index)).then_some(sample)
    }

    /// The newest sample of the GPUs of this state, within [`usage_patience`].
    pub(crate) fn newest_sample(&mut self, state: &State) -> Newest {
        self.newest(state, usage_patience())
    }

    /// The facts for an attachment to an environment: the GPUs of the machine and the processes on them.
    ///
    /// If the state knows the GPUs and their models are not needed, a running exporter or enforcer can answer in place of the
    /// driver.
    ///
    /// # Errors
    /// Neither the GPUs nor the state list the devices, or the configuration of the GPUs is invalid.
    pub(crate) fn survey(&mut self, state: &State, eid: &str, models_needed: bool) -> Result<Survey, NoSample> {
        let has_none = state.devices.is_empty();
        let published = self.published();
        let Newest { sample, is_of_exporter } = if has_none || models_needed {
            Newest { sample: self.sample(needed_patience()), is_of_exporter: false }
        } else {
            // A file of the enforcer that does not know a free device is no answer.
            let is_known = |it: &Published, gpu| it.known.contains(&gpu);
            let is_answer = |it: &Published| {
                let mut devices = state.devices.iter();
                devices.all(|device| !device.attachments.is_empty() || is_known(it, device.index))
            };
            let patience = if published.as_ref().is_some_and(is_answer) { brief_patience() } else { usage_patience() };
            self.newest(state, patience)
        };
        let sample = match sample {
            Err(error) if has_none => return Err(error),
            sample => sample,
        };
        let without_driver = outside::usage_without_driver(published.as_ref(), state);
        self.gpus.query(|gpus| {
            let processes = gpus.processes.as_mut();
            let uses = outside_uses(published, sample.as_ref().ok(), is_of_exporter, state, processes);
            let environment = state.environments.iter().find(|it| it.eid == eid);
            let user = environment.map_or_else(own_uid, |it| it.uid);
            let outside = outside::uses_of_others(uses, user, state, processes);
            match sample {
                Ok(sample) => {
                    let mut usage = DeviceUsage { outside, ..usage(&sample, state, eid, processes) };
                    if is_of_exporter {
                        usage.busy.extend(&without_driver.busy);
                    }
                    Survey { usage, silence: None, inventory: (!is_of_exporter).then(|| Inventory::of(&sample)) }
                }
                Err(error) => Survey {
                    usage: DeviceUsage { outside, ..without_driver },
                    silence: Some(error.to_string()),
                    inventory: None,
                },
            }
        })
    }

    /// The use of the devices by a sample of the GPUs. Without a sample it is empty.
    pub(crate) fn usage(&self, state: &State, sample: Option<&GpuSample>) -> DeviceUsage {
        let of = |sample| self.gpus.query(|gpus| usage(sample, state, "", gpus.processes.as_mut())).ok();
        sample.and_then(of).unwrap_or_default()
    }

    /// The use of the devices, if the driver or an exporter answers within [`brief_patience`].
    pub(crate) fn brief_usage(&mut self, state: &State) -> DeviceUsage {
        let sample = self.newest(state, brief_patience()).sample;
        self.usage(state, sample.as_ref().ok())
    }

    /// The use of the devices, by [`Machine::newest_sample`].
    pub(crate) fn device_use(&mut self, state: &State) -> DeviceUse {
        let Newest { sample, is_of_exporter } = self.newest_sample(state);
        let published = self.published();
        let published_known = published.as_ref().map(|it| it.known.clone()).unwrap_or_default();
        let of_sample = sample.as_ref().ok();
        let outside =
            self.gpus.query(|gpus| outside_uses(published, of_sample, is_of_exporter, state, gpus.processes.as_mut()));
        match outside {
            Ok(outside) => DeviceUse {
                outside,
                published_known,
                contexts: sample.as_ref().map(contexts).unwrap_or_default(),
                sample,
            },
            Err(reason) => DeviceUse::unknown(reason),
        }
    }

    /// The processes that prevent an assignment of devices to the caller, by these facts about the GPUs.
    pub(crate) fn uses_of_others(&self, state: &State, newest: &Newest) -> OutsideUses {
        let published = self.published();
        let uses = self.gpus.query(|gpus| {
            let processes = gpus.processes.as_mut();
            let uses = outside_uses(published, newest.sample.as_ref().ok(), newest.is_of_exporter, state, processes);
            outside::uses_of_others(uses, own_uid(), state, processes)
        });
        uses.unwrap_or_default()
    }

    /// The enforcer's published use of this machine's GPUs; nothing for simulated GPUs.
    fn published(&self) -> Option<Published> {
        (!self.is_simulated()).then(outside::published).flatten()
    }

    /// The processes of an environment with a context on a device that the environment holds, and processes of its user
    /// that may be such. `patience` is the limit for the GPUs' answer.
    ///
    /// # Errors
    /// The GPUs do not answer, or not for all these devices.
    pub(crate) fn device_processes(
        &mut self,
        state: &State,
        eid: &str,
        patience: Duration,
    ) -> Result<Vec<DeviceProcess>, NoSample> {
        let held = state.attached(eid);
        self.gpus.query(|gpus| {
            let contexts = contexts(&gpus.sample(patience)?);
            if let Some(index) = held.iter().find(|it| !contexts.contains_key(*it)) {
                return Err(NoSample::ProcessesUnknown(*index));
            }
            Ok(processes_of_environment(&contexts, state, eid, gpus.processes.as_mut()))
        })?
    }
}

/// The facts for an attachment. Without an answer of the GPUs it is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) inventory: Option<Inventory>,
    pub(crate) usage: DeviceUsage,
    /// The reason for a missing answer.
    pub(crate) silence: Option<String>,
}

impl SharedGpus {
    fn new(options: SourceOptions) -> Self {
        Self { options, opened: Arc::default() }
    }

    /// Calls a function with the GPUs, which the first call opens.
    fn query<T>(&self, query: impl FnOnce(&mut Gpus) -> T) -> Result<T, NoSample> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let gpus = match &mut *opened {
            Some(gpus) => gpus,
            None => opened.insert(Gpus::open(&self.options)?),
        };
        Ok(query(gpus))
    }

    /// The state of this machine. Queries the GPUs, within [`CONTEXT_PATIENCE`], if contexts on devices decide about an
    /// environment.
    fn store(&self) -> StateStore {
        let path = self.options.state_directory.clone();
        let gpus = self.clone();
        let contexts = move || {
            let answer = gpus.query(|gpus| {
                // Hooks of prompts and plain lists print no line about the wait.
                let noted = mem::replace(&mut gpus.noted, true);
                let answer = gpus.sample(at_least(CONTEXT_PATIENCE));
                gpus.noted = noted;
                answer
            });
            Some(contexts(&answer.ok()?.ok()?))
        };
        StateStore::new(path.unwrap_or_else(|| directory_path(None)))
            .contexts(contexts)
            .recording_jobs(environments_of)
            .simulated(self.options.are_simulated())
    }
}

impl Gpus {
    fn open(options: &SourceOptions) -> Result<Self, SourceError> {
        // The first host of a scenario stands for this machine.
        let host = options.open()?.into_iter().next();
        let host = host.ok_or_else(|| SourceError::Failed("there is no host".to_owned()))?;
        let (questions, asked) = channel::<()>();
        let (answered, answers) = channel();
        let mut source = host.gpu;
        let mut bounds = Bounds::default();
        let began = Instant::now();
        let mut sample = move || believed(source.as_mut(), &mut bounds, began.elapsed().as_secs_f64());
        let thread = thread::Builder::new().name("gpu".to_owned());
        let spawned = thread.spawn(move || while asked.recv().is_ok() && answered.send(sample()).is_ok() {});
        spawned.map_err(|error| SourceError::Failed(format!("cannot ask the GPUs: {error}")))?;
        let (asked, waited, last, noted) = (None, Duration::ZERO, None, false);
        Ok(Self { processes: host.processes, questions, answers, asked, waited, last, noted })
    }

    /// As [`Gpus::sample`], or the sample of the same moment: what is asked twice within a second is asked once.
    fn newest(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        match &self.last {
            Some((read, sample)) if read.elapsed() <= SAME_MOMENT => Ok(sample.clone()),
            _ => self.sample(patience),
        }
    }

    /// A late answer is taken when it comes: nothing queues up. An answer to an old question is not the current one.
    fn sample(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        let began = Instant::now();
        loop {
            let asked = *self.asked.get_or_insert_with(|| {
                // If the thread has ended, the receiver reports it.
                let _ = self.questions.send(());
                Instant::now()
            });
            let answer = self.answer(asked, patience.saturating_sub(began.elapsed()));
            let Some(answer) = answer else {
                self.waited = self.waited.max(patience);
                return Err(NoSample::TooLate(self.waited));
            };
            (self.asked, self.waited) = (None, Duration::ZERO);
            if began.saturating_duration_since(asked) <= SAME_MOMENT {
                let sample = answer?;
                self.last = Some((Instant::now(), sample.clone()));
                return Ok(sample);
            }
        }
    }

    /// The answer to the question of this time, within `patience`.
    fn answer(&mut self, asked: Instant, patience: Duration) -> Option<Result<GpuSample, GpuError>> {
        let until_note = NOTE_AFTER.saturating_sub(asked.elapsed());
        if self.noted || patience <= until_note {
            return self.answers.recv_timeout(patience).ok();
        }
        match self.answers.recv_timeout(until_note) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.noted = true;
                if io::stderr().is_terminal() {
                    print_note(
                        "waiting for the driver: without nvidia-persistenced it initializes the GPUs for each command",
                    );
                }
                self.answers.recv_timeout(patience.saturating_sub(until_note)).ok()
            }
        }
    }
}

/// A sample without impossible values, which must not get into the state. The sample lists them.
fn believed(source: &mut dyn GpuSource, bounds: &mut Bounds, read_seconds: f64) -> Result<GpuSample, GpuError> {
    let mut sample = source.sample()?;
    let distrusted = bounds.apply(&mut sample, read_seconds);
    withhold(&mut sample, &distrusted);
    Ok(sample)
}

/// The state of this machine. Queries the GPUs if contexts on devices decide about an environment.
pub(crate) fn store(options: &SourceOptions) -> StateStore {
    SharedGpus::new(options.clone()).store()
}

#[cfg(test)]
mod tests {
    use genv_core::collect::withheld_values;
    use genv_core::gpu::DeviceSample;
    use genv_core::model::{DeviceIndex, DeviceMeasurements};
    use genv_core::proc::ProcReader;

    use super::*;

    /// Long enough for every machine.
    const LONG: Duration = Duration::from_secs(120);

    /// GPUs, with the other ends of their channels.
    fn gpus() -> (Gpus, Receiver<()>, Sender<Result<GpuSample, GpuError>>) {
        let (questions, asked) = channel();
        let (answered, answers) = channel();
        let processes = Box::new(ProcReader::new());
        let (asked_at, waited, last, noted) = (None, Duration::ZERO, None, false);
        let gpus = Gpus { processes, questions, answers, asked: asked_at, waited, last, noted };
        (gpus, asked, answered)
    }

    fn of_session(session: u64) -> Result<GpuSample, GpuError> {
        Ok(GpuSample { session, ..GpuSample::default() })
    }

    #[test]
    fn a_question_without_an_answer_is_not_asked_twice_and_the_longest_wait_is_named() {
        let (mut gpus, asked, answered) = gpus();
        let late = |gpus: &mut Gpus, milliseconds| match gpus.sample(Duration::from_millis(milliseconds)) {
            Err(NoSample::TooLate(waited)) => waited.as_millis(),
            other => panic!("{other:?}"),
        };
        // The longest wait counts until an answer arrives, also an old one.
        assert_eq!([2, 1, 0].map(|it| late(&mut gpus, it)), [2; 3]);
        assert_eq!(asked.try_iter().count(), 1);
        answered.send(of_session(1)).unwrap();
        gpus.asked = Instant::now().checked_sub(SAME_MOMENT * 2);
        assert_eq!(late(&mut gpus, 0), 0);
        assert_eq!(asked.try_iter().count(), 1);
        answered.send(of_session(2)).unwrap();
        gpus.asked = Some(Instant::now());
        assert_eq!(gpus.sample(LONG).unwrap().session, 2);
    }

    /// A GPU with a utilization of 900 %.
    struct Impossible;

    impl GpuSource for Impossible {
        fn sample(&mut self) -> Result<GpuSample, GpuError> {
            let measurements = DeviceMeasurements { utilization_ratio: Some(9.0), ..DeviceMeasurements::default() };
            let device =
                DeviceSample { lost: false, measurements, ..DeviceSample::lost(DeviceIndex::gpu(0), String::new()) };
            Ok(GpuSample { devices: vec![device], ..GpuSample::default() })
        }
    }

    #[test]
    fn an_impossible_value_is_removed_and_named() {
        let sample = believed(&mut Impossible, &mut Bounds::default(), 0.0).unwrap();
        assert_eq!(sample.devices[0].measurements.utilization_ratio, None);
        let withheld: Vec<String> = withheld_values(sample).iter().map(ToString::to_string).collect();
        assert!(withheld.iter().any(|it| it.contains("impossible value: 9")), "{withheld:?}");
    }

    #[test]
    fn what_is_asked_twice_within_a_second_is_asked_once() {
        let (mut gpus, asked, answered) = gpus();
        for session in 1..=3 {
            answered.send(of_session(session)).unwrap();
        }
        let answer = |gpus: &mut Gpus| gpus.newest(LONG).unwrap().session;
        assert_eq!(answer(&mut gpus), 1);
        // Whatever the speed of this machine.
        gpus.last.as_mut().unwrap().0 = Instant::now() + SAME_MOMENT;
        assert_eq!((answer(&mut gpus), asked.try_iter().count()), (1, 1));
        // What decides about an environment is asked anew.
        assert_eq!(gpus.sample(LONG).unwrap().session, 2);
        gpus.last.as_mut().unwrap().0 = Instant::now().checked_sub(SAME_MOMENT * 2).unwrap();
        assert_eq!((answer(&mut gpus), asked.try_iter().count()), (3, 2));
    }

    #[test]
    fn an_answer_to_an_old_question_does_not_count() {
        let (mut gpus, asked, answered) = gpus();
        gpus.asked = Instant::now().checked_sub(SAME_MOMENT * 2);
        answered.send(of_session(1)).unwrap();
        answered.send(of_session(2)).unwrap();
        assert_eq!(gpus.sample(LONG).unwrap().session, 2);
        assert_eq!(asked.try_iter().count(), 1);
    }
}
