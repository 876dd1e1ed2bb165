//! One host: its three sources on their threads, and their last values.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::Instant;

use super::clock::Clocks;
use super::view::{Evidence, ProcessAnswer, Timed, View};
use super::worker::{NoAnswer, Worker};
use super::{CollectOptions, HostSources};
use crate::accounting::GpuReading;
use crate::gpu::GpuSample;
use crate::model::{CollectorStatus, Snapshot};
use crate::proc::{ProcessRead, ProcessRequest, ProcessSource};
use crate::state::{EnvironmentState, State};

/// The time until which the collection waits for each source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) gpu: Instant,
    pub(super) state: Instant,
    pub(super) processes: Instant,
}

/// One host of a collection. A cycle calls its methods in their order here.
pub(super) struct Host {
    gpu: Option<Collector<(), GpuSample>>,
    state: Option<Collector<(), State>>,
    /// Also runs if only environments are wanted: they need the living members and the names of users.
    processes: Collector<ProcessQuestion, ProcessAnswer>,
    processes_wanted: bool,
    /// A state that was read after the last question about processes.
    state_to_ask: Option<Timed<State>>,
    /// The state of the current question about processes, while the answer is pending.
    state_asked: Option<Timed<State>>,
    evidence: Evidence,
    reading: GpuReading,
    view: View,
    clocks: Clocks,
    cycle_started_seconds: f64,
}

/// A question about the processes of a host.
struct ProcessQuestion {
    request: ProcessRequest,
    /// Users whose names are wanted, besides the users of the processes.
    uids: Vec<u32>,
}

impl Host {
    /// Starts the threads of one host.
    pub(super) fn start(sources: HostSources, options: &CollectOptions, clocks: &Clocks) -> io::Result<Self> {
        let HostSources { hostname, mut gpu, mut processes, mut state } = sources;
        let switches = options.collectors;
        let simulated = gpu.is_simulated();
        let gpu = switches.gpu.then(|| {
            Collector::start("gpu", clocks.clone(), move |()| gpu.sample().map_err(|error| error.to_string()))
        });
        let state = switches
            .state
            .then(|| Collector::start("state", clocks.clone(), move |()| state.read().map_err(|error| error.message)));
        let processes = Collector::start("processes", clocks.clone(), move |question| {
            Ok(read_processes(&mut *processes, &question))
        });
        Ok(Self {
            gpu: gpu.transpose()?,
            state: state.transpose()?,
            processes: processes?,
            processes_wanted: switches.processes,
            state_to_ask: None,
            state_asked: None,
            evidence: Evidence::default(),
            reading: GpuReading::default(),
            view: View::new(hostname, simulated, options),
            clocks: clocks.clone(),
            cycle_started_seconds: clocks.now().seconds,
        })
    }

    /// Begins a cycle: asks the GPU source.
    pub(super) fn ask_gpu(&mut self) {
        self.cycle_started_seconds = self.clocks.now().seconds;
        if let Some(gpu) = &mut self.gpu {
            let late = gpu.ask(());
            self.keep_sample(late);
        }
    }

    /// Waits for the GPU source, then asks for the state: an environment that is missing from this state did not exist
    /// when the processes on the devices were started.
    pub(super) fn ask_state(&mut self, deadlines: &Deadlines) {
        if let Some(gpu) = &mut self.gpu {
            let sample = gpu.take(deadlines.gpu);
            self.keep_sample(sample);
        }
        if let Some(state) = &mut self.state
            && let Some(late) = state.ask(())
        {
            self.state_to_ask = Some(late);
        }
    }

    /// Waits for the state, then asks for the processes of both.
    pub(super) fn ask_processes(&mut self, deadlines: &Deadlines) {
        if let Some(state) = &mut self.state
            && let Some(read) = state.take(deadlines.state)
        {
            if !read.value.warnings.is_empty() {
                state.status.error = Some(read.value.warnings.join("; "));
            }
            self.state_to_ask = Some(read);
        }
        let late = self.processes.take(Instant::now());
        self.keep_processes(late);
        if self.processes.is_idle() {
            let state = self.state_to_ask.as_ref().or(self.evidence.state.as_ref());
            let question = question(self.evidence.gpu.as_ref(), state);
            self.processes.ask(question);
            self.state_asked = self.state_to_ask.take();
        }
    }

    /// Waits for the processes, and ends the cycle with a snapshot.
    pub(super) fn finish(&mut self, deadlines: &Deadlines) -> Snapshot {
        let answer = self.processes.take(deadlines.processes);
        self.keep_processes(answer);
        let is_of_this_cycle = |asked_seconds| asked_seconds >= self.cycle_started_seconds;
        self.evidence.state_is_fresh = self.state.as_ref().is_some_and(|s| s.status.success)
            && self.evidence.state.as_ref().is_some_and(|it| is_of_this_cycle(it.asked_seconds))
            && self.evidence.processes.as_ref().is_some_and(|it| is_of_this_cycle(it.asked_seconds));
        let collectors = self.statuses();
        let now = self.clocks.now();
        let reading = std::mem::take(&mut self.reading);
        self.view.observe(now, &mut self.evidence, reading, collectors)
    }

    fn keep_sample(&mut self, sample: Option<Timed<GpuSample>>) {
        if let Some(mut sample) = sample {
            self.reading.read_seconds = Some(sample.read_seconds);
            self.reading.xid_events.append(&mut sample.value.xid_events);
            self.evidence.gpu = Some(sample);
        }
    }

    /// Takes an answer about processes together with the state of its question: the answer shows the living members of
    /// that state alone.
    fn keep_processes(&mut self, answer: Option<Timed<ProcessAnswer>>) {
        if let Some(answer) = answer {
            self.evidence.processes = Some(answer);
            if let Some(state) = self.state_asked.take() {
                self.evidence.state = Some(state);
            }
        }
    }

    fn statuses(&self) -> BTreeMap<String, CollectorStatus> {
        let gpu = self.gpu.as_ref().map(Collector::status);
        let state = self.state.as_ref().map(Collector::status);
        let processes = self.processes_wanted.then(|| self.processes.status());
        [gpu, state, processes].into_iter().flatten().collect()
    }
}

fn question(gpu: Option<&Timed<GpuSample>>, state: Option<&Timed<State>>) -> ProcessQuestion {
    let devices = gpu.iter().flat_map(|it| &it.value.devices);
    let listed = devices.flat_map(|device| &device.processes);
    let mut processes = Vec::with_capacity(listed.clone().map(Vec::len).sum());
    processes.extend(listed.flatten().map(|process| process.pid));
    // A stable sort is fast for a sequence of sorted lists.
    processes.sort();
    processes.dedup();
    let environments = || state.iter().flat_map(|it| &it.value.environments);
    let waiting = state.iter().flat_map(|it| &it.value.queue);
    ProcessQuestion {
        request: ProcessRequest { processes, members: environments().flat_map(EnvironmentState::pids).collect() },
        uids: environments()
            .map(|environment| environment.uid)
            .chain(waiting.map(|it| it.uid))
            .collect::<BTreeSet<u32>>()
            .into_iter()
            .collect(),
    }
}

/// Names are looked up here, since a user database on the network may hang.
fn read_processes(source: &mut dyn ProcessSource, question: &ProcessQuestion) -> ProcessAnswer {
    let mut table = source.read(&question.request);
    for &uid in &question.uids {
        let owner = source.owner(uid);
        if owner != uid {
            table.owners.insert(uid, owner);
        }
    }
    let of_processes = table.processes.values().filter_map(|read| match read {
        ProcessRead::Present(facts) => table.shown_user(facts),
        ProcessRead::Vanished | ProcessRead::Unreadable => None,
    });
    let of_environments = question.uids.iter().map(|uid| table.owner(*uid));
    let mut usernames = HashMap::new();
    for uid in of_processes.chain(of_environments) {
        usernames.entry(uid).or_insert_with(|| source.username(uid));
    }
    ProcessAnswer { table, usernames }
}

/// One source behind its worker, and the health of the source.
struct Collector<Q, T> {
    name: &'static str,
    worker: Worker<Q, Result<T, String>>,
    status: CollectorStatus,
}

impl<Q: Send + 'static, T: Send + 'static> Collector<Q, T> {
    fn start(
        name: &'static str,
        clocks: Clocks,
        answer: impl FnMut(Q) -> Result<T, String> + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self { name, worker: Worker::spawn(name, clocks, answer)?, status: CollectorStatus::default() })
    }

    /// Whether no answer is pending.
    fn is_idle(&self) -> bool {
        self.worker.is_idle()
    }

    /// Takes a late answer, if there is one, then asks, unless an answer is pending.
    fn ask(&mut self, question: Q) -> Option<Timed<T>> {
        let late = self.take(Instant::now());
        self.worker.ask(question);
        late
    }

    /// Waits for the answer until the deadline. Without an answer, the last value stays valid.
    fn take(&mut self, deadline: Instant) -> Option<Timed<T>> {
        let answer = match self.worker.wait_until(deadline) {
            Ok(answer) => answer,
            Err(NoAnswer::Idle) => return None,
            Err(NoAnswer::Overdue(waited)) => {
                self.fail(format!(
                    "no answer for {:.1} s: the call into it hangs or is slow; \
                     its last values stand until they are too old",
                    waited.as_secs_f64()
                ));
                return None;
            }
            Err(NoAnswer::Ended) => {
                self.fail("its thread ended by a defect of this program; restart it".to_owned());
                return None;
            }
        };
        self.status.duration_seconds = Some(answer.finished.seconds - answer.asked.seconds);
        match answer.value {
            Ok(value) => {
                self.status.success = true;
                self.status.error = None;
                self.status.timestamp_seconds = Some(answer.finished.timestamp_seconds);
                Some(Timed {
                    value,
                    asked_seconds: answer.asked.seconds,
                    read_seconds: answer.finished.seconds,
                    timestamp_seconds: answer.finished.timestamp_seconds,
                })
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn fail(&mut self, error: String) {
        self.status.success = false;
        self.status.error = Some(error);
    }

    fn status(&self) -> (String, CollectorStatus) {
        (self.name.to_owned(), self.status.clone())
    }
}
