//! A thread for the work that a request needs, while the session reads the next requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::outbox::ClientGone;

/// Runs one piece of work at a time.
#[derive(Default)]
pub(super) struct RequestThread {
    thread: Option<JoinHandle<()>>,
    is_running: Arc<AtomicBool>,
}

impl RequestThread {
    /// Runs `work` in a thread, and then `reply` with the result. A client that has received the reply can start the next
    /// job.
    ///
    /// # Errors
    /// The job before is still running, or no thread can be started; the text is the reason.
    pub(super) fn start<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
        reply: impl FnOnce(T) -> Result<(), ClientGone> + Send + 'static,
    ) -> Result<(), String> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Err("the request before has not ended: send this one again after the reply".to_owned());
        }
        let running = RunningGuard(Arc::clone(&self.is_running));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = work();
            drop(running);
            // The session loop notices that the client is gone, and ends.
            let _ = reply(result);
        });
        self.thread = Some(thread.map_err(|error| format!("{error}: send it again later"))?);
        Ok(())
    }

    /// Waits for the end of the job.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already printed its message.
            let _ = thread.join();
        }
    }
}

/// Marks the end of the job when dropped, also after a panic.
struct RunningGuard(Arc<AtomicBool>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
