//! The clocks of a collection.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// A clock: the system's, or the one of a simulation or a test.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Now, by two clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Seconds since the collection began, by a clock that never goes back.
    pub(super) seconds: f64,
    /// Unix time.
    pub(super) timestamp_seconds: f64,
}

/// The clocks of a collection.
#[derive(Clone)]
pub(super) struct Clocks(Arc<dyn Fn() -> Moment + Send + Sync>);

impl Clocks {
    /// The clocks of the system; the collection begins now.
    pub(super) fn of_the_system() -> Self {
        let began = Instant::now();
        Self(Arc::new(move || Moment {
            seconds: began.elapsed().as_secs_f64(),
            timestamp_seconds: unix_seconds(SystemTime::now()),
        }))
    }

    /// Both times from one clock that never goes back; the collection begins now.
    pub(super) fn by(clock: Clock) -> Self {
        let began = clock();
        Self(Arc::new(move || {
            let now = clock();
            Moment {
                seconds: now.duration_since(began).unwrap_or_default().as_secs_f64(),
                timestamp_seconds: unix_seconds(now),
            }
        }))
    }

    pub(super) fn now(&self) -> Moment {
        (self.0)()
    }
}

/// Unix time; a clock set before 1970 counts as 1970.
fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
