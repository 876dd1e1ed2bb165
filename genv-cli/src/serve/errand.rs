//! Work beside the reading of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::Full;

/// Something that is done one at a time, beside all else.
#[derive(Default)]
pub(crate) struct Errand {
    thread: Option<JoinHandle<()>>,
    runs: Arc<AtomicBool>,
}

impl Errand {
    /// Begins it. Whoever has its answer may ask for the next one.
    ///
    /// # Errors
    /// The one before has not ended, or no thread can be started; the text tells.
    pub(crate) fn begin<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(T) -> Result<(), Full> + Send + 'static,
    ) -> Result<(), String> {
        if self.runs.swap(true, Ordering::AcqRel) {
            return Err("the one asked for before has not ended: ask again after its answer".to_owned());
        }
        let runs = Ends(Arc::clone(&self.runs));
        let thread = thread::Builder::new().name(name.to_owned());
        let spawned = thread.spawn(move || {
            let done = work();
            drop(runs);
            // A reader that is gone ends the session elsewhere.
            let _ = answer(done);
        });
        self.thread = Some(spawned.map_err(|error| format!("{error}: ask again later"))?);
        Ok(())
    }

    /// Waits until none runs.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A defect there was told by its panic.
            let _ = thread.join();
        }
    }
}

/// Says that an errand has ended, however it did.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
