//! The GPUs that are held off, and the reader that tries them.

use std::time::{Duration, Instant};

use super::fault::Fault;
use super::pause::Pause;
use super::process::Reader;
use super::{LATE_OPENING, RUNNING, ReaderSource, finished, hang};
use crate::gpu::Gpus;

/// A GPU that is held off, or was until a short time ago.
pub(super) struct Failing {
    pub(super) error: String,
    pause: Pause,
    /// Whether it answers again. It is remembered for a time, so that the pause of a GPU that fails again is longer.
    is_back: bool,
}

/// The reader that tries GPUs that are held off.
pub(super) struct Trial {
    gpus: Vec<u32>,
    pub(super) reader: Reader,
    began: Instant,
}

impl ReaderSource {
    /// The GPUs that are held off.
    pub(super) fn held_off(&self) -> impl Iterator<Item = (u32, &Failing)> {
        self.failing.iter().filter(|(_, held)| !held.is_back).map(|(gpu, held)| (*gpu, held))
    }

    /// Holds the GPU off after this failure.
    pub(super) fn hold_off(&mut self, gpu: u32, error: String) {
        let pause = Pause::after(self.failing.get(&gpu).map(|held| &held.pause), &self.pace, Instant::now());
        self.failing.insert(gpu, Failing { error, pause, is_back: false });
    }

    /// Looks at the GPUs that are held off: takes the outcome of their trial, and begins another one.
    pub(super) fn try_held_off(&mut self) {
        let (pace, now) = (self.pace, Instant::now());
        self.failing.retain(|_, held| !held.is_back || !held.pause.is_forgotten(&pace, now));
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
                Some(Ok(answer)) => {
                    match answer.into_sample() {
                        Ok(mut sample) => {
                            self.xid_events.append(&mut sample.xid_events);
                            for (_, held) in self.failing.iter_mut().filter(|(gpu, _)| trial.gpus.contains(gpu)) {
                                held.is_back = true;
                            }
                            tracing::info!(gpus = ?trial.gpus, "GPUs that were held off answer again");
                        }
                        // Of the driver as a whole.
                        Err(error) => trial.gpus.iter().for_each(|gpu| self.hold_off(*gpu, error.clone())),
                    }
                    self.ending.push(trial.reader.leave());
                }
            }
        }
        self.ending.retain_mut(|reader| !reader.has_ended());
        let gpus: Vec<u32> = self.held_off().filter(|(_, held)| held.pause.is_over(now)).map(|(gpu, _)| gpu).collect();
        // A third reader might have to be left, too.
        if self.trial.is_none() && self.ending.is_empty() && !gpus.is_empty() {
            // A reader that cannot be started is missed by the next sample.
            if let Ok(mut reader) = self.start_reader() {
                let _ = reader.ask(&Gpus::Only(gpus.clone()));
                self.trial = Some(Trial { gpus, reader, began: Instant::now() });
            }
        }
    }

    /// Holds off longer what has failed again: the GPU of the call, or all that were tried if it was about none.
    pub(super) fn end_trial(&mut self, trial: Trial, mut fault: Fault) {
        self.end(trial.reader, &mut fault);
        tracing::debug!(gpus = ?trial.gpus, "GPUs stay held off: {fault}");
        for gpu in fault.call.gpu.map_or(trial.gpus, |gpu| vec![gpu]) {
            self.hold_off(gpu, fault.to_string());
        }
    }
}
