//! The GPUs of this machine, asked by a thread of their own.

use std::io::{self, IsTerminal as _};
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::attribute::environments_of;
use genv_core::collect::withhold;
use genv_core::gpu::bounds::Bounds;
use genv_core::gpu::{GpuError, GpuSample, GpuSource};
use genv_core::proc::ProcessSource;
use genv_core::state::{StateStore, directory_path};
use genv_simulator::{SourceError, SourceOptions};

use crate::device_facts::contexts;
use crate::driver_timeout::at_least;
use crate::output::print_note;

/// Time limit for the contexts on the GPUs, if they decide about an environment without a shell.
const CONTEXT_PATIENCE: Duration = Duration::from_secs(1);

/// The time after which a line on a terminal names the driver as the cause of the wait.
const NOTE_AFTER: Duration = Duration::from_millis(300);

/// An answer to a question that is older than this is not current: the question is asked again.
const SAME_MOMENT: Duration = Duration::from_secs(1);

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
pub(super) struct SharedGpus {
    pub(super) options: SourceOptions,
    opened: Arc<Mutex<Option<Gpus>>>,
}

/// The GPUs. A separate thread queries the driver, since it may hang.
pub(super) struct Gpus {
    pub(super) processes: Box<dyn ProcessSource>,
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

impl SharedGpus {
    pub(super) fn new(options: SourceOptions) -> Self {
        Self { options, opened: Arc::default() }
    }

    /// Calls a function with the GPUs, which the first call opens.
    pub(super) fn query<T>(&self, query: impl FnOnce(&mut Gpus) -> T) -> Result<T, NoSample> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let gpus = match &mut *opened {
            Some(gpus) => gpus,
            None => opened.insert(Gpus::open(&self.options)?),
        };
        Ok(query(gpus))
    }

    /// The state of this machine. Queries the GPUs, within [`CONTEXT_PATIENCE`], if contexts on devices decide about an
    /// environment.
    pub(super) fn store(&self) -> StateStore {
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
    pub(super) fn newest(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
        match &self.last {
            Some((read, sample)) if read.elapsed() <= SAME_MOMENT => Ok(sample.clone()),
            _ => self.sample(patience),
        }
    }

    /// A late answer is taken when it comes: nothing queues up. An answer to an old question is not the current one.
    pub(super) fn sample(&mut self, patience: Duration) -> Result<GpuSample, NoSample> {
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
