//! The state and the GPUs of this machine, for commands.

use std::collections::BTreeSet;
use std::path::Path;
use std::process;
use std::time::Duration;

use genv_core::gpu::GpuSample;
use genv_core::proc::{in_initial_pid_namespace, own_uid};
use genv_core::state::allocate::DeviceUsage;
use genv_core::state::{
    EditableState, Facts, Inventory, Refusal, Reply, Request, Requester, State, StateError, StateStore, StoreError,
    Waiting,
};
use genv_simulator::{SourceError, SourceOptions};

use crate::device_facts::{DeviceProcess, contexts, outside_uses, processes_of_environment, usage};
use crate::driver_timeout::{BRIEF, brief_patience, needed_patience, usage_patience};
use crate::exporter;
use crate::output::print_note;
use crate::outside::{self, DeviceUse, MAX_AGE_SECONDS, OutsideUses, Published};

mod gpus;

pub(crate) use gpus::NoSample;
use gpus::SharedGpus;

/// The state and the GPUs of this machine. The GPUs are opened at the first query.
pub(crate) struct Machine {
    store: StateStore,
    gpus: SharedGpus,
    /// The printed notices about the state.
    notices: BTreeSet<String>,
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
            let request = Request::RecordDevices(inventory);
            let _ = self.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()));
        }
        Ok(state)
    }

    /// Creates the state directory if it does not exist, and prints notices about damaged files. The store's own findings are
    /// written, as with every change.
    pub(crate) fn create_state_directory(&mut self) -> Result<(), StoreError> {
        let done = self.store.update(|_| Ok(()));
        self.print_notices();
        done
    }

    /// Changes the state as this program requests, and prints notices about damaged files. `view` gets the state before, the
    /// state after and the reply. If the request is refused, or `view` fails, nothing is written.
    pub(crate) fn change<T, E: From<StoreError> + From<Refusal>>(
        &mut self,
        request: &Request,
        facts: &Facts,
        view: impl FnOnce(&EditableState, &EditableState, Reply) -> Result<T, E>,
    ) -> Result<T, E> {
        let requester = Requester { uid: own_uid(), pid: process::id() };
        let done = self.store.change(request, &requester, facts, view);
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

/// The state of this machine. Queries the GPUs if contexts on devices decide about an environment.
pub(crate) fn store(options: &SourceOptions) -> StateStore {
    SharedGpus::new(options.clone()).store()
}
