//! The state and the GPUs of this machine, for commands.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::attribute::environments_of;
use genv_core::gpu::bounds::Bounds;
use genv_core::gpu::{GpuError, GpuSample};
use genv_core::proc::{ProcessSource, own_uid};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{
    Contexts, EditableState, Inventory, State, StateError, StateStore, StoreError, Waiting, directory_path,
};
use genv_simulator::{SourceError, SourceOptions};

use crate::device_facts::{DeviceProcess, contexts, models, outside_uses, processes_of_environment, usage};
use crate::driver_timeout::{at_least, usage_patience};
use crate::output::print_note;
use crate::outside::{self, DeviceUse, OutsideUses, Published};

/// Time limit for the contexts on the GPUs, if they decide about an environment without a shell.
const CONTEXT_PATIENCE: Duration = Duration::from_secs(1);

/// Time limit for the GPUs if a command needs their answer: the load of a driver takes seconds.
pub(crate) const INVENTORY_PATIENCE: Duration = Duration::from_secs(20);

/// The state and the GPUs of this machine. The GPUs are opened at the first query.
pub(crate) struct Machine {
    store: StateStore,
    options: SourceOptions,
    gpus: Option<Gpus>,
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
    /// The GPUs did not answer in time. The answer may come later.
    #[error(
        "the GPUs have not answered within {} s: see whether 'nvidia-smi' works",
        .0.as_secs_f64()
    )]
    TooLate(Duration),
    /// The driver does not list the processes of a device.
    #[error("the driver does not list the processes on device {0}: see whether 'nvidia-smi' does")]
    ProcessesUnknown(u32),
}

/// The GPUs. A separate thread queries the driver, since it may hang.
struct Gpus {
    processes: Box<dyn ProcessSource>,
    questions: Sender<()>,
    answers: Receiver<Result<GpuSample, GpuError>>,
    asked: bool,
}

impl Machine {
    /// This machine, with the state and the GPUs that `GENV_TMPDIR`, `GENV_DEVICES`, `GENV_SCENARIO` and
    /// `GENV_NVML_LIBRARY` choose.
    pub(crate) fn here() -> Result<Self, SourceError> {
        let options = SourceOptions::default().or_from_environment()?;
        Ok(Self { store: store(&options), options, gpus: None, notices: BTreeSet::new() })
    }

    /// Sets whether ended members are removed.
    pub(crate) fn cleaning(mut self, cleaning: bool) -> Self {
        self.store = self.store.cleaning(cleaning);
        self
    }

    /// Whether the GPUs are simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.options.are_simulated()
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
            let inventory = Inventory::of(&self.sample(at_least(INVENTORY_PATIENCE))?);
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
        self.gpus()?.sample(patience)
    }

    /// The facts for an attachment to an environment: the GPUs of the machine and the processes on them.
    ///
    /// The call waits long for the GPUs only if the state does not know them, or if their models are needed.
    ///
    /// # Errors
    /// Neither the GPUs nor the state list the devices, or the configuration of the GPUs is invalid.
    pub(crate) fn survey(&mut self, state: &State, eid: &str, models_needed: bool) -> Result<Survey, NoSample> {
        let unknown = state.devices.is_empty();
        let patience = if unknown || models_needed { at_least(INVENTORY_PATIENCE) } else { usage_patience() };
        let published = self.published();
        let gpus = self.gpus()?;
        let sample = match gpus.sample(patience) {
            Ok(sample) => Ok(sample),
            Err(error) if unknown => return Err(error),
            Err(error) => Err(error),
        };
        let processes = gpus.processes.as_mut();
        let is_published = published.is_some();
        let uses = outside_uses(published, sample.as_ref().ok(), state, processes);
        let environment = state.environments.iter().find(|it| it.eid == eid);
        let user = environment.map_or_else(own_uid, |it| it.uid);
        let outside = outside::uses_of_others(uses, user, state, processes);
        match sample {
            Ok(sample) => Ok(Survey {
                usage: DeviceUsage { outside, models: models(&sample), ..usage(&sample, state, eid, processes) },
                silence: None,
                inventory: Some(Inventory::of(&sample)),
            }),
            Err(error) => Ok(Survey {
                usage: DeviceUsage {
                    outside,
                    unknown: match is_published {
                        true => BTreeSet::new(),
                        false => state.devices.iter().map(|it| it.index).collect(),
                    },
                    ..DeviceUsage::default()
                },
                silence: Some(error.to_string()),
                inventory: None,
            }),
        }
    }

    /// The use of the devices, by one query to the GPUs within [`usage_patience`].
    pub(crate) fn device_use(&mut self, state: &State) -> DeviceUse {
        let published = self.published();
        let is_published = published.is_some();
        let gpus = match self.gpus() {
            Ok(gpus) => gpus,
            Err(reason) => return DeviceUse::unknown(reason),
        };
        let sample = gpus.sample(usage_patience());
        let processes = gpus.processes.as_mut();
        DeviceUse {
            outside: outside_uses(published, sample.as_ref().ok(), state, processes),
            is_published,
            contexts: sample.as_ref().map(contexts).unwrap_or_default(),
            sample,
        }
    }

    /// The processes that prevent an assignment of devices to the caller, as known within [`usage_patience`].
    pub(crate) fn uses_of_others(&mut self, state: &State) -> OutsideUses {
        let uses = self.device_use(state).outside;
        match self.gpus() {
            Ok(gpus) => outside::uses_of_others(uses, own_uid(), state, gpus.processes.as_mut()),
            Err(_) => uses,
        }
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
        let gpus = self.gpus()?;
        let sample = gpus.sample(patience)?;
        let contexts = contexts(&sample);
        if let Some(index) = held.iter().find(|it| !contexts.contains_key(*it)) {
            return Err(NoSample::ProcessesUnknown(*index));
        }
        let processes = gpus.processes.as_mut();
        Ok(processes_of_environment(&contexts, state, eid, processes))
    }

    fn gpus(&mut self) -> Result<&mut Gpus, NoSample> {
        let opened = match self.gpus.take() {
            Some(gpus) => gpus,
            None => Gpus::open(&self.options)?,
        };
        Ok(self.gpus.insert(opened))
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
        // Impossible values must not get into the state.
        let mut sample = move || {
            let mut sample = source.sample()?;
            bounds.apply(&mut sample, began.elapsed().as_secs_f64());
            Ok(sample)
        };
        let thread = thread::Builder::new().name("gpu".to_owned());
        let spawned = thread.spawn(move || while asked.recv().is_ok() && answered.send(sample()).is_ok() {});
        spawned.map_err(|error| SourceError::Failed(format!("cannot ask the GPUs: {error}")))?;
        Ok(Self { processes: host.processes, questions, answers, asked: false })
    }

    /// A late answer is taken when it comes: nothing queues up.
    fn sample(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        if !self.asked {
            // If the thread has ended, the receiver reports it.
            let _ = self.questions.send(());
            self.asked = true;
        }
        match self.answers.recv_timeout(patience) {
            Ok(answer) => {
                self.asked = false;
                Ok(answer?)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(NoSample::TooLate(patience)),
        }
    }
}

/// The state of this machine. Queries the GPUs if contexts on devices decide about an environment.
pub(crate) fn store(options: &SourceOptions) -> StateStore {
    let path = options.state_directory.clone();
    StateStore::new(path.unwrap_or_else(|| directory_path(None)))
        .contexts(ask_contexts(options.clone()))
        .recording_jobs(environments_of)
        .simulated(options.are_simulated())
}

/// A function that queries the contexts on the GPUs, within [`CONTEXT_PATIENCE`].
fn ask_contexts(options: SourceOptions) -> impl FnMut() -> Option<Contexts> + Send + 'static {
    let mut gpus: Option<Gpus> = None;
    move || {
        let gpus = match &mut gpus {
            Some(gpus) => gpus,
            None => gpus.insert(Gpus::open(&options).ok()?),
        };
        Some(contexts(&gpus.sample(at_least(CONTEXT_PATIENCE)).ok()?))
    }
}
