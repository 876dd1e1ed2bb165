//! The thread that makes one publication an interval.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::clock::{Clock, Clocks};
use super::host::{Deadlines, Host};
use super::{CollectOptions, HostSources};
use crate::model::{HostSnapshot, Publication};
use crate::stream::Publisher;

/// For the GPU source, the state and the processes: the part of an interval after which the wait ends, and the longest
/// wait. The rest of the interval is for assembly.
const PATIENCE: [(f64, Duration); 3] =
    [(0.5, Duration::from_secs(4)), (0.65, Duration::from_secs(5)), (0.8, Duration::from_secs(6))];

/// In a single collection, the wait for the state after that for the GPUs, and the wait for the processes after that.
const STEP: Duration = Duration::from_secs(1);

/// The hosts of a collection with their threads. The caller starts each cycle.
pub struct Collection {
    hosts: Vec<(String, Host)>,
    interval: Duration,
    sequence: u64,
}

impl Collection {
    /// Starts the threads of all hosts. `clock` gives the time and never goes back. With a clock that a test sets,
    /// simulated hosts live through weeks in seconds. The wait for a source that hangs takes real time.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn by_clock(hosts: Vec<HostSources>, options: &CollectOptions, clock: Clock) -> io::Result<Self> {
        Self::start(hosts, options, &Clocks::by(clock))
    }

    pub(super) fn start(hosts: Vec<HostSources>, options: &CollectOptions, clocks: &Clocks) -> io::Result<Self> {
        let start = |sources: HostSources| {
            let hostname = sources.hostname.clone();
            Ok((hostname, Host::start(sources, options, clocks)?))
        };
        Ok(Self {
            hosts: hosts.into_iter().map(start).collect::<io::Result<_>>()?,
            interval: options.interval,
            sequence: 0,
        })
    }

    /// Asks all sources of all hosts now.
    pub fn cycle(&mut self) -> Publication {
        self.cycle_until(&deadlines(Instant::now(), self.interval))
    }

    fn cycle_until(&mut self, deadlines: &Deadlines) -> Publication {
        for (_, host) in &mut self.hosts {
            host.ask_gpu();
        }
        for (_, host) in &mut self.hosts {
            host.ask_state(deadlines);
        }
        for (_, host) in &mut self.hosts {
            host.ask_processes(deadlines);
        }
        let publish = |(hostname, host): &mut (String, Host)| {
            let snapshot = host.finish(deadlines);
            HostSnapshot {
                hostname: hostname.clone(),
                up: true,
                received_timestamp_seconds: Some(snapshot.timestamp_seconds),
                snapshot: Some(Arc::new(snapshot)),
                ssh: None,
            }
        };
        self.sequence += 1;
        Publication { sequence: self.sequence, hosts: self.hosts.iter_mut().map(publish).collect() }
    }
}

/// Collects once. Waits for GPUs for at most this time; the collector `gpu` of their host has the reason if they do not
/// answer.
///
/// # Errors
/// A thread could not be started.
pub fn once(hosts: Vec<HostSources>, patience: Duration) -> io::Result<Publication> {
    // No value becomes too old meanwhile.
    let interval = patience + 4 * STEP;
    let options = CollectOptions { interval, max_age: interval, ..CollectOptions::default() };
    let mut collection = Collection::start(hosts, &options, &Clocks::of_the_system())?;
    Ok(collection.cycle_until(&deadlines_of_one(Instant::now(), patience)))
}

/// Publishes all hosts once an interval until the last stream is dropped.
pub(super) fn run(mut collection: Collection, publisher: &Publisher) {
    let began = Instant::now();
    while !publisher.is_closed() {
        publisher.publish(collection.cycle());
        thread::sleep(until_next(began.elapsed(), collection.interval));
    }
}

fn deadlines(now: Instant, interval: Duration) -> Deadlines {
    let [gpu, state, processes] = PATIENCE.map(|(part, longest)| now + interval.mul_f64(part).min(longest));
    Deadlines { gpu, state, processes }
}

/// The deadlines of a single collection.
fn deadlines_of_one(now: Instant, patience: Duration) -> Deadlines {
    let gpu = now + patience;
    Deadlines { gpu, state: gpu + STEP, processes: gpu + 2 * STEP }
}

/// The time until the next multiple of the interval. Missed multiples are skipped.
fn until_next(elapsed: Duration, interval: Duration) -> Duration {
    let interval_nanos = interval.as_nanos().max(1);
    let left = interval_nanos - elapsed.as_nanos() % interval_nanos;
    Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_begin_at_multiples_of_the_interval_and_missed_ones_are_skipped() {
        let seconds = Duration::from_secs_f64;
        let interval = seconds(10.0);
        assert_eq!(until_next(seconds(0.25), interval), seconds(9.75));
        assert_eq!(until_next(seconds(10.5), interval), seconds(9.5));
        assert_eq!(until_next(seconds(47.0), interval), seconds(3.0));
        assert_eq!(until_next(seconds(20.0), interval), seconds(10.0));
    }

    #[test]
    fn every_source_is_given_up_in_time_for_the_publication() {
        let now = Instant::now();
        for interval in [0.1, 1.0, 10.0, 3600.0].map(Duration::from_secs_f64) {
            let deadlines = deadlines(now, interval);
            assert!(now < deadlines.gpu);
            assert!(deadlines.gpu < deadlines.state);
            assert!(deadlines.state < deadlines.processes);
            assert!(deadlines.processes < now + interval.mul_f64(0.9));
        }
    }

    #[test]
    fn a_single_collection_waits_for_the_gpus_as_long_as_its_caller_does() {
        let now = Instant::now();
        for patience in [0.0, 0.1, 30.0].map(Duration::from_secs_f64) {
            let deadlines = deadlines_of_one(now, patience);
            assert_eq!(deadlines.gpu, now + patience);
            assert!(deadlines.gpu < deadlines.state && deadlines.state < deadlines.processes);
        }
    }
}
