//! The GPUs of this machine, read by a process of their own: this program, started again as a *reader*.
//!
//! A call into a driver can hang, and the driver's library can end its process. Then the reader is replaced within the same
//! sample, and the GPU of the call is *held off*: the sample shows it as lost, and no reader of all GPUs calls the driver
//! about it. After a pause a second reader tries the GPUs that are held off, beside the first one; those that answer are
//! read with the others again.
//!
//! The call that goes on is known from memory that a reader shares with its parent ([`current_call`]). A call is late when
//! several looks at it have shown no progress, so that a machine that sleeps or is stopped makes no call of a sample late.
//!
//! A kill inside of the driver can freeze GPUs. So a reader with a thread in state D is left to end by itself. While one has
//! not ended no GPU is tried, and while two have not ended no reader is started.
//!
//! [`current_call`]: super::current_call

mod fault;
mod held_off;
mod message;
mod pause;
mod process;
mod serve;
mod threads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

pub use self::fault::restarts;
use self::fault::{Fault, Reason};
use self::held_off::{Failing, Trial};
use self::message::Answer;
pub use self::pause::Pace;
use self::pause::Pause;
use self::process::{Look, Process, Reader};
pub use self::serve::run_if_asked;
use super::current_call::CurrentCall;
use super::nvml::INIT;
use super::{DeviceSample, GpuError, GpuSample, GpuSource, Gpus, XidEvent};
use crate::model::{DeviceIndex, Withheld};

/// This program, also after another file has taken its place.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The looks without progress after which a call is late: it may wait for as long as another process opens the driver.
const LATE: u32 = 20;

/// The same while the driver is opened here, which takes seconds on machines with many GPUs, or between calls.
const LATE_OPENING: u32 = 40;

/// The factor for a reader of which a thread computes or waits for a CPU.
const RUNNING: u32 = 5;

/// The most readers that have not ended yet while another one is started.
const MOST_ENDING: usize = 2;

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
    ending: Vec<Process>,
    /// The GPUs that are held off, and those that were until a short time ago.
    failing: BTreeMap<u32, Failing>,
    /// XID errors that readers saw, and that no sample has had.
    xid_events: Vec<XidEvent>,
    /// The last known UUIDs by index: a GPU that is held off does not tell it.
    uuids: Vec<String>,
    driver_version: Option<String>,
    /// The number of sessions of earlier readers, and of all.
    sessions_before: u64,
    session: u64,
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
            failing: BTreeMap::new(),
            xid_events: Vec::new(),
            uuids: Vec::new(),
            driver_version: None,
            sessions_before: 0,
            session: 0,
        }
    }

    /// Has a reader of all GPUs, unless none may be started now.
    fn start(&mut self) -> Result<&mut Reader, GpuError> {
        if self.reader.is_none() {
            let now = Instant::now();
            if let Some((error, pause)) = self.failed.as_ref().filter(|(_, pause)| !pause.is_over(now)) {
                let seconds = pause.until.saturating_duration_since(now).as_secs() + 1;
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

    /// Waits for a moment until another reader may be started: one that is not left ends at once.
    fn wait_for_room(&mut self) -> Result<(), GpuError> {
        let end = Instant::now() + self.pace.look;
        loop {
            self.ending.retain_mut(|reader| !reader.has_ended());
            if self.ending.len() < MOST_ENDING {
                return Ok(());
            }
            let hangs = self.ending.iter().all(|reader| reader.is_left);
            if hangs || Instant::now() >= end {
                let what = match hangs {
                    true => "the driver hangs: processes that read GPUs do not end, and no other is started",
                    false => "processes that read GPUs have not ended yet",
                };
                let ending = self.ending.iter().map(|reader| format!("{} ({})", reader.pid(), reader.fault));
                return Err(GpuError::Reader(format!("{what}: {}", Vec::from_iter(ending).join(" and "))));
            }
            thread::sleep(self.pace.look / 25);
        }
    }

    /// Asks the reader of all GPUs. If it is late while another one tries GPUs, that one may hold up the driver, and is ended
    /// first.
    fn ask(&mut self) -> Result<Result<Answer, Fault>, GpuError> {
        let which = Gpus::AllBut(self.held_off().map(|(gpu, _)| gpu).collect());
        let look = self.pace.look;
        let reader = self.start()?;
        if let Err(error) = reader.ask(&which) {
            return Ok(Err(garbled(error.to_string())));
        }
        let (mut progress, mut looks) = (reader.progress(), 0);
        loop {
            let Some(reader) = &mut self.reader else {
                return Ok(Err(garbled("it is gone".to_owned())));
            };
            match finished(reader, look) {
                Some(outcome) => return Ok(outcome),
                None if progress == reader.progress() => looks += 1,
                None => (progress, looks) = (reader.progress(), 0),
            }
            if is_late(reader, looks) {
                let fault = hang(reader);
                let Some(trial) = self.trial.take() else {
                    return Ok(Err(fault));
                };
                let fault = hang(&trial.reader);
                self.end_trial(trial, fault);
                looks = 0;
            }
        }
    }

    /// Replaces a reader that has failed.
    fn end(&mut self, reader: Reader, fault: &mut Fault) {
        fault::count(fault.reason);
        self.xid_events.extend(reader.last_events());
        let mut ending = reader.leave();
        if !ending.has_ended() {
            ending.fault = match fault.call.gpu {
                Some(gpu) => format!("GPU {gpu}: {fault}"),
                None => fault.to_string(),
            };
            if !ending.kill() {
                fault.left = Some(ending.pid());
            }
            self.ending.push(ending);
        }
    }

    /// Replaces the reader of all GPUs after this failure. Returns the error of the sample, unless another reader can be asked
    /// at once: where the failure is that of a GPU, which is held off, or the first one of the driver as a whole, also of the
    /// sample.
    fn fail(&mut self, reader: Reader, mut fault: Fault, is_first_of_sample: bool) -> Option<GpuError> {
        self.end(reader, &mut fault);
        let error = fault.to_string();
        if let Some(gpu) = fault.call.gpu {
            // The driver was not loaded anew.
            self.sessions_before = self.session;
            tracing::warn!(gpu, error, "the GPU is held off, and another process reads the others");
            self.hold_off(gpu, error);
            return None;
        }
        self.sessions_before = self.session + 1;
        tracing::warn!(error, "the process that reads the GPUs is replaced");
        let now = Instant::now();
        let before = self.failed.as_ref().map(|(_, pause)| pause);
        let is_first = is_first_of_sample && before.is_none_or(|pause| pause.is_forgotten(&self.pace, now));
        // After a hang the sample has waited for seconds.
        let asks_again = is_first && fault.reason != Reason::Hang;
        let pause = if asks_again { Pause::none(now) } else { Pause::after(before, &self.pace, now) };
        self.failed = Some((error.clone(), pause));
        (!asks_again).then_some(GpuError::Reader(error))
    }

    /// Replaces a reader that ended after its last answer. Returns whether one did.
    fn replace_ended(&mut self) -> bool {
        let Some(mut reader) = self.reader.take_if(|reader| reader.has_ended()) else {
            return false;
        };
        if let Some(Err(fault)) = finished(&mut reader, Duration::ZERO) {
            // If there is a pause, no reader is started now, and the sample fails with this error.
            let _ = self.fail(reader, fault, true);
        }
        true
    }

    /// Follows the number of GPUs. Indices are positions in PCI order: with one more or less, each may mean another GPU, so
    /// that none is held off. Returns whether one was.
    fn renumber(&mut self, counted: usize) -> bool {
        if counted == self.uuids.len() {
            return false;
        }
        let is_first = self.uuids.is_empty();
        self.uuids.clear();
        self.uuids.resize(counted, String::new());
        if is_first || self.failing.is_empty() {
            return false;
        }
        self.failing.clear();
        self.ending.extend(self.trial.take().map(|trial| trial.reader.leave()));
        true
    }

    /// Adds what the answer lacks: the GPUs that are held off, and what earlier readers knew.
    fn complete(&mut self, answer: Answer) -> Result<GpuSample, GpuError> {
        let mut sample = answer.into_sample().map_err(GpuError::Reader)?;
        for device in sample.devices.iter_mut().filter(|device| device.index.mig.is_none()) {
            if let Some(known) = self.uuids.get_mut(device.index.gpu as usize) {
                if !device.uuid.is_empty() {
                    known.clone_from(&device.uuid);
                } else if device.lost {
                    device.uuid.clone_from(known);
                }
            }
        }
        for (gpu, held) in self.held_off().filter(|(gpu, _)| (*gpu as usize) < self.uuids.len()) {
            let index = DeviceIndex::gpu(gpu);
            let at = sample.devices.partition_point(|device| device.index < index);
            sample.devices.insert(at, DeviceSample::lost(index, self.uuids[gpu as usize].clone()));
            sample.withheld.push(Withheld::of(index, Withheld::ALL, held.error.clone()));
        }
        sample.xid_events.splice(..0, self.xid_events.drain(..));
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
        let mut times = BTreeMap::<_, u32>::new();
        for event in &sample.xid_events {
            *times.entry((event.index, event.xid)).or_default() += 1;
        }
        for ((device, xid), times) in times {
            tracing::warn!(%device, xid, times, "XID error");
        }
    }
}

impl GpuSource for ReaderSource {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        self.try_held_off();
        let mut has_failed = self.replace_ended();
        loop {
            match self.ask()? {
                // The answer to a driver that fails as a whole counts nothing.
                Ok(answer) if answer.counted > 0 && self.renumber(answer.counted) => {}
                Ok(answer) => return self.complete(answer),
                Err(fault) => {
                    let reader = self.reader.take();
                    if let Some(error) = reader.and_then(|reader| self.fail(reader, fault, !has_failed)) {
                        return Err(error);
                    }
                    has_failed = true;
                }
            }
        }
    }
}

impl Drop for ReaderSource {
    fn drop(&mut self) {
        let trial = self.trial.take().map(|trial| trial.reader);
        self.ending.extend(self.reader.take().into_iter().chain(trial).map(|reader| reader.leave()));
        self.ending.drain(..).for_each(Process::wait);
    }
}

/// What has become of the question within this time; nothing if the reader has not answered.
fn finished(reader: &mut Reader, patience: Duration) -> Option<Result<Answer, Fault>> {
    Some(match reader.look(patience) {
        Look::Pending => return None,
        Look::Answered(answer) => Ok(answer),
        Look::Garbled(error) => Err(garbled(error)),
        Look::Ended => {
            let status = reader.status();
            let reason = if status.is_some_and(|it| it.code().is_none()) { Reason::Signal } else { Reason::Exit };
            let what = status.map_or_else(|| "has closed its socket".to_owned(), process::describe);
            let is_own = !status.is_some_and(process::is_ended_from_outside);
            let call = if is_own { reader.last_call() } else { CurrentCall::default() };
            Err(Fault { reason, call, what, left: None })
        }
    })
}

fn garbled(error: String) -> Fault {
    let what = format!("cannot be understood: {error}");
    Fault { reason: Reason::Answer, call: CurrentCall::default(), what, left: None }
}

fn hang(reader: &Reader) -> Fault {
    Fault { reason: Reason::Hang, call: reader.call(), what: String::new(), left: None }
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
