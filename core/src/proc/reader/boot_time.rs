//! The boot time, from which the kernel counts the start of a process.

use std::os::fd::BorrowedFd;

use rustix::time::{ClockId, clock_gettime};

use crate::model::now_seconds;
use crate::proc::files::read;
use crate::proc::stat;

/// `btime` is in whole seconds.
const BTIME_TOLERANCE_SECONDS: f64 = 2.0;

/// The boot time, Unix time. It is read again when the clock was set.
#[derive(Debug, Default)]
pub(super) struct BootTime {
    last: Option<LastRead>,
}

#[derive(Clone, Copy, Debug)]
struct LastRead {
    seconds: f64,
    /// The difference of the clocks at the time of the read. It changes only when the clock is set.
    clock_seconds: f64,
}

impl BootTime {
    /// `btime` of `/proc/stat`. The difference of the clocks if `btime` cannot be read, or if it differs from the clocks:
    /// then it is the boot time of a container, as lxcfs shows it. `live` is whether `root` is this kernel's `/proc`.
    pub(super) fn seconds(&mut self, root: BorrowedFd<'_>, live: bool, buffer: &mut Vec<u8>) -> f64 {
        let clock_seconds = now_seconds() - uptime_seconds();
        if let Some(last) = self.last
            && live
            && (last.clock_seconds - clock_seconds).abs() < 0.5
        {
            return last.seconds;
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds stay exact for 285 million years")]
        let seconds = read(root, c"stat", buffer)
            .ok()
            .and_then(|stat| stat::boot_time_seconds(stat.content))
            .map(|btime| btime as f64)
            .filter(|btime| !live || (btime - clock_seconds).abs() < BTIME_TOLERANCE_SECONDS)
            .unwrap_or(clock_seconds);
        self.last = Some(LastRead { seconds, clock_seconds });
        seconds
    }
}

fn uptime_seconds() -> f64 {
    let time = clock_gettime(ClockId::Boottime);
    #[expect(clippy::cast_precision_loss, reason = "half a second is all that matters")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}
