//! XID errors. A thread waits for them, because NVML's wait blocks, and because NVML reports several errors before one
//! wait all with the code of the last error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{EventSet, Nvml};

use super::error::is_driver_gone;
use super::raw::DeviceHandle;
use crate::gpu::XidEvent;
use crate::model::{DeviceIndex, now_seconds};

/// The time that one wait blocks: the longest delay of the thread's end.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The pause of the thread after a wait that failed at once.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The longest wait for the end of the thread. A thread that takes longer hangs in the driver and is left behind.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of events that are kept until the next sample; further events are dropped.
const CAPACITY: usize = 1024;

/// The value of `nvmlEventData_t` for an XID that the driver does not know.
const UNKNOWN_XID: u64 = 999;

/// Today's codes are below 200; a larger value than this is not a code.
const LARGEST_XID: u64 = 9_999;

/// GPUs to watch, with their indices.
type WatchedDevices = Vec<(u32, DeviceHandle)>;

/// Watches GPUs for XID errors, with one thread at most.
#[derive(Default)]
pub(super) struct XidWatcher {
    running: Option<Running>,
    /// A thread that did not end when it should have.
    hanging: Option<JoinHandle<()>>,
    /// Events that were received and not taken yet.
    pending: Vec<XidEvent>,
}

struct Running {
    /// Sends the devices to watch to the thread; the thread ends when this sender is dropped.
    watched: Sender<WatchedDevices>,
    /// Disconnects when the thread has released NVML.
    events: Receiver<XidEvent>,
    /// Whether its last subscription or its last wait failed.
    fails: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl XidWatcher {
    /// Whether a thread waits. Otherwise try [`Self::watch`] again: a hanging thread may have ended.
    pub(super) fn is_watching(&self) -> bool {
        self.running.as_ref().is_some_and(|it| !it.thread.is_finished())
    }

    /// Whether the thread waits in vain: errors that happen now are not seen.
    pub(super) fn fails(&self) -> bool {
        self.running.as_ref().is_some_and(|it| it.fails.load(Ordering::Relaxed))
    }

    /// Watches these GPUs from now on, and no others.
    pub(super) fn watch(&mut self, nvml: &Arc<Nvml>, watched: WatchedDevices) {
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
        let fails = Arc::new(AtomicBool::new(false));
        let fails_there = Arc::clone(&fails);
        let thread = std::thread::Builder::new().name("nvml-xid".to_owned()).spawn(move || {
            run(nvml, commands, &sender, &fails_there);
            // NVML is released: from now on the channel may disconnect.
            drop(sender);
        });
        // Without a thread the sample names the XID errors as withheld.
        thread.ok().map(|thread| Running { watched, events, fails, thread })
    }

    /// The events since the last call.
    pub(super) fn take(&mut self) -> Vec<XidEvent> {
        if let Some(running) = &self.running {
            self.pending.extend(running.events.try_iter());
        }
        std::mem::take(&mut self.pending)
    }

    /// Ends the thread, so that it releases NVML. Events that it received before stay for [`Self::take`].
    pub(super) fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.watched);
        let deadline = Instant::now() + STOP_TIMEOUT;
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

/// The next step after a wait on one event set.
enum NextStep {
    /// Make a new set for the same devices.
    Again,
    /// Make a new set for these devices.
    Watch(WatchedDevices),
    /// End.
    End,
}

fn run(nvml: Arc<Nvml>, commands: Receiver<WatchedDevices>, events: &SyncSender<XidEvent>, fails: &AtomicBool) {
    let Ok(mut watched) = commands.recv() else {
        return;
    };
    loop {
        let next = match subscribe(&nvml, &watched) {
            Ok(Some(set)) => wait(&set, &watched, &commands, events, fails),
            // No device reports XID errors: wait for other devices.
            Ok(None) => {
                fails.store(false, Ordering::Relaxed);
                commands.recv().map_or(NextStep::End, NextStep::Watch)
            }
            Err(error) if is_driver_gone(&error) => NextStep::End,
            Err(_) => {
                fails.store(true, Ordering::Relaxed);
                pause(RETRY_PAUSE, &commands)
            }
        };
        match next {
            NextStep::Again => {}
            NextStep::Watch(devices) => watched = devices,
            NextStep::End => return,
        }
    }
}

/// An event set with all devices that report XID errors; none if no device does.
fn subscribe<'nvml>(
    nvml: &'nvml Arc<Nvml>,
    watched: &'nvml WatchedDevices,
) -> Result<Option<EventSet<'nvml>>, NvmlError> {
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
    // The wrapper frees the set if a device cannot be registered, so that each failure starts again without that
    // device.
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

/// Waits for events and sends them, until other devices arrive, an error occurs, or the watcher ends.
fn wait(
    set: &EventSet<'_>,
    watched: &WatchedDevices,
    commands: &Receiver<WatchedDevices>,
    events: &SyncSender<XidEvent>,
    fails: &AtomicBool,
) -> NextStep {
    let mut waited = false;
    loop {
        match pause(Duration::ZERO, commands) {
            NextStep::Again => {}
            next => return next,
        }
        let began = Instant::now();
        let answer = set.wait(POLL_INTERVAL.as_millis() as u32);
        if matches!(answer, Ok(_) | Err(NvmlError::Timeout)) {
            fails.store(false, Ordering::Relaxed);
        }
        match answer {
            Ok(event) => {
                waited = true;
                if let Some(event) = xid_event(&event, watched) {
                    // The channel is full if no sample is taken any more: the kept events suffice.
                    let _ = events.try_send(event);
                }
            }
            // A wait may end early; the pause prevents a busy loop.
            Err(NvmlError::Timeout) => {
                waited = true;
                let left = POLL_INTERVAL.saturating_sub(began.elapsed());
                match pause(left, commands) {
                    NextStep::Again => {}
                    next => return next,
                }
            }
            Err(error) if is_driver_gone(&error) => return NextStep::End,
            // A lost device fails every wait of the set. The other devices get a new set at once, so that none of their
            // errors is missed.
            Err(_) if waited => return NextStep::Again,
            Err(_) => {
                fails.store(true, Ordering::Relaxed);
                return pause(RETRY_PAUSE, commands);
            }
        }
    }
}

/// Pauses until a command arrives or the time is over.
fn pause(duration: Duration, commands: &Receiver<WatchedDevices>) -> NextStep {
    match commands.recv_timeout(duration) {
        Ok(devices) => NextStep::Watch(devices),
        Err(RecvTimeoutError::Disconnected) => NextStep::End,
        Err(RecvTimeoutError::Timeout) => NextStep::Again,
    }
}

fn xid_event(event: &EventData<'_>, watched: &WatchedDevices) -> Option<XidEvent> {
    let xid = match event.event_data.as_ref()? {
        XidError::Value(xid) if *xid <= LARGEST_XID => *xid,
        XidError::Value(_) | XidError::Unknown => UNKNOWN_XID,
    };
    // By handle first: a GPU that fell off the bus may no longer report its index.
    let same = watched.iter().find(|(_, handle)| handle.is(&event.device));
    let index = match same {
        Some((index, _)) => *index,
        None => event.device.index().ok()?,
    };
    Some(XidEvent { index: DeviceIndex::gpu(index), xid, timestamp_seconds: now_seconds() })
}
