//! XID errors. A thread waits for them, because NVML's wait blocks, and because NVML reports several errors before one
//! wait all with the code of the last error. [`XidWatcher::withheld`] names the devices whose errors the thread does not see.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{EventSet, Nvml};

use super::error::{is_driver_gone, is_unsupported};
use super::raw::DeviceHandle;
use crate::gpu::XidEvent;
use crate::gpu::current_call::{self, CallOf};
use crate::model::{DeviceIndex, Withheld, now_seconds};

/// [`Withheld::value`] of errors that are not seen.
const XID_ERRORS: &str = "XID errors";

const SUPPORTED: &str = "nvmlDeviceGetSupportedEventTypes";
const REGISTER: &str = "nvmlDeviceRegisterEvents";
/// Several calls, each of which may hang.
const SUBSCRIBE: &str = "the subscription to events";
const WAIT: &str = "nvmlEventSetWait_v2";

/// The time that one wait blocks: the longest delay of the thread's end.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The pause of the thread after a wait that failed at once, and between attempts to watch a device whose call failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A thread whose call takes longer hangs in the driver: it sees no error, and is left behind if it should end.
const LONGEST_CALL: Duration = Duration::from_secs(2);

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
    unseen: Arc<Mutex<Unseen>>,
    thread: JoinHandle<()>,
}

/// What the thread does not see now.
#[derive(Default)]
struct Unseen {
    /// Whether the last subscription has ended, well or not.
    is_subscribed: bool,
    /// The current [`SUBSCRIBE`] or [`WAIT`], and its start.
    call: Option<(&'static str, Instant)>,
    /// The error of the last subscription or the last wait.
    all: Option<String>,
    /// The errors of single devices.
    devices: Vec<Withheld>,
}

impl XidWatcher {
    /// Whether a thread waits. Otherwise try [`Self::watch`] again: a hanging thread may have ended.
    pub(super) fn is_watching(&self) -> bool {
        self.running.as_ref().is_some_and(|it| !it.thread.is_finished())
    }

    /// The XID errors that are not seen now, of the host or of single devices. A device that does not support XID errors is
    /// not listed.
    pub(super) fn withheld(&self) -> Vec<Withheld> {
        let of_host = |error: String| vec![Withheld::of_host(XID_ERRORS, error)];
        let Some(running) = self.running.as_ref().filter(|it| !it.thread.is_finished()) else {
            return of_host("a call of NVML about them hangs, or their thread cannot be started".to_owned());
        };
        let unseen = lock(&running.unseen);
        match (unseen.call, &unseen.all) {
            (Some((call, began)), _) if began.elapsed() > LONGEST_CALL => of_host(format!("{call} hangs")),
            (_, Some(error)) => of_host(error.clone()),
            _ => unseen.devices.clone(),
        }
    }

    /// Watches these GPUs from now on, and no others.
    pub(super) fn watch(&mut self, nvml: &Arc<Nvml>, watched: WatchedDevices) {
        if !self.is_watching() {
            self.stop();
            self.running = self.start(nvml);
        }
        if let Some(running) = &self.running {
            lock(&running.unseen).is_subscribed = false;
            // A thread that ends just now is replaced the next time.
            let _ = running.watched.send(watched);
        }
    }

    /// Waits for the end of a subscription that goes on, at most for this time. A reader waits, so that a call that ends the
    /// process here, or does not return, is not taken for a call of the next sweep.
    pub(super) fn wait_for_subscription(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while let Some(running) = self.running.as_ref().filter(|it| !it.thread.is_finished())
            && !lock(&running.unseen).is_subscribed
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
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
        let unseen = Arc::<Mutex<Unseen>>::default();
        let unseen_there = Arc::clone(&unseen);
        let thread = std::thread::Builder::new().name("nvml-xid".to_owned()).spawn(move || {
            run(nvml, commands, &sender, &unseen_there);
            // NVML is released: from now on the channel may disconnect.
            drop(sender);
        });
        // Without a thread the sample names the XID errors as withheld.
        thread.ok().map(|thread| Running { watched, events, unseen, thread })
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
        let deadline = Instant::now() + LONGEST_CALL;
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

fn lock(unseen: &Mutex<Unseen>) -> MutexGuard<'_, Unseen> {
    unseen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the driver, and notes `call` as long as it lasts.
fn noted<T>(unseen: &Mutex<Unseen>, call: &'static str, driver: impl FnOnce() -> T) -> T {
    lock(unseen).call = Some((call, Instant::now()));
    let answer = current_call::during(CallOf::Events, call, None, driver);
    lock(unseen).call = None;
    answer
}

fn run(nvml: Arc<Nvml>, commands: Receiver<WatchedDevices>, events: &SyncSender<XidEvent>, unseen: &Mutex<Unseen>) {
    let Ok(mut watched) = commands.recv() else {
        return;
    };
    loop {
        let subscription = || {
            let subscription = subscribe(&nvml, &watched);
            lock(unseen).is_subscribed = true;
            subscription
        };
        let next = match noted(unseen, SUBSCRIBE, subscription) {
            Ok((set, withheld)) => {
                let has_failed = |index: u32| withheld.iter().any(|it| it.device == Some(DeviceIndex::gpu(index)));
                let failed: WatchedDevices = watched.iter().filter(|it| has_failed(it.0)).cloned().collect();
                lock(unseen).devices = withheld;
                // An attempt for these alone, so that no error of the others is missed meanwhile.
                let more = || !failed.is_empty() && matches!(subscribe(&nvml, &failed), Ok((Some(_), _)));
                match set {
                    Some(set) => wait(&set, &watched, more, &commands, events, unseen),
                    None => {
                        lock(unseen).all = None;
                        match failed.is_empty() {
                            false => pause(RETRY_PAUSE, &commands),
                            // No device reports XID errors: wait for other devices.
                            true => commands.recv().map_or(NextStep::End, NextStep::Watch),
                        }
                    }
                }
            }
            Err(error) if is_driver_gone(&error) => NextStep::End,
            Err(error) => {
                lock(unseen).all = Some(format!("nvmlEventSetCreate: {error}"));
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

/// An event set with all devices that report XID errors, none if no device does; and the devices whose calls failed.
fn subscribe<'nvml>(
    nvml: &'nvml Arc<Nvml>,
    watched: &'nvml WatchedDevices,
) -> Result<(Option<EventSet<'nvml>>, Vec<Withheld>), NvmlError> {
    let lib = nvml.lib();
    let (mut able, mut withheld) = (Vec::new(), Vec::new());
    if lib.nvmlEventSetFree.is_err() || lib.nvmlEventSetWait_v2.is_err() {
        return Ok((None, withheld));
    }
    let xid = EventTypes::CRITICAL_XID_ERROR;
    for (index, handle) in watched {
        let device = handle.device();
        let types = || device.supported_event_types();
        match current_call::during(CallOf::Events, SUPPORTED, Some(*index), types) {
            Ok(types) if types.contains(xid) => able.push((*index, device)),
            Ok(_) => {}
            Err(error) => withheld.extend(failure(*index, SUPPORTED, &error)),
        }
    }
    // The wrapper frees the set if a device cannot be registered, so that each failure starts again without that
    // device.
    'set: while !able.is_empty() {
        let mut set = nvml.create_event_set()?;
        for at in 0..able.len() {
            let register = || able[at].1.register_events(xid, set);
            match current_call::during(CallOf::Events, REGISTER, Some(able[at].0), register) {
                Ok(same) => set = same,
                Err(why) => {
                    let (index, _) = able.swap_remove(at);
                    withheld.extend(failure(index, REGISTER, &why.error));
                    continue 'set;
                }
            }
        }
        return Ok((Some(set), withheld));
    }
    Ok((None, withheld))
}

/// The XID errors of a device that a failed call withholds; none if the device does not have them.
fn failure(index: u32, call: &str, error: &NvmlError) -> Option<Withheld> {
    (!is_unsupported(error)).then(|| Withheld::of(DeviceIndex::gpu(index), XID_ERRORS, format!("{call}: {error}")))
}

/// Waits for events and sends them, until other devices arrive, an error occurs, or the watcher ends. `more`: an attempt to
/// watch further devices, after whose success there is to be a new set.
fn wait(
    set: &EventSet<'_>,
    watched: &WatchedDevices,
    more: impl Fn() -> bool,
    commands: &Receiver<WatchedDevices>,
    events: &SyncSender<XidEvent>,
    unseen: &Mutex<Unseen>,
) -> NextStep {
    let mut waited = false;
    let mut tried = Instant::now();
    loop {
        match pause(Duration::ZERO, commands) {
            NextStep::Again => {}
            next => return next,
        }
        if tried.elapsed() >= RETRY_PAUSE {
            tried = Instant::now();
            if noted(unseen, SUBSCRIBE, &more) {
                return NextStep::Again;
            }
        }
        let began = Instant::now();
        let answer = noted(unseen, WAIT, || set.wait(POLL_INTERVAL.as_millis() as u32));
        if matches!(answer, Ok(_) | Err(NvmlError::Timeout)) {
            lock(unseen).all = None;
        }
        match answer {
            Ok(event) => {
                waited = true;
                if let Some(event) = xid_event(&event, watched) {
                    // The channel is full if no sample is taken any more: the kept events suffice.
                    if events.try_send(event).is_ok() {
                        current_call::keep(&event);
                    }
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
            Err(error) => {
                lock(unseen).all = Some(format!("{WAIT}: {error}"));
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
