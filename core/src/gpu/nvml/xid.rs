//! XID errors: a thread that waits for them, because NVML's wait blocks, and because several errors
//! before one wait would all be reported with the last one's code.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{EventSet, Nvml};

use super::error::is_driver_gone;
use super::raw::DeviceHandle;
use crate::gpu::XidEvent;
use crate::model::DeviceIndex;

/// How long one wait blocks, and thus how soon the thread notices that it shall end.
const WAIT: Duration = Duration::from_millis(250);

/// How long the thread rests when waiting fails at once, over and over.
const REST: Duration = Duration::from_secs(5);

/// How long is waited for the thread to end; beyond that it hangs in the driver and is left to itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// Events that are kept for a source that is not asked; more are dropped.
const CAPACITY: usize = 1024;

/// What `nvmlEventData_t` holds for an XID that the driver could not tell.
const UNKNOWN_XID: u64 = 999;

/// Codes are below 200 today; a larger one than this is none.
const LARGEST_XID: u64 = 9_999;

/// GPUs to watch, with their indices.
type Watched = Vec<(u32, DeviceHandle)>;

/// Watches GPUs for XID errors, with one thread at most.
#[derive(Default)]
pub(super) struct XidWatcher {
    running: Option<Running>,
    /// A thread that did not end when it should have.
    hanging: Option<JoinHandle<()>>,
    /// Events received and not handed on yet.
    pending: Vec<XidEvent>,
}

struct Running {
    /// Tells the thread what to watch; hanging up tells it to end.
    watched: Sender<Watched>,
    /// Hangs up when the thread has let go of NVML.
    events: Receiver<XidEvent>,
    thread: JoinHandle<()>,
}

impl XidWatcher {
    /// Whether a thread waits. Where none does it is worth another [`Self::watch`]: one that hung may
    /// have ended.
    pub(super) fn is_watching(&self) -> bool {
        self.running.as_ref().is_some_and(|it| !it.thread.is_finished())
    }

    /// Watches these GPUs from now on, and no others.
    pub(super) fn watch(&mut self, nvml: &Arc<Nvml>, watched: Watched) {
        if !self.is_watching() {
            self.stop();
            self.running = self.start(nvml);
        }
        if let Some(running) = &self.running {
            // A thread that ends just now is replaced the next time.
            let _ = running.watched.send(watched);
        }
    }

    fn start(&mut self, nvml: &Arc<Nvml>) -> Option<Running> {
        if let Some(thread) = self.hanging.take_if(|it| it.is_finished()) {
            let _ = thread.join();
        }
        if self.hanging.is_some() {
            return None;
        }
        let (watched, commands) = channel();
        let (sender, events) = sync_channel(CAPACITY);
        let nvml = Arc::clone(nvml);
        let thread = std::thread::Builder::new().name("nvml-xid".to_owned()).spawn(move || {
            run(nvml, commands, &sender);
            // Only now, with NVML let go, the source may see the thread hang up.
            drop(sender);
        });
        match thread {
            Ok(thread) => Some(Running { watched, events, thread }),
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread that waits for XID errors; none are counted");
                None
            }
        }
    }

    /// The events since the last call.
    pub(super) fn take(&mut self) -> Vec<XidEvent> {
        if let Some(running) = &self.running {
            self.pending.extend(running.events.try_iter());
        }
        std::mem::take(&mut self.pending)
    }

    /// Ends the thread, so that it keeps nothing of NVML. What it received until then stays for
    /// [`Self::take`].
    pub(super) fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.watched);
        let deadline = Instant::now() + FAREWELL;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.events.recv_timeout(left) {
                Ok(event) if self.pending.len() < CAPACITY => self.pending.push(event),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = running.thread.join();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("waiting for XID errors hangs in the driver; none are counted until it returns");
                    self.hanging = Some(running.thread);
                    return;
                }
            }
        }
    }
}

impl Drop for XidWatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What to do after waiting on one event set.
enum Next {
    /// Make a new set for the same devices.
    Again,
    /// Make a new set for these devices.
    Watch(Watched),
    /// End.
    End,
}

fn run(nvml: Arc<Nvml>, commands: Receiver<Watched>, events: &SyncSender<XidEvent>) {
    let Ok(mut watched) = commands.recv() else {
        return;
    };
    loop {
        let next = match subscribe(&nvml, &watched) {
            Ok(Some(set)) => wait(&set, &watched, &commands, events),
            // Nothing to wait for until there are other devices.
            Ok(None) => commands.recv().map_or(Next::End, Next::Watch),
            Err(error) if is_driver_gone(&error) => Next::End,
            Err(_) => rest(REST, &commands),
        };
        match next {
            Next::Again => {}
            Next::Watch(devices) => watched = devices,
            Next::End => return,
        }
    }
}

/// An event set with all devices that report XID errors; none if no device does.
fn subscribe<'nvml>(nvml: &'nvml Arc<Nvml>, watched: &'nvml Watched) -> Result<Option<EventSet<'nvml>>, NvmlError> {
    let lib = nvml.lib();
    if lib.nvmlEventSetFree.is_err() || lib.nvmlEventSetWait_v2.is_err() {
        return Ok(None);
    }
    let xid = EventTypes::CRITICAL_XID_ERROR;
    let mut able: Vec<_> = watched
        .iter()
        .map(|(_, handle)| handle.device())
        .filter(|device| device.supported_event_types().is_ok_and(|it| it.contains(xid)))
        .collect();
    // The wrapper frees the set when a device cannot be registered, so that each failure starts anew
    // without that device.
    'set: while !able.is_empty() {
        let mut set = nvml.create_event_set()?;
        for at in 0..able.len() {
            match able[at].register_events(xid, set) {
                Ok(same) => set = same,
                Err(_) => {
                    able.swap_remove(at);
                    continue 'set;
                }
            }
        }
        return Ok(Some(set));
    }
    Ok(None)
}

/// Waits and delivers until there are other devices, an error, or the end.
fn wait(set: &EventSet<'_>, watched: &Watched, commands: &Receiver<Watched>, events: &SyncSender<XidEvent>) -> Next {
    let mut waited = false;
    loop {
        match rest(Duration::ZERO, commands) {
            Next::Again => {}
            next => return next,
        }
        let began = Instant::now();
        match set.wait(WAIT.as_millis() as u32) {
            Ok(event) => {
                waited = true;
                if let Some(event) = xid_event(&event, watched) {
                    // Full: the source is not asked any more, and what is kept tells enough.
                    let _ = events.try_send(event);
                }
            }
            // A wait may end early; without a pause that would be a busy loop.
            Err(NvmlError::Timeout) => {
                waited = true;
                let left = WAIT.saturating_sub(began.elapsed());
                match rest(left, commands) {
                    Next::Again => {}
                    next => return next,
                }
            }
            Err(error) if is_driver_gone(&error) => return Next::End,
            // One lost device fails every wait of the set: the others get a new one at once, so that
            // none of their errors is missed.
            Err(_) if waited => return Next::Again,
            Err(_) => return rest(REST, commands),
        }
    }
}

/// Rests, unless it is told what to do.
fn rest(duration: Duration, commands: &Receiver<Watched>) -> Next {
    match commands.recv_timeout(duration) {
        Ok(devices) => Next::Watch(devices),
        Err(RecvTimeoutError::Disconnected) => Next::End,
        Err(RecvTimeoutError::Timeout) => Next::Again,
    }
}

fn xid_event(event: &EventData<'_>, watched: &Watched) -> Option<XidEvent> {
    let xid = match event.event_data.as_ref()? {
        XidError::Value(xid) if *xid <= LARGEST_XID => *xid,
        XidError::Value(_) | XidError::Unknown => UNKNOWN_XID,
    };
    // By handle first: a GPU that fell off the bus may not tell its index any more.
    let same = watched.iter().find(|(_, handle)| handle.is(&event.device));
    let index = match same {
        Some((index, _)) => *index,
        None => event.device.index().ok()?,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Some(XidEvent { index: DeviceIndex::gpu(index), xid, timestamp_seconds: now.unwrap_or_default().as_secs_f64() })
}
