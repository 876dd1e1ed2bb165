//! Real GPUs, read through NVIDIA's management library (NVML), which is loaded at run time.
//!
//! [`NvmlSource`] has at most one `session`: one initialization of NVML, with the devices seen since then. When the
//! driver as a whole fails, the session is closed, NVML is shut down and its library is unloaded, so that the driver
//! can be replaced; the next sample opens another session. `device` reads a GPU, `mig` its MIG devices, `processes`
//! their processes, and `xid` waits for errors.

mod device;
mod error;
mod mig;
mod processes;
mod raw;
mod session;
mod xid;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::device::throttle_reasons;
use self::error::Calls;
pub(super) use self::session::INIT;
use self::session::Session;
use self::xid::XidWatcher;
use super::{GpuError, GpuSample, GpuSource, Gpus};
use crate::model::Withheld;

/// The library's name as the driver installs it, looked up by the dynamic loader.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// The GPUs of this machine by NVML.
///
/// The first sample loads the library. The drop of the source releases the library, its file descriptors, and the
/// thread that waits for XID errors (unless the thread hangs in the driver).
pub struct NvmlSource {
    library: PathBuf,
    /// Whether the library is that of the driver, and not one that somebody has named.
    is_of_driver: bool,
    session: Option<Session>,
    /// The number of closed sessions.
    closed_sessions: u64,
    xids: XidWatcher,
    /// UUIDs by index, empty if never read.
    uuids: Vec<String>,
}

impl NvmlSource {
    /// A source that loads this library, or [`DEFAULT_LIBRARY`]. The latter is not called as long as NVIDIA's kernel
    /// module is missing, since it would create a device node.
    pub fn new(library: Option<PathBuf>) -> Self {
        Self {
            is_of_driver: library.is_none(),
            library: library.unwrap_or_else(|| PathBuf::from(DEFAULT_LIBRARY)),
            session: None,
            closed_sessions: 0,
            xids: XidWatcher::default(),
            uuids: Vec::new(),
        }
    }

    /// Reads these GPUs, as [`GpuSource::sample`] reads all.
    ///
    /// # Errors
    /// As those of [`GpuSource::sample`].
    pub(super) fn sample_of(&mut self, which: &Gpus) -> Result<GpuSample, GpuError> {
        let sample = self.read(which);
        if sample.is_err() {
            self.close();
        }
        sample
    }

    /// Waits until XID errors are watched, at most for this time.
    pub(super) fn wait_for_xids(&self, patience: Duration) {
        self.xids.wait_for_subscription(patience);
    }

    /// The number of GPUs that the driver counted last, with those that were not read.
    pub(super) const fn counted(&self) -> usize {
        self.uuids.len()
    }

    fn read(&mut self, which: &Gpus) -> Result<GpuSample, GpuError> {
        let session = match &mut self.session {
            Some(session) => session,
            closed => closed.insert(Session::open(&self.library, self.is_of_driver)?),
        };
        let mut calls = Calls::default();
        let devices = session.devices(which, &mut self.uuids, &mut calls)?;
        if session.take_handles_changed() || !self.xids.is_watching() {
            self.xids.watch(session.nvml(), session.handles());
        }
        // A lost device has no values at all.
        let is_lost = |it: &Withheld| devices.iter().any(|device| device.lost && it.device == Some(device.index));
        calls.withheld.extend(self.xids.withheld().into_iter().filter(|it| !is_lost(it)));
        Ok(GpuSample {
            driver_version: session.driver_version(),
            session: self.closed_sessions,
            serves_one_machine: session.serves_one_machine() && !Path::new("/").join(session::WSL_DEVICE).exists(),
            devices,
            xid_events: self.xids.take(),
            withheld: calls.withheld,
        })
    }

    /// Releases NVML. The waiting thread ends first, since it keeps the library in use.
    fn close(&mut self) {
        self.xids.stop();
        self.closed_sessions += u64::from(self.session.take().is_some());
    }
}

impl GpuSource for NvmlSource {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        self.sample_of(&Gpus::all())
    }
}

impl Drop for NvmlSource {
    fn drop(&mut self) {
        self.close();
    }
}
