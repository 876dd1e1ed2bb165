//! The call into the driver that goes on, in memory that a reader shares with its parent: it stays readable when the call
//! hangs or ends the process.
//!
//! A process that shares nothing notes nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::gpu::XidEvent;
use crate::model::DeviceIndex;

/// The longest name of a call that is kept, in words of 8 bytes.
const NAME_WORDS: usize = 6;

const BYTES: usize = 4096;

/// The XID errors that are kept.
const EVENTS: usize = 64;

/// Who calls: each thread of a reader notes its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOf {
    /// The sweep over the GPUs.
    Sweep,
    /// The wait for XID errors.
    Events,
}

/// A call as its note has it. A note that is read while it is written may be of two calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurrentCall {
    /// The call; empty between calls.
    pub(crate) name: String,
    /// The GPU, for a call about one.
    pub(crate) gpu: Option<u32>,
}

/// Shared notes of one process: its calls, and the last XID errors that it saw.
#[derive(Debug)]
pub(crate) struct Notes(&'static Page);

#[derive(Debug)]
#[repr(C)]
struct Page {
    calls: [Note; 2],
    /// The number of XID errors so far.
    events: AtomicU64,
    /// The last ones in turn: GPU, code, and the bits of the Unix time.
    last_events: [[AtomicU64; 3]; EVENTS],
}

/// One line of a CPU's cache, so that a note costs little.
#[derive(Debug)]
#[repr(C, align(64))]
struct Note {
    /// Rises with each call.
    progress: AtomicU64,
    /// The index of the GPU and 1; 0 without a GPU.
    gpu: AtomicU64,
    /// The name in UTF-8, filled up with zeros.
    name: [AtomicU64; NAME_WORDS],
}

/// The notes of this process, if it is a reader.
static OWN: OnceLock<Notes> = OnceLock::new();

/// Calls the driver, and notes the call as long as it lasts.
pub(crate) fn during<T>(by: CallOf, name: &str, gpu: Option<u32>, driver: impl FnOnce() -> T) -> T {
    let Some(notes) = OWN.get() else {
        return driver();
    };
    let note = notes.of(by);
    note.begin(name, gpu);
    let answer = driver();
    note.name[0].store(0, Ordering::Relaxed);
    answer
}

/// Keeps an XID error, which may not reach the next sample.
pub(crate) fn keep(event: &XidEvent) {
    if let Some(notes) = OWN.get() {
        notes.keep(event);
    }
}

/// Notes the calls of this process from now on.
pub(crate) fn share(notes: Notes) {
    // A process shares its notes once.
    let _ = OWN.set(notes);
}

impl Notes {
    /// New notes, and the file that another process can map.
    ///
    /// # Errors
    /// The kernel gave no memory.
    pub(crate) fn create() -> std::io::Result<(Self, OwnedFd)> {
        let file = memfd_create("genv-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// The notes in a file of [`Notes::create`].
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub(crate) fn map(file: impl AsFd) -> std::io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        const { assert!(size_of::<Page>() <= BYTES) };
        // SAFETY: the memory is aligned, long enough, never shorter, and mapped until `drop`; atomics may have any bits, and
        // all processes access them as such.
        Ok(Self(unsafe { &*address.cast::<Page>() }))
    }

    const fn of(&self, by: CallOf) -> &Note {
        &self.0.calls[by as usize]
    }

    /// The XID errors after so many, of those that are kept.
    pub(crate) fn events_since(&self, known: u64) -> Vec<XidEvent> {
        let number = self.0.events.load(Ordering::Acquire);
        let first = known.max(number.saturating_sub(EVENTS as u64));
        let event = |at: u64| {
            let [gpu, xid, time] = &self.0.last_events[at as usize % EVENTS];
            let [gpu, xid, time] = [gpu, xid, time].map(|word| word.load(Ordering::Relaxed));
            XidEvent { index: DeviceIndex::gpu(gpu as u32), xid, timestamp_seconds: f64::from_bits(time) }
        };
        (first..number).map(event).collect()
    }

    fn keep(&self, event: &XidEvent) {
        let number = self.0.events.load(Ordering::Relaxed);
        let words = [u64::from(event.index.gpu), event.xid, event.timestamp_seconds.to_bits()];
        for (kept, word) in self.0.last_events[number as usize % EVENTS].iter().zip(words) {
            kept.store(word, Ordering::Relaxed);
        }
        self.0.events.store(number + 1, Ordering::Release);
    }

    /// A number that changes with each call.
    pub(crate) fn progress(&self, by: CallOf) -> u64 {
        self.of(by).progress.load(Ordering::Relaxed)
    }

    /// The call that goes on.
    pub(crate) fn current(&self, by: CallOf) -> CurrentCall {
        let note = self.of(by);
        let bytes: Vec<u8> = note.name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let gpu = note.gpu.load(Ordering::Relaxed).checked_sub(1).and_then(|gpu| u32::try_from(gpu).ok());
        CurrentCall { name: String::from_utf8_lossy(&bytes[..length]).into_owned(), gpu: gpu.filter(|_| length > 0) }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference is handed out.
        let _ = unsafe { rustix::mm::munmap(std::ptr::from_ref(self.0).cast_mut().cast(), BYTES) };
    }
}

impl Note {
    fn begin(&self, name: &str, gpu: Option<u32>) {
        self.gpu.store(gpu.map_or(0, |gpu| u64::from(gpu) + 1), Ordering::Relaxed);
        let mut words = [0; NAME_WORDS * 8];
        let length = name.len().min(words.len());
        words[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (kept, word) in self.name.iter().zip(words.chunks_exact(8)) {
            kept.store(u64::from_ne_bytes(word.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
        // Of this thread alone, so that no atomic addition is needed.
        self.progress.store(self.progress.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_shows_the_call_of_each_thread_and_what_has_ended() {
        let (written, file) = Notes::create().unwrap();
        let read = Notes::map(&file).unwrap();
        assert_eq!(read.current(CallOf::Sweep), CurrentCall::default());
        let long = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
        written.of(CallOf::Sweep).begin(long, Some(7));
        written.of(CallOf::Events).begin("nvmlEventSetWait_v2", None);
        assert_eq!(read.current(CallOf::Sweep), CurrentCall { name: long.to_owned(), gpu: Some(7) });
        assert_eq!(read.current(CallOf::Events).gpu, None);
        let before = read.progress(CallOf::Sweep);
        written.of(CallOf::Sweep).begin("nvmlInit_v2", None);
        assert_eq!(read.current(CallOf::Sweep), CurrentCall { name: "nvmlInit_v2".to_owned(), gpu: None });
        assert_ne!(read.progress(CallOf::Sweep), before);
        assert_eq!(read.progress(CallOf::Events), 1);
    }

    #[test]
    fn another_mapping_shows_the_xid_errors_after_those_that_are_known() {
        let (written, file) = Notes::create().unwrap();
        let read = Notes::map(&file).unwrap();
        let event = |xid: u64| XidEvent { index: DeviceIndex::gpu(3), xid, timestamp_seconds: 0.25 };
        for xid in 0..5 {
            written.keep(&event(xid));
        }
        assert_eq!(read.events_since(3), [event(3), event(4)]);
        assert_eq!(read.events_since(5), []);
        for xid in 5..100 {
            written.keep(&event(xid));
        }
        assert_eq!(read.events_since(5), (100 - EVENTS as u64..100).map(event).collect::<Vec<_>>());
    }
}
