//! Start times, parents and users: of members, and of all ancestors of a process.

use std::fmt::Write;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use rustix::fs::{AtFlags, Stat, statat};

use super::files::{Absence, Root, absence, read, read_stat};
use super::reader::CYCLES_BETWEEN_STATS;
use super::{Lineage, ProcessTable, stat};

/// Reads lineages, and keeps those of the last cycle.
///
/// The kernel gives the directory of each process an inode of its own, so that the same inode in the next cycle means
/// the same process; its read costs a seventh of the read of `stat`. A start time never changes, and a parent changes
/// only when the parent ends: while both inodes stay, the parent stays. A parent that is a zombie keeps its inode: then
/// the child's `stat` shows the change, which is read in one of [`CYCLES_BETWEEN_STATS`] cycles.
#[derive(Debug)]
pub(super) struct Lineages {
    live: bool,
    remembered: HashMap<u32, Remembered>,
    /// The processes whose `stat` was read in this cycle.
    read: HashSet<u32>,
    /// The processes in `read` that the last cycle did not see. A reused pid is among them.
    new: HashSet<u32>,
    /// The processes whose ancestors were followed in this cycle: each once, so that a loop ends.
    followed: HashSet<u32>,
    cycle: u32,
    path: String,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    inode: u64,
    start_time_ticks: u64,
    parent: u32,
    ended: bool,
}

impl Lineages {
    /// Lineages of a folder that is not the kernel's `/proc` are not kept.
    pub(super) fn new(live: bool) -> Self {
        Self {
            live,
            remembered: HashMap::new(),
            read: HashSet::new(),
            new: HashSet::new(),
            followed: HashSet::new(),
            cycle: 0,
            path: String::new(),
            buffer: vec![0; 4096],
        }
    }

    /// Notes the lineage of a process whose `stat` was read elsewhere in this cycle.
    pub(super) fn note(&mut self, pid: u32, inode: u64, lineage: Lineage, ended: bool, table: &mut ProcessTable) {
        let known = self.live.then_some(Remembered {
            inode,
            start_time_ticks: lineage.start_time_ticks,
            parent: lineage.parent,
            ended,
        });
        self.remember(pid, known);
        insert(table, pid, lineage, ended);
    }

    /// Keeps the `stat` of a process in this cycle, if an inode identifies the process.
    fn remember(&mut self, pid: u32, known: Option<Remembered>) {
        self.read.insert(pid);
        let before = known.and_then(|known| self.remembered.insert(pid, known));
        let process = |it: Remembered| (it.inode, it.start_time_ticks);
        if before.is_none() || before.map(process) != known.map(process) {
            self.new.insert(pid);
        }
    }

    /// The lineage of the process with this directory, if it is the known process.
    pub(super) fn remembered(&self, root: &Root<'_>, pid: u32, found: &Stat) -> Option<Lineage> {
        let known = self.remembered.get(&pid)?;
        (known.inode == found.st_ino).then(|| root.lineage(known.start_time_ticks, known.parent, Some(found.st_uid)))
    }

    /// Adds all ancestors of a process whose lineage the table has.
    pub(super) fn add_ancestors(&mut self, root: &Root<'_>, pid: u32, table: &mut ProcessTable) {
        let mut child = pid;
        while let Some(&Lineage { parent, .. }) = table.lineage.get(&child)
            && parent != 0
        {
            self.add(root, parent, table);
            let known = table.lineage.contains_key(&parent);
            let stayed = known && !self.new.contains(&parent);
            if !stayed && !self.read.contains(&child) {
                // The known parent may have ended, and the child may have another parent.
                self.remembered.remove(&child);
                table.lineage.remove(&child);
                self.add(root, child, table);
            } else if known && self.followed.insert(parent) {
                child = parent;
            } else {
                return;
            }
        }
    }

    /// Adds a process to the table's lineages, or to its hidden processes.
    pub(super) fn add(&mut self, root: &Root<'_>, pid: u32, table: &mut ProcessTable) {
        if table.lineage.contains_key(&pid) {
            return;
        }
        match self.lineage(root, pid) {
            Ok((lineage, ended)) => insert(table, pid, lineage, ended),
            Err(Absence::Hidden) => {
                table.hidden.insert(pid);
            }
            Err(Absence::Vanished) => {}
        }
    }

    /// Forgets processes that this cycle did not see.
    pub(super) fn end_cycle(&mut self, table: &ProcessTable) {
        self.remembered.retain(|pid, _| table.lineage.contains_key(pid));
        self.read.clear();
        self.new.clear();
        self.followed.clear();
        self.cycle = self.cycle.wrapping_add(1);
    }

    fn lineage(&mut self, root: &Root<'_>, pid: u32) -> Result<(Lineage, bool), Absence> {
        self.path.clear();
        write!(self.path, "{pid}").expect("writing to a string never fails");
        // Read before `stat`: if the pid is reused in between, the inode fits neither process.
        let found = if self.live { statat(root.directory, self.path.as_str(), AtFlags::empty()).ok() } else { None };
        // An ended process keeps its directory until its parent waits for it: the `stat` of each is read in some
        // cycles.
        let is_turn = pid % CYCLES_BETWEEN_STATS == self.cycle % CYCLES_BETWEEN_STATS;
        if let Some(found) = found.filter(|_| !is_turn)
            && let Some(lineage) = self.remembered(root, pid, &found)
        {
            let ended = self.remembered.get(&pid).is_some_and(|known| known.ended);
            return Ok((lineage, ended));
        }
        let directory = self.path.len();
        self.path.push_str("/stat");
        let stat = read_stat(root.directory, self.path.as_str(), &mut self.buffer)
            .map_err(|errno| absence(self.live, pid, errno))?;
        let (start_time_ticks, parent) = (stat.start_time_ticks, stat.parent);
        let ended = stat.has_ended();
        let known = found.map(|found| Remembered { inode: found.st_ino, start_time_ticks, parent, ended });
        self.remember(pid, known);
        let uid = if let Some(found) = found {
            Some(found.st_uid)
        } else {
            self.path.truncate(directory);
            self.path.push_str("/status");
            let status = read(root.directory, self.path.as_str(), &mut self.buffer);
            status.ok().and_then(|status| stat::uids(status.content)).map(|uids| uids.effective)
        };
        Ok((root.lineage(start_time_ticks, parent, uid), ended))
    }
}

fn insert(table: &mut ProcessTable, pid: u32, lineage: Lineage, ended: bool) {
    table.lineage.insert(pid, lineage);
    if ended {
        table.zombies.insert(pid);
    }
}
