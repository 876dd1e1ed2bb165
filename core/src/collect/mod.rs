//! One snapshot from the three sources, every interval.
//!
//! Each source lives on a thread of its own (`worker`), because a call into a driver, a network file system or a user
//! database may hang. The `supervisor` asks all sources each interval, waits for a part of the interval, and publishes
//! the values that it has. The last values of a `host`'s sources are valid up to the maximum age; the `view` makes a
//! snapshot of them.

mod clock;
mod contradictions;
mod contradictory;
mod devices;
mod distrusted;
mod environments;
mod host;
mod lingering;
mod polled;
mod processes;
mod supervisor;
#[cfg(test)]
mod tests;
mod unexplained;
mod view;
mod withheld;
mod worker;

use std::time::Duration;
use std::{io, thread};

use crate::gpu::GpuSource;
use crate::proc::ProcessSource;
use crate::state::StateSource;
use crate::stream::{SnapshotStream, channel};
pub use clock::Clock;
use clock::Clocks;
pub use contradictions::{occupation, processes_on, seems_unused};
pub use polled::{PollReport, PollTime, PolledHost};
pub use supervisor::{Collection, once};
pub use withheld::{withheld_values, withhold};

/// The sources of one host.
pub struct HostSources {
    /// Name of the host.
    pub hostname: String,
    /// Its GPUs.
    pub gpu: Box<dyn GpuSource>,
    /// Its processes and users.
    pub processes: Box<dyn ProcessSource>,
    /// Its environments.
    pub state: Box<dyn StateSource>,
}

/// The options of a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectOptions {
    /// Time between publications.
    pub interval: Duration,
    /// Age beyond which values are withdrawn.
    pub max_age: Duration,
    /// Utilization, 0–1, from which a user's processes make held device time busy.
    pub busy_above: f64,
    /// The time for which a high utilization without a process and without memory in use makes a device contradictory.
    pub contradictory_after: Duration,
    /// Collectors that are switched on.
    pub collectors: Collectors,
}

/// The collectors that run. A collector that is off is absent from the snapshot, with all its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collectors {
    /// Devices.
    pub gpu: bool,
    /// Processes that use a device.
    pub processes: bool,
    /// Environments and attachments.
    pub state: bool,
}

impl Default for CollectOptions {
    /// The defaults of the programs.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            max_age: Duration::from_secs(30),
            busy_above: 0.05,
            contradictory_after: Duration::from_secs(1800),
            collectors: Collectors { gpu: true, processes: true, state: true },
        }
    }
}

impl CollectOptions {
    /// The default options for this interval: values stand for three intervals.
    pub fn every(interval: Duration) -> Self {
        Self { interval, max_age: interval * 3, ..Self::default() }
    }
}

/// Starts collecting and publishing all hosts together, once an interval from now on.
///
/// The collection ends when the last stream made from the returned one is dropped.
///
/// # Errors
/// A thread could not be started.
pub fn spawn(hosts: Vec<HostSources>, options: CollectOptions) -> io::Result<SnapshotStream> {
    let collection = Collection::start(hosts, &options, &Clocks::of_the_system())?;
    let (publisher, stream) = channel();
    thread::Builder::new().name("collect".to_owned()).spawn(move || supervisor::run(collection, &publisher))?;
    Ok(stream)
}
