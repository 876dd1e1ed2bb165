//! Pid namespaces (pid_namespaces(7)).
//!
//! A process has a pid in its own namespace and one in each namespace above. A mount of `/proc` belongs to one
//! namespace. The mount shows the processes of that namespace and of all namespaces below, by their pids in that
//! namespace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use foldhash::{HashMap, HashMapExt as _};
use rustix::fs::CWD;
use rustix::io::Errno;

use super::{Lineage, ProcReader, ProcessRequest, ProcessSource as _, files, stat};

/// The inode of the machine's namespace: `PROC_PID_INIT_INO` of the kernel's `include/linux/proc_ns.h`.
pub const INITIAL: u64 = 0xEFFF_FFFC;

/// No namespace: `/proc` shows the processes of another namespace than this program's.
pub(super) const NONE: u64 = 0;

/// The inode of this program's namespace.
pub fn own_pid_namespace() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| {
        let shown = fs::read_link("/proc/self").ok();
        let is_own = shown.is_some_and(|it| it.as_os_str() == std::process::id().to_string().as_str());
        let inode = fs::metadata("/proc/self/ns/pid").map(|it| it.ino());
        inode.ok().filter(|_| is_own).unwrap_or(NONE)
    })
}

/// Whether this program runs in the machine's namespace, which shows all processes.
pub fn in_initial_pid_namespace() -> bool {
    own_pid_namespace() == INITIAL
}

/// A living process that has a certain pid in one of its pid namespaces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PidHolder {
    /// The inode of that namespace, if this program may read it.
    pub(crate) namespace: Option<u64>,
    /// Its pid in this program's namespace.
    pub(crate) pid: u32,
    pub(crate) lineage: Lineage,
}

/// The processes of the pid namespaces below a table's namespace. The first question reads them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Below(OnceLock<Option<Holders>>);

/// The processes, by pid in their own namespaces.
type Holders = HashMap<u32, Vec<PidHolder>>;

impl Below {
    /// The processes that have this pid in their own namespaces; `None` if this program does not see all processes.
    pub(super) fn holders(&self, pid: u32) -> Option<&[PidHolder]> {
        let all = self.0.get_or_init(read_below).as_ref()?;
        Some(all.get(&pid).map_or(&[], Vec::as_slice))
    }

    #[cfg(test)]
    pub(crate) fn seen(holders: Option<Holders>) -> Self {
        Self(OnceLock::from(holders))
    }
}

fn read_below() -> Option<Holders> {
    // If `hidepid` hides other users' processes from this program, process 1 is hidden too.
    fs::metadata("/proc/1").ok()?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    for entry in fs::read_dir("/proc").ok()? {
        let name = entry.ok()?.file_name();
        let Some(pid) = name.to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let status = match files::read(CWD, format!("/proc/{pid}/status"), &mut buffer) {
            Ok(status) => status.content,
            Err(Errno::NOENT | Errno::SRCH) => continue,
            Err(_) => return None,
        };
        if let Some(inner_pid) = stat::inner_pid(status) {
            found.push((inner_pid, pid));
        }
    }
    let mut reader = ProcReader::new();
    let table =
        reader.read(&ProcessRequest { processes: Vec::new(), members: found.iter().map(|(_, pid)| *pid).collect() });
    let mut holders = Holders::new();
    for (inner_pid, pid) in found {
        if let Some(&lineage) = table.living(pid) {
            let namespace = fs::metadata(format!("/proc/{pid}/ns/pid"));
            holders.entry(inner_pid).or_default().push(PidHolder {
                namespace: namespace.ok().map(|it| it.ino()),
                pid,
                lineage: Lineage { uid: lineage.uid.map(|uid| table.owner(uid)), ..lineage },
            });
        }
    }
    Some(holders)
}
