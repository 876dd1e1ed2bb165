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
        let deadlines = deadlines(Instant::now(), self.interval);
        for (_, host) in &mut self.hosts {
            host.ask_gpu();
        }
        for (_, host) in &mut self.hosts {
            host.ask_state(&deadlines);
        }
        for (_, host) in &mut self.hosts {
            host.ask_processes(&deadlines);
        }
        let publish = |(hostname, host): &mut (String, Host)| {
            let snapshot = host.finish(&deadlines);
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
}
