//! What the kernel says of members, and what their users confirmed.

use std::fs;
use std::path::PathBuf;

use genv_core::model::Member;
use genv_core::proc::Named;
use genv_core::state::{Confirmed, read_confirmed};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

/// Who can tell more of a host than its snapshot.
pub(crate) trait Witness {
    /// The effective uid of a process that lives now; absent if it ended, or cannot be seen.
    fn lives(&mut self, member: Member) -> Option<u32>;

    /// What commands changed in environments of this user: the user's own, root's, and the enforcer's.
    fn confirmed(&mut self, uid: u32) -> Vec<Confirmed>;

    /// What the environment variables of a process name; absent if it ended, or cannot be seen.
    fn names(&mut self, member: Member) -> Option<Named>;

    /// How long this machine has run, by a clock that no admin turns (`CLOCK_BOOTTIME`), if the host is this machine.
    fn uptime_seconds(&mut self) -> Option<f64> {
        None
    }
}

/// This machine.
#[derive(Debug)]
pub(crate) struct Here {
    /// genv's state directory.
    directory: PathBuf,
}

impl Here {
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }
}

impl Witness for Here {
    fn lives(&mut self, member: Member) -> Option<u32> {
        user_of(member)
    }

    fn confirmed(&mut self, uid: u32) -> Vec<Confirmed> {
        let mut writers = vec![uid, 0, geteuid().as_raw()];
        writers.sort_unstable();
        writers.dedup();
        let confirmed = writers
            .iter()
            .map(|&it| read_confirmed(&self.directory, it));
        confirmed.flatten().collect()
    }

    fn names(&mut self, member: Member) -> Option<Named> {
        let named = Named::by(member.pid);
        // What was read was of it if it lives still.
        user_of(member).map(|_| named)
    }

    fn uptime_seconds(&mut self) -> Option<f64> {
        let time = clock_gettime(ClockId::Boottime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds stay exact for 285 million years"
        )]
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        Some(seconds)
    }
}

/// The owner of `/proc/PID` is the effective user of the process, also of one that may not be traced (proc(5)).
fn user_of(member: Member) -> Option<u32> {
    let path = format!("/proc/{}", member.pid);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // As long as it is open it is of this process, whoever has the pid later.
    let process = openat(CWD, &path, flags, Mode::empty()).ok()?;
    let uid = fstat(&process).ok()?.st_uid;
    let stat = fs::read_to_string(format!("{path}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let state = fields.chars().next()?;
    let started: u64 = fields.split(' ').nth(19)?.parse().ok()?;
    let is_it = started == member.start_time_ticks && !matches!(state, 'Z' | 'X');
    is_it.then_some(uid)
}

/// What the kernel calls the time since the machine was started (random(4)).
pub(super) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
