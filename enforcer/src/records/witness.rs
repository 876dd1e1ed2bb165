//! What the kernel says of members, and what their users confirmed.

use std::fs;
use std::path::PathBuf;

use genv_core::model::{Confirmed, Member};
use genv_core::proc::Named;
use genv_core::state::read_confirmed;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

/// Who can tell more of a host than its snapshot.
pub(crate) trait Witness {
    /// The user of a living process; absent if the process has ended, is hidden, or runs with the rights of a user who
    /// did not start it.
    fn lives(&mut self, member: Member) -> Option<u32>;

    /// What commands changed in environments of this user: the user's own, root's, and the enforcer's.
    fn confirmed(&mut self, uid: u32) -> Vec<Confirmed>;

    /// The environment variables of a process: empty if the process has ended or is hidden. Absent if they are not
    /// known yet.
    fn names(&mut self, member: Member) -> Option<Named>;

    /// Whether a process and its parent are root's alone, and the parent is not the first process. A setuid program
    /// that another user started does not count, though all its uids may be root's: while sudo waits for a password, it
    /// has its caller's variables.
    fn is_started_by_root(&mut self, _member: Member) -> bool {
        false
    }

    /// Whether a process of root runs in a terminal.
    fn is_in_terminal(&mut self, _member: Member) -> bool {
        false
    }

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
        let confirmed = writers.iter().map(|&it| read_confirmed(&self.directory, it));
        confirmed.flatten().collect()
    }

    fn names(&mut self, member: Member) -> Option<Named> {
        let named = Named::by(member.pid)?;
        // What was read was of it if it lives still.
        Some(user_of(member).map_or_else(Named::default, |_| named))
    }

    fn is_started_by_root(&mut self, member: Member) -> bool {
        let parent = stat_field(member.pid, 1).and_then(|it| it.parse::<u32>().ok());
        // The start time is read last: it shows that all values belong to this process.
        parent.is_some_and(|parent| parent > 1 && uid_of(parent) == Some(0)) && user_of(member) == Some(0)
    }

    fn is_in_terminal(&mut self, member: Member) -> bool {
        let terminal = stat_field(member.pid, 4).and_then(|it| it.parse::<i32>().ok());
        terminal.is_some_and(|it| it != 0)
    }

    fn uptime_seconds(&mut self) -> Option<f64> {
        let time = clock_gettime(ClockId::Boottime);
        #[expect(clippy::cast_precision_loss, reason = "seconds stay exact for 285 million years")]
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        Some(seconds)
    }
}

fn user_of(member: Member) -> Option<u32> {
    let uid = uid_of(member.pid)?;
    // The start time is read last: it shows that the uid belongs to this process.
    let started: u64 = stat_field(member.pid, 19)?.parse().ok()?;
    let state = stat_field(member.pid, 0)?;
    let is_it = started == member.start_time_ticks && !matches!(state.as_str(), "Z" | "X");
    is_it.then_some(uid)
}

/// The user of a process, if its real, effective, saved and file system uids are equal.
fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut uids = uids.split_ascii_whitespace();
    let first = uids.next()?;
    uids.all(|uid| uid == first).then(|| first.parse().ok())?
}

/// A field of `/proc/PID/stat`. Number 0 is the state of the process.
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(number).map(str::to_owned)
}

/// What the kernel calls the time since the machine was started (random(4)).
pub(super) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
