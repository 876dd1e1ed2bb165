//! The thread that makes one publication an interval.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::host::{Deadlines, Host};
use crate::model::{HostSnapshot, Publication};
use crate::stream::Publisher;

/// The parts of an interval after which the GPU source, the state and the processes are not
/// waited for any more, and the longest waits. What is left of the interval is for assembly.
const PATIENCE: [(f64, Duration); 3] = [
    (0.5, Duration::from_secs(4)),
    (0.65, Duration::from_secs(5)),
    (0.8, Duration::from_secs(6)),
];

/// Publishes all hosts once an interval until nobody has a stream any more.
pub(super) fn run(hosts: &mut [(String, Host)], interval: Duration, publisher: &Publisher) {
    let began = Instant::now();
    let mut sequence = 0;
    while !publisher.is_closed() {
        sequence += 1;
        publisher.publish(Publication {
            sequence,
            hosts: cycle(hosts, interval),
        });
        thread::sleep(until_next(began.elapsed(), interval));
    }
}

fn cycle(hosts: &mut [(String, Host)], interval: Duration) -> Vec<HostSnapshot> {
    let deadlines = deadlines(Instant::now(), interval);
    for (_, host) in &mut *hosts {
        host.ask_gpu();
    }
    for (_, host) in &mut *hosts {
        host.ask_state(&deadlines);
    }
    for (_, host) in &mut *hosts {
        host.ask_processes(&deadlines);
    }
    hosts
        .iter_mut()
        .map(|(hostname, host)| {
            let snapshot = host.finish(&deadlines);
            HostSnapshot {
                hostname: hostname.clone(),
                up: true,
                received_timestamp_seconds: Some(snapshot.timestamp_seconds),
                snapshot: Some(Arc::new(snapshot)),
            }
        })
        .collect()
}

fn deadlines(now: Instant, interval: Duration) -> Deadlines {
    let [gpu, state, processes] =
        PATIENCE.map(|(part, longest)| now + interval.mul_f64(part).min(longest));
    Deadlines {
        gpu,
        state,
        processes,
    }
}

/// How long to sleep until the next multiple of the interval; those that were missed are skipped.
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
