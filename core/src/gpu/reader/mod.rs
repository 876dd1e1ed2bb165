//! The GPUs of this machine, read by a process of their own: this program, started again as a *reader*.
//!
//! A call into a driver can hang, and the driver's library can end its process. Then the reader is replaced within the same
//! sample, and the GPU of the call is *held off*: the sample shows it as lost, and no reader of all GPUs calls the driver
//! about it. After a pause a second reader tries the GPUs that are held off, beside the first one; those that answer are
//! read with the others again.
//!
//! The call that goes on is known from memory that a reader shares with its parent ([`current_call`]). A call is late when
//! several looks at it have shown no progress, so that a machine that sleeps or is stopped makes no call late.
//!
//! A kill inside of the driver can freeze GPUs. So a reader with a thread in state D is left to end by itself, and no other
//! is started while two have not ended.
//!
//! [`current_call`]: super::current_call

mod fault;
mod message;
mod process;
mod serve;
mod threads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

pub use self::fault::restarts;
use self::fault::{Fault, Reason};
use self::message::Answer;
use self::process::{Ending, Look, Reader};
pub use self::serve::run_if_asked;
use super::current_call::CurrentCall;
use super::nvml::INIT;
use super::{DeviceSample, GpuError, GpuSample, GpuSource, Gpus};
use crate::model::{DeviceIndex, Withheld};

/// This program, also after another file has taken its place.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The looks without progress after which a call is late.
const LATE: u32 = 8;

/// The same while the driver is opened, which takes seconds on machines with many GPUs, or between calls.
const LATE_OPENING: u32 = 40;

/// The factor for a reader that computes or waits for a CPU.
const RUNNING: u32 = 5;

/// The most readers that have not ended yet while another one is started.
const MOST_ENDING: usize = 2;

/// The times of a [`ReaderSource`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The pause between two looks at a reader that has not answered.
    pub look: Duration,
    /// The pause after the first failure, before a GPU is tried again, or the driver as a whole.
    pub shortest_pause: Duration,
    /// The longest pause: each further failure doubles it.
    pub longest_pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_millis(250),
            shortest_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// The GPUs of this machine by NVML, read by processes of this program.
///
/// The program has to call [`run_if_asked`] first. Readers end after the source is dropped, or after this process ends.
pub struct ReaderSource {
    program: PathBuf,
    library: Option<PathBuf>,
    pace: Pace,
    /// The reader of all GPUs that are not held off.
    reader: Option<Reader>,
    /// The last failure without a GPU, and the pause after it.
    failed: Option<(String, Pause)>,
    /// The reader that tries GPUs that are held off.
    trial: Option<Trial>,
    ending: Vec<Ending>,
    held_off: BTreeMap<u32, HeldOff>,
    /// The last known UUIDs by index: a GPU that is held off does not tell it.
    uuids: Vec<String>,
    driver_version: Option<String>,
    /// The number of sessions of earlier readers, and of all.
    sessions_before: u64,
    session: u64,
}

struct HeldOff {
    error: String,
    pause: Pause,
    /// Whether it answers again. It is remembered for a time, so that the pause of a GPU that fails again is longer.
    is_back: bool,
}

struct Trial {
    gpus: Vec<u32>,
    reader: Reader,
    began: Instant,
}

/// A pause that a further failure doubles.
#[derive(Clone, Copy)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl Pause {
    fn first(pace: &Pace) -> Self {
        Self { length: pace.shortest_pause, until: Instant::now() + pace.shortest_pause }
    }

    /// The pause after a further failure.
    fn next(self, pace: &Pace) -> Self {
        if self.is_forgotten(pace) {
            return Self::first(pace);
        }
        let length = (self.length * 2).min(pace.longest_pause);
        Self { length, until: Instant::now() + length }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn is_forgotten(&self, pace: &Pace) -> bool {
        self.until.elapsed() > pace.longest_pause
    }
}

impl ReaderSource {
    /// A source whose readers load this library, or the driver's: see [`NvmlSource`](super::nvml::NvmlSource).
    pub fn new(library: Option<PathBuf>) -> Self {
        Self::with(PathBuf::from(THIS_PROGRAM), library, Pace::default())
    }

    /// A source with this program as its readers, and these times.
    pub const fn with(program: PathBuf, library: Option<PathBuf>, pace: Pace) -> Self {
        Self {
            program,
            library,
            pace,
            reader: None,
            failed: None,
            trial: None,
            ending: Vec::new(),
            held_off: BTreeMap::new(),
            uuids: Vec::new(),
            driver_version: None,
            sessions_before: 0,
            session: 0,
        }
    }

    /// The GPUs that are held off.
    fn held_off(&self) -> impl Iterator<Item = (u32, &HeldOff)> {
        self.held_off.iter().filter(|(_, held)| !held.is_back).map(|(gpu, held)| (*gpu, held))
    }

    /// Has a reader of all GPUs, unless none may be started now.
    fn start(&mut self) -> Result<&mut Reader, GpuError> {
        if self.reader.is_none() {
            if let Some((error, pause)) = self.failed.as_ref().filter(|(_, pause)| !pause.is_over()) {
                let seconds = pause.until.saturating_duration_since(Instant::now()).as_secs() + 1;
                return Err(GpuError::Reader(format!("{error}; the driver is asked again in {seconds} s")));
            }
            self.wait_for_room()?;
            self.reader = Some(self.start_reader()?);
        }
        Ok(self.reader.as_mut().expect("there is one"))
    }

    fn start_reader(&self) -> Result<Reader, GpuError> {
        Reader::start(&self.program, self.library.as_deref())
            .map_err(|error| GpuError::Reader(format!("cannot start a process that reads the GPUs: {error}")))
    }

    /// Waits for a moment until another reader may be started: one that was killed ends at once.
    fn wait_for_room(&mut self) -> Result<(), GpuError> {
        let end = Instant::now() + self.pace.look;
        loop {
            self.ending.retain_mut(|reader| !reader.has_ended());
            if self.ending.len() < MOST_ENDING {
                return Ok(());
            }
            if Instant::now() >= end {
                let pids: Vec<String> = self.ending.iter().map(|reader| reader.pid().to_string()).collect();
                let last = self.held_off().last().map(|(_, held)| &held.error);
                let last = last.or(self.failed.as_ref().map(|(error, _)| error));
                return Err(GpuError::Reader(format!(
                    "the driver hangs: the processes {} that read GPUs do not end, and no other is started; at last: {}",
                    pids.join(" and "),
                    last.map_or("they were to end", String::as_str)
                )));
            }
            thread::sleep(self.pace.look / 25);
        }
    }

    /// Asks the reader of all GPUs.
    fn ask(&mut self) -> Result<Result<Answer, Fault>, GpuError> {
        let which = Gpus::AllBut(self.held_off().map(|(gpu, _)| gpu).collect());
        let look = self.pace.look;
        let reader = self.start()?;
        if let Err(error) = reader.ask(&which) {
            return Ok(Err(garbled(error.to_string())));
        }
        let (mut progress, mut looks) = (reader.progress(), 0);
        loop {
            match finished(reader, look) {
                Some(outcome) => return Ok(outcome),
                None if std::mem::replace(&mut progress, reader.progress()) != reader.progress() => looks = 0,
                None => looks += 1,
            }
            if is_late(reader, looks) {
                return Ok(Err(hang(reader)));
            }
        }
    }

    /// Replaces a reader that has failed.
    fn end(&mut self, reader: Reader, fault: &mut Fault) {
        fault::count(fault.reason);
        let mut ending = reader.leave();
        if !ending.has_ended() {
            if !ending.kill() {
                fault.what = format!("process {} is in state D, inside of the driver", ending.pid());
            }
            self.ending.push(ending);
        }
    }

    /// Holds the GPU off after this failure.
    fn hold_off(&mut self, gpu: u32, fault: &Fault) {
        let before = self.held_off.get(&gpu);
        let pause = before.map_or_else(|| Pause::first(&self.pace), |held| held.pause.next(&self.pace));
        self.held_off.insert(gpu, HeldOff { error: fault.to_string(), pause, is_back: false });
    }

    /// Looks at the GPUs that are held off: takes the outcome of their trial, and begins another one.
    fn try_held_off(&mut self) {
        let pace = self.pace;
        self.held_off.retain(|_, held| !held.is_back || !held.pause.is_forgotten(&pace));
        if let Some(mut trial) = self.trial.take() {
            let outcome = finished(&mut trial.reader, Duration::ZERO);
            let patience = pace.look * LATE_OPENING * if trial.reader.runs() { RUNNING } else { 1 };
            match outcome {
                None if trial.began.elapsed() <= patience => self.trial = Some(trial),
                None => {
                    let fault = hang(&trial.reader);
                    self.end_trial(trial, fault);
                }
                Some(Err(fault)) => self.end_trial(trial, fault),
                Some(Ok(_)) => {
                    for (_, held) in self.held_off.iter_mut().filter(|(gpu, _)| trial.gpus.contains(gpu)) {
                        held.is_back = true;
                    }
                    tracing::info!(gpus = ?trial.gpus, "GPUs that were held off answer again");
                    self.ending.push(trial.reader.leave());
                }
            }
        }
        self.ending.retain_mut(|reader| !reader.has_ended());
        let gpus: Vec<u32> = self.held_off().filter(|(_, held)| held.pause.is_over()).map(|(gpu, _)| gpu).collect();
        if self.trial.is_none() && self.ending.is_empty() && !gpus.is_empty() {
            // A reader that cannot be started is missed by the next sample.
            if let Ok(mut reader) = self.start_reader() {
                let _ = reader.ask(&Gpus::Only(gpus.clone()));
                self.trial = Some(Trial { gpus, reader, began: Instant::now() });
            }
        }
    }

    /// Holds off longer what has failed again: the GPU of the call, or all that were tried if it was about none.
    fn end_trial(&mut self, trial: Trial, mut fault: Fault) {
        self.end(trial.reader, &mut fault);
        tracing::debug!(gpus = ?trial.gpus, "GPUs stay held off: {fault}");
        for gpu in fault.call.gpu.map_or(trial.gpus, |gpu| vec![gpu]) {
            self.hold_off(gpu, &fault);
        }
    }

    /// Adds what the answer lacks: the GPUs that are held off, and what earlier readers knew.
    fn complete(&mut self, answer: Answer) -> Result<GpuSample, GpuError> {
        let counted = answer.counted;
        let mut sample = answer.into_sample().map_err(GpuError::Reader)?;
        if counted != self.uuids.len() {
            // Indices are positions in PCI order: with one more or less, each may mean another GPU.
            if !self.uuids.is_empty() {
                self.held_off.clear();
            }
            self.uuids.clear();
            self.uuids.resize(counted, String::new());
        }
        for device in sample.devices.iter_mut().filter(|device| device.index.mig.is_none()) {
            if let Some(known) = self.uuids.get_mut(device.index.gpu as usize) {
                match device.uuid.is_empty() {
                    true => device.uuid.clone_from(known),
                    false => known.clone_from(&device.uuid),
                }
            }
        }
        for (gpu, held) in self.held_off().filter(|(gpu, _)| (*gpu as usize) < counted) {
            let index = DeviceIndex::gpu(gpu);
            let at = sample.devices.partition_point(|device| device.index < index);
            sample.devices.insert(at, DeviceSample::lost(index, self.uuids[gpu as usize].clone()));
            sample.withheld.push(Withheld::of(index, Withheld::ALL, held.error.clone()));
        }
        sample.session += self.sessions_before;
        self.session = sample.session;
        self.log(&sample);
        Ok(sample)
    }

    fn log(&mut self, sample: &GpuSample) {
        if sample.driver_version.is_some() && sample.driver_version != self.driver_version {
            let version = sample.driver_version.as_deref();
            if let Some(before) = self.driver_version.take() {
                tracing::info!(before, version, "another driver was loaded");
            }
            self.driver_version.clone_from(&sample.driver_version);
        }
        for event in &sample.xid_events {
            tracing::warn!(device = %event.index, xid = event.xid, "XID error");
        }
    }
}

impl GpuSource for ReaderSource {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        self.try_held_off();
        loop {
            let mut fault = match self.ask()? {
                Ok(answer) => return self.complete(answer),
                Err(fault) => fault,
            };
            if let Some(reader) = self.reader.take() {
                self.end(reader, &mut fault);
            }
            self.sessions_before = self.session + 1;
            if let Some(gpu) = fault.call.gpu {
                tracing::warn!(gpu, "{fault}; the GPU is held off, and another process reads the others");
                self.hold_off(gpu, &fault);
                continue;
            }
            tracing::warn!("{fault}");
            let pause = self.failed.as_ref().map_or_else(|| Pause::first(&self.pace), |(_, it)| it.next(&self.pace));
            self.failed = Some((fault.to_string(), pause));
            return Err(GpuError::Reader(fault.to_string()));
        }
    }
}

impl Drop for ReaderSource {
    fn drop(&mut self) {
        let trial = self.trial.take().map(|trial| trial.reader);
        self.ending.extend(self.reader.take().into_iter().chain(trial).map(Reader::leave));
        // Most end at once, and are waited for.
        let end = Instant::now() + self.pace.look;
        while !self.ending.is_empty() && Instant::now() < end {
            self.ending.retain_mut(|reader| !reader.has_ended());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What has become of the question within this time; nothing if the reader has not answered.
fn finished(reader: &mut Reader, patience: Duration) -> Option<Result<Answer, Fault>> {
    Some(match reader.look(patience) {
        Look::Pending => return None,
        Look::Answered(answer) => Ok(answer),
        Look::Garbled(error) => Err(garbled(error)),
        Look::Ended => {
            let call = reader.last_call();
            let status = reader.status();
            let reason = if status.is_some_and(|it| it.code().is_none()) { Reason::Signal } else { Reason::Exit };
            let what = status.map_or_else(|| "has closed its socket".to_owned(), process::describe);
            Err(Fault { reason, call, what })
        }
    })
}

fn garbled(error: String) -> Fault {
    let what = format!("cannot be understood: {error}");
    Fault { reason: Reason::Answer, call: CurrentCall::default(), what }
}

fn hang(reader: &Reader) -> Fault {
    Fault { reason: Reason::Hang, call: reader.call(), what: String::new() }
}

/// Whether the call that goes on is late, after so many looks without progress.
fn is_late(reader: &Reader, looks: u32) -> bool {
    if looks < LATE {
        return false;
    }
    let call = reader.call().name;
    let patience = if call.is_empty() || call == INIT { LATE_OPENING } else { LATE };
    looks >= patience && (looks >= patience * RUNNING || !reader.runs())
}
