//! Sources that hang, fail or die when a test sets it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::*;
use crate::collect::HostSources;
use crate::gpu::{GpuError, GpuSource};
use crate::proc::{ProcessRequest, ProcessSource};
use crate::state::{StateError, StateSource};

/// The behaviour of a source: it hangs, fails or dies on command.
#[derive(Clone, Default)]
pub(super) struct Mood(pub(super) Arc<MoodState>);

#[derive(Default)]
pub(super) struct MoodState {
    closed: Mutex<bool>,
    opened: Condvar,
    pub(super) failing: AtomicBool,
    pub(super) dying: AtomicBool,
    calls: AtomicUsize,
    pub(super) threads: Mutex<HashSet<ThreadId>>,
    /// When the last call began and ended.
    pub(super) last_call: Mutex<Option<[Instant; 2]>>,
}

impl Mood {
    pub(super) fn hang(&self) {
        *self.0.closed.lock().unwrap() = true;
    }

    pub(super) fn recover(&self) {
        *self.0.closed.lock().unwrap() = false;
        self.0.opened.notify_all();
        self.0.failing.store(false, Ordering::SeqCst);
    }

    /// Called by the source.
    pub(super) fn live(&self) -> Result<(), String> {
        let began = Instant::now();
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        self.0.threads.lock().unwrap().insert(thread::current().id());
        assert!(!self.0.dying.load(Ordering::SeqCst), "this source dies");
        let mut closed = self.0.closed.lock().unwrap();
        while *closed {
            closed = self.0.opened.wait(closed).unwrap();
        }
        if self.0.failing.load(Ordering::SeqCst) {
            return Err("it fails".to_owned());
        }
        *self.0.last_call.lock().unwrap() = Some([began, Instant::now()]);
        Ok(())
    }

    pub(super) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Default)]
pub(super) struct Moods {
    pub(super) gpu: Mood,
    pub(super) processes: Mood,
    pub(super) state: Mood,
}

struct Gpu(Mood);

impl GpuSource for Gpu {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        self.0.live().map_err(|reason| GpuError::Driver { call: "nvmlInit_v2", reason })?;
        let mut device = gpu(0);
        device.processes = Some(vec![on_gpu(101, Some(0.5))]);
        Ok(sample(vec![device]))
    }
}

struct Processes(Mood);

impl ProcessSource for Processes {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        self.0.live().expect("reading processes does not fail");
        let mut table = ProcessTable::default();
        for pid in request.processes.iter().chain(&request.members) {
            add_process(&mut table, *pid, 1, Claim::Absent);
        }
        table
    }

    fn username(&mut self, uid: u32) -> String {
        format!("user{uid}")
    }
}

struct Environments(Mood);

impl StateSource for Environments {
    fn read(&mut self) -> Result<State, StateError> {
        self.0.live().map_err(|message| StateError { message })?;
        let mut state = state(vec![environment("10", 1, &[100])], vec![attached(0, &[("10", None)])]);
        state.warnings.push("an entry is damaged".to_owned());
        Ok(state)
    }
}

pub(super) fn host(name: &str, moods: &Moods) -> HostSources {
    HostSources {
        hostname: name.to_owned(),
        gpu: Box::new(Gpu(moods.gpu.clone())),
        processes: Box::new(Processes(moods.processes.clone())),
        state: Box::new(Environments(moods.state.clone())),
    }
}
