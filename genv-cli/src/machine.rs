//! The machine that a command is about: genv's state there, and its GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::attribute::{Attributor, LiveEnvironment, environments_of, live_environments};
use genv_core::collect::seems_unused;
use genv_core::gpu::bounds::Bounds;
use genv_core::gpu::{GpuError, GpuSample};
use genv_core::model::Attribution;
use genv_core::proc::{Claim, ProcessRead, ProcessRequest, ProcessSource, own_uid};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{
    Contexts, EditableState, Inventory, ProcessId, State, StateError, StateStore, StoreError, Waiting, directory_path,
};
use genv_simulator::{SourceError, SourceOptions};

use crate::outside::{self, DeviceUse, OutsideUses, Published};

/// How long GPUs may take to tell who uses them: what they would tell is good to know, and no more.
pub(crate) const USAGE_PATIENCE: Duration = Duration::from_millis(100);

/// How long they may take to tell who has a context on them, where an environment without a shell depends on it.
const CONTEXT_PATIENCE: Duration = Duration::from_secs(1);

/// How long they may take to tell what they are, where nothing is known of them: a driver that is not
/// kept loaded needs seconds.
pub(crate) const INVENTORY_PATIENCE: Duration = Duration::from_secs(20);

/// The state and the GPUs of this machine. GPUs are asked only when a question needs them.
pub(crate) struct Machine {
    store: StateStore,
    options: SourceOptions,
    gpus: Option<Gpus>,
    /// What was printed of the state files.
    notices: BTreeSet<String>,
}

/// Why GPUs tell nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSample {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// They did not answer in time; the answer may come later.
    #[error(
        "the GPUs have not answered within {} s: see whether 'nvidia-smi' works",
        .0.as_secs_f64()
    )]
    TooLate(Duration),
    /// One of them does not list its processes.
    #[error("the driver does not tell which processes use device {0}: see whether 'nvidia-smi' does")]
    Untold(u32),
}

/// The GPUs, asked on a thread of their own, because a driver may hang.
struct Gpus {
    processes: Box<dyn ProcessSource>,
    questions: Sender<()>,
    answers: Receiver<Result<GpuSample, GpuError>>,
    asked: bool,
}

impl Machine {
    /// This machine, with the state and the GPUs that `GENV_TMPDIR`, `GENV_DEVICES`, `GENV_SCENARIO` and
    /// `GENV_NVML_LIBRARY` choose.
    ///
    /// # Errors
    /// A variable has a wrong value.
    pub(crate) fn here() -> Result<Self, SourceError> {
        let options = SourceOptions::default().or_from_environment()?;
        Ok(Self { store: store(&options), options, gpus: None, notices: BTreeSet::new() })
    }

    /// Whether members that ended are cleaned away.
    pub(crate) fn cleaning(mut self, cleaning: bool) -> Self {
        self.store = self.store.cleaning(cleaning);
        self
    }

    /// Whether its GPUs are invented.
    pub(crate) fn is_simulated(&self) -> bool {
        self.options.are_simulated()
    }

    /// The state directory.
    pub(crate) fn state_directory(&self) -> &Path {
        self.store.path()
    }

    /// Whether the lock of the state can be had within `patience`; it is let go at once.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn try_lock(&self, patience: Duration) -> Result<(), StoreError> {
        self.store.try_lock(patience)
    }

    /// Reads the state without its lock, and tells people which file is damaged. What it finds of the caller's environments
    /// (new jobs, one that goes on without a shell) it writes down.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn state(&mut self) -> Result<State, StateError> {
        let read = self.store.read();
        self.store.note_news();
        self.tell_notices();
        read
    }

    /// As [`Machine::state`], of one environment alone, which takes less time.
    ///
    /// # Errors
    /// As [`Machine::state`].
    pub(crate) fn state_of(&mut self, eid: &str) -> Result<State, StateError> {
        let read = self.store.read_environment(eid);
        self.store.note_news();
        self.tell_notices();
        read
    }

    /// The processes that wait in the queue of a state, in order of arrival.
    pub(crate) fn waiting(&mut self, state: &State) -> Vec<Waiting> {
        self.store.waiting(state)
    }

    /// Changes the state under its lock, and tells people which damaged file it kept aside. If the change fails nothing is
    /// written. Ask GPUs before.
    ///
    /// # Errors
    /// See [`StateStore::update`].
    pub(crate) fn update<T, E: From<StoreError>>(
        &mut self,
        change: impl FnOnce(&mut EditableState) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = self.store.update(change);
        self.tell_notices();
        done
    }

    /// Counts a refused request for devices.
    pub(crate) fn count_refused(&self) {
        self.store.count_refused();
    }

    fn tell_notices(&mut self) {
        for notice in self.store.take_notices() {
            if self.notices.insert(notice.clone()) {
                tell(&notice);
            }
        }
    }

    /// Asks the GPUs, once, and waits so long for the answer.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn sample(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        self.gpus()?.sample(patience)
    }

    /// The facts for an attachment to an environment: the GPUs of the machine and the processes on them.
    ///
    /// The call waits long for the GPUs only if the state does not know them, or if their models are needed.
    ///
    /// # Errors
    /// Neither the GPUs nor the state answer, or the configuration of the GPUs is wrong.
    pub(crate) fn survey(&mut self, state: &State, eid: &str, models_needed: bool) -> Result<Survey, NoSample> {
        let unknown = state.devices.is_empty();
        let patience = if unknown || models_needed { INVENTORY_PATIENCE } else { USAGE_PATIENCE };
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
        let outside = outside::of_others(uses, user, state, processes);
        match sample {
            Ok(sample) => {
                let known = contexts(&sample);
                let gpus = sample.devices.iter().map(|it| it.index.gpu);
                Ok(Survey {
                    usage: DeviceUsage { outside, models: models(&sample), ..usage(&sample, state, eid, processes) },
                    unknown: gpus.filter(|gpu| !known.contains_key(gpu)).collect(),
                    silence: None,
                    inventory: Some(Inventory::of(&sample)),
                })
            }
            Err(error) => Ok(Survey {
                usage: DeviceUsage { outside, ..DeviceUsage::default() },
                unknown: match is_published {
                    true => BTreeSet::new(),
                    false => state.devices.iter().map(|it| it.index).collect(),
                },
                silence: Some(error.to_string()),
                inventory: None,
            }),
        }
    }

    /// The use of the devices, as far as it is known within [`USAGE_PATIENCE`], by one question to the GPUs.
    pub(crate) fn device_use(&mut self, state: &State) -> DeviceUse {
        let published = self.published();
        let is_published = published.is_some();
        let gpus = match self.gpus() {
            Ok(gpus) => gpus,
            Err(reason) => return DeviceUse::unknown(reason),
        };
        let sample = gpus.sample(USAGE_PATIENCE);
        let processes = gpus.processes.as_mut();
        DeviceUse {
            outside: outside_uses(published, sample.as_ref().ok(), state, processes),
            is_published,
            contexts: sample.as_ref().map(contexts).unwrap_or_default(),
            sample,
        }
    }

    /// The processes that keep the caller from a device, as far as they are known within [`USAGE_PATIENCE`].
    pub(crate) fn uses_of_others(&mut self, state: &State) -> OutsideUses {
        let uses = self.device_use(state).outside;
        match self.gpus() {
            Ok(gpus) => outside::of_others(uses, own_uid(), state, gpus.processes.as_mut()),
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
    pub(crate) fn jobs(&mut self, state: &State, eid: &str, patience: Duration) -> Result<Vec<Job>, NoSample> {
        let held = state.attached(eid);
        let gpus = self.gpus()?;
        let sample = gpus.sample(patience)?;
        let contexts = contexts(&sample);
        if let Some(index) = held.iter().find(|it| !contexts.contains_key(*it)) {
            return Err(NoSample::Untold(*index));
        }
        let rows = held.iter().flat_map(|device| {
            let pids = contexts.get(device).into_iter().flatten();
            pids.map(|pid| (*pid, *device))
        });
        let mut jobs: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (pid, device) in rows {
            jobs.entry(pid).or_default().insert(device);
        }
        let members = state.environments.iter().flat_map(|it| &it.pids);
        let table = gpus
            .processes
            .read(&ProcessRequest { processes: jobs.keys().copied().collect(), members: members.copied().collect() });
        let mut live = live_environments(state, &table);
        // A listed environment has its processes even after its last shell has ended.
        if !live.iter().any(|live| live.environment.eid == eid) {
            let mut environments = state.environments.iter();
            let listed = environments.find(|it| it.eid == eid);
            live.extend(listed.map(LiveEnvironment::without_members));
        }
        let attributor = Attributor::new(state, &live, true, &table);
        let environment = state.environments.iter().find(|it| it.eid == eid);
        let user = environment.map(|it| table.owner(it.uid));
        let job = |(pid, devices): (u32, BTreeSet<u32>)| {
            let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
                return None;
            };
            let start_time_ticks = facts.start_time_ticks;
            let attribution = attributor.attribute(pid);
            let is_own = attribution.eid() == Some(eid);
            let is_unclear = matches!(attribution, Attribution::Unknown { .. })
                && matches!(facts.claim, Claim::Missing(_))
                && table.user(facts) == user;
            (is_own || is_unclear).then(|| Job {
                is_unclear,
                process: ProcessId { pid, start_time_ticks },
                comm: facts.comm.clone(),
                devices: devices.into_iter().collect(),
            })
        };
        Ok(jobs.into_iter().filter_map(job).collect())
    }

    fn gpus(&mut self) -> Result<&mut Gpus, NoSample> {
        let opened = match self.gpus.take() {
            Some(gpus) => gpus,
            None => Gpus::open(&self.options)?,
        };
        Ok(self.gpus.insert(opened))
    }
}

/// A process of an environment, or of its user, that works on the environment's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) process: ProcessId,
    /// Whether the process hides its environment, for example by overwriting its variables.
    pub(crate) is_unclear: bool,
    pub(crate) comm: String,
    pub(crate) devices: Vec<u32>,
}

/// What GPUs told. Nothing, if they did not answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) inventory: Option<Inventory>,
    pub(crate) usage: DeviceUsage,
    /// Devices with unknown processes.
    pub(crate) unknown: BTreeSet<u32>,
    /// The reason for a missing answer.
    pub(crate) silence: Option<String>,
}

impl Gpus {
    fn open(options: &SourceOptions) -> Result<Self, SourceError> {
        // Of a scenario's hosts the first is this machine.
        let host = options.open()?.into_iter().next();
        let host = host.ok_or_else(|| SourceError::Failed("there is no host".to_owned()))?;
        let (questions, asked) = channel::<()>();
        let (answered, answers) = channel();
        let mut source = host.gpu;
        let mut bounds = Bounds::default();
        let began = Instant::now();
        // What cannot be is not written into the state either.
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
            // If the thread has ended the answer says so.
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

/// The state of this machine; where an environment depends on who has a context on its devices, it asks the GPUs.
pub(crate) fn store(options: &SourceOptions) -> StateStore {
    let path = options.state_directory.clone();
    StateStore::new(path.unwrap_or_else(|| directory_path(None)))
        .contexts(ask_contexts(options.clone()))
        .recording_jobs(environments_of)
        .simulated(options.are_simulated())
}

/// Asks the GPUs who has a context on which of them, each time within [`CONTEXT_PATIENCE`].
fn ask_contexts(options: SourceOptions) -> impl FnMut() -> Option<Contexts> + Send + 'static {
    let mut gpus: Option<Gpus> = None;
    move || {
        let gpus = match &mut gpus {
            Some(gpus) => gpus,
            None => gpus.insert(Gpus::open(&options).ok()?),
        };
        Some(contexts(&gpus.sample(CONTEXT_PATIENCE).ok()?))
    }
}

fn contexts(sample: &GpuSample) -> Contexts {
    let mut contexts = Contexts::new();
    for device in &sample.devices {
        let pids = device.processes.iter().flatten().map(|process| process.pid);
        contexts.entry(device.index.gpu).or_default().extend(pids);
    }
    // The contexts of a GPU are not known if those of one of its parts are not, or if no other reading confirms an
    // empty list of processes.
    let is_unused = |gpu| contexts.get(gpu).is_none_or(BTreeSet::is_empty);
    let unknown = sample
        .devices
        .iter()
        .filter(|it| it.lost || !it.processes_known() || is_unused(&it.index.gpu) && !seems_unused(&it.measurements));
    let unknown: BTreeSet<u32> = unknown.map(|it| it.index.gpu).collect();
    contexts.retain(|gpu, _| !unknown.contains(gpu));
    contexts
}

fn models(sample: &GpuSample) -> BTreeMap<u32, String> {
    let whole = sample.devices.iter().filter(|it| it.index.mig.is_none());
    let named = whole.filter_map(|it| Some((it.index.gpu, it.name.clone()?)));
    named.collect()
}

/// The uses by a recent file of the enforcer, if there is one, and by the GPUs' answer.
fn outside_uses(
    published: Option<Published>,
    sample: Option<&GpuSample>,
    state: &State,
    processes: &mut dyn ProcessSource,
) -> OutsideUses {
    match (published, sample) {
        (Some(published), sample) => {
            let contexts = sample.map(contexts);
            outside::present(published, sample, contexts.as_ref(), state, processes)
        }
        (None, Some(sample)) => outside::judged(sample, state, processes),
        (None, None) => OutsideUses::new(),
    }
}

/// Who uses which device, as seen from an environment.
fn usage(sample: &GpuSample, state: &State, eid: &str, processes: &mut dyn ProcessSource) -> DeviceUsage {
    let rows = sample.devices.iter().flat_map(|device| {
        let pids = device.processes.iter().flatten();
        pids.map(|process| (device.index.gpu, process.pid))
    });
    let rows: Vec<(u32, u32)> = rows.collect();
    let answering: BTreeSet<u32> =
        sample.devices.iter().filter(|device| !device.lost).map(|device| device.index.gpu).collect();
    // What the state lists and the GPUs do not is gone.
    let listed = state.devices.iter().map(|device| device.index);
    let found = sample.devices.iter().map(|device| device.index.gpu);
    let lost = listed.chain(found).filter(|it| !answering.contains(it));
    let mut usage = DeviceUsage {
        busy: rows.iter().map(|(gpu, _)| *gpu).collect(),
        lost: lost.collect(),
        ..DeviceUsage::default()
    };
    let attached = !state.attached(eid).is_empty();
    if attached && !rows.is_empty() {
        let members = state.environments.iter().flat_map(|it| &it.pids);
        let table = processes.read(&ProcessRequest {
            processes: rows.iter().map(|(_, pid)| *pid).collect(),
            members: members.copied().collect(),
        });
        let live = live_environments(state, &table);
        let attributor = Attributor::new(state, &live, true, &table);
        let own = |pid: u32| attributor.attribute(pid).eid() == Some(eid);
        let own = rows.iter().filter(|(_, pid)| own(*pid));
        usage.own = own.map(|(gpu, _)| *gpu).collect();
    }
    usage
}

/// Tells people something that is no failure.
pub(crate) fn tell(note: &str) {
    // Nobody is left to tell if that fails.
    let _ = writeln!(io::stderr(), "genv: {note}");
}
