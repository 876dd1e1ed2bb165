//! The kernel's own process table, read on the caller's thread.

mod boot_time;
mod identity;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use boot_time::BootTime;
use identity::Identity;

use super::cgroup;
use super::files::{Absence, Content, Root, absence, read, read_from, read_stat};
use super::hanging::{ReadGuard, Watch};
use super::lineage::Lineages;
use super::subordinate::Subordinates;
use super::usernames::Usernames;
use super::{
    Claim, Lineage, MissingEvidence, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource, ProcessTable,
    UserNamespace, environ, own_pid_namespace, stat,
};
use crate::model::Withheld;

/// The number of cycles in which the `stat` of each process is read once: this read costs as much as all other reads of
/// a process. The command name may be out of date by as many cycles. The evidence of attribution is read in every
/// cycle, or known to be unchanged.
pub(super) const CYCLES_BETWEEN_STATS: u32 = 8;

/// The most processes with open files, whatever the limit of open files.
const MOST_OPEN: usize = 4096;

/// The process table of the kernel.
pub(super) const PROC: &str = "/proc";

/// Reads `/proc`.
///
/// All files of a process are opened relative to its directory: if the process ends in between, the read fails, even if
/// another process has the pid by then. The files stay open from one cycle to the next, for as many processes as the
/// limit of open files allows. The read of an environ can hang: a [`Watch`] guards it.
#[derive(Debug)]
pub(super) struct DirectReader {
    root: PathBuf,
    /// Whether `root` is the `/proc` of this kernel, rather than a folder with the same layout.
    live: bool,
    ticks_per_second: f64,
    namespace: &'static UserNamespace,
    boot_time: BootTime,
    buffer: Vec<u8>,
    path: String,
    /// The processes of the last cycle, by pid and start time.
    cache: HashMap<(u32, u64), Identity>,
    /// By pid, for as many processes of the last cycle as the limit of open files allows.
    open: HashMap<u32, OpenFiles>,
    most_open: usize,
    lineages: Lineages,
    cycle: u32,
    usernames: Usernames,
    subordinates: Subordinates,
    /// The container of this program.
    own_container_id: Option<String>,
    watch: Option<Arc<Watch>>,
}

/// The open files of a process: a read of an open file costs a third of opening it again.
///
/// An open environ belongs to one executed program: it reads as empty once the process has ended or executed another
/// program. If the process shares its memory with a continuing process (vfork(2)), the old environ is read until the
/// next read of `stat`.
#[derive(Debug)]
struct OpenFiles {
    directory: OwnedFd,
    environ: OwnedFd,
}

/// The number of processes with open files: two files of each, in at most half of the limit of open files.
fn most_open() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(MOST_OPEN, |files| usize::try_from(files / 4).map_or(MOST_OPEN, |most| most.min(MOST_OPEN)))
}

impl DirectReader {
    /// A reader of `/proc`, or of another directory that is laid out like it.
    pub(super) fn with_root(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        #[expect(clippy::cast_precision_loss, reason = "clock ticks per second are 100, or 1024 at most")]
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let live = root == Path::new(PROC);
        Self {
            live,
            root,
            ticks_per_second,
            namespace: if live { UserNamespace::own() } else { &UserNamespace::INITIAL },
            boot_time: BootTime::default(),
            buffer: vec![0; 16 * 1024],
            path: String::new(),
            cache: HashMap::new(),
            open: HashMap::new(),
            most_open: most_open(),
            lineages: Lineages::new(live),
            cycle: 0,
            usernames: Usernames::default(),
            subordinates: Subordinates::default(),
            own_container_id: live.then(own_container_id).flatten(),
            watch: None,
        }
    }

    /// Guards all further reads by this watch.
    pub(super) fn guard_by(&mut self, watch: &Arc<Watch>) {
        self.watch = Some(Arc::clone(watch));
    }

    /// Reads a process, and adds its lineage to the table.
    fn process(&mut self, root: &Root<'_>, pid: u32, table: &mut ProcessTable) -> Result<ProcessFacts, Absence> {
        if let Some((lineage, facts)) = self.read_open(root, pid) {
            table.lineage.insert(pid, lineage);
            return Ok(facts);
        }
        self.open.remove(&pid);
        self.path.clear();
        write!(self.path, "{pid}").expect("writing to a string never fails");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(root.directory, self.path.as_str(), flags, Mode::empty())
            .map_err(|errno| absence(self.live, pid, errno))?;
        let directory = opened.as_fd();

        let found = fstat(directory).map_err(|errno| absence(self.live, pid, errno))?;
        if let Some((lineage, identity)) = self.remembered(root, pid, &found) {
            let (claim, environ) = self.claim(directory, pid, table)?;
            self.keep_open(pid, opened, environ);
            table.lineage.insert(pid, lineage);
            return Ok(identity.facts(lineage, claim));
        }
        let stat = read_stat(directory, c"stat", &mut self.buffer).map_err(|errno| absence(self.live, pid, errno))?;
        let comm = String::from_utf8_lossy(stat.comm).into_owned();
        let ended = stat.has_ended();
        let owner = self.live.then_some(found.st_uid);
        let mut lineage = root.lineage(stat.start_time_ticks, stat.parent, owner);
        let identity = self.identity(directory, pid, lineage, found.st_uid, comm)?;
        if !self.live {
            lineage.uid = identity.uids.map(|uids| uids.effective);
        }
        let (claim, environ) =
            if ended { (Claim::Missing(MissingEvidence::Zombie), None) } else { self.claim(directory, pid, table)? };
        self.keep_open(pid, opened, environ);
        self.lineages.note(pid, found.st_ino, lineage, ended, table);
        Ok(identity.facts(lineage, claim))
    }

    /// Reads a process through its open files, if it is the known process.
    fn read_open(&mut self, root: &Root<'_>, pid: u32) -> Option<(Lineage, ProcessFacts)> {
        let open = self.open.get(&pid)?;
        let found = fstat(&open.directory).ok()?;
        let (lineage, identity) = self.remembered(root, pid, &found)?;
        let reading = WatchedRead::begin(self.watch.as_ref(), pid)?;
        let environ = read_from(&open.environ, &mut self.buffer).ok()?;
        drop(reading);
        let claim = (!environ.content.is_empty()).then(|| claim(&environ))?;
        Some((lineage, identity.facts(lineage, claim)))
    }

    /// The known facts of the process with this directory, unless its `stat` is to be read in this cycle.
    fn remembered(&self, root: &Root<'_>, pid: u32, found: &Stat) -> Option<(Lineage, Identity)> {
        if pid % CYCLES_BETWEEN_STATS == self.cycle % CYCLES_BETWEEN_STATS {
            return None;
        }
        let lineage = self.lineages.remembered(root, pid, found)?;
        let known = self.cache.get(&(pid, lineage.start_time_ticks))?;
        known.is_valid_for(found.st_uid).then(|| (lineage, known.clone()))
    }

    fn keep_open(&mut self, pid: u32, directory: OwnedFd, environ: Option<OwnedFd>) {
        if let Some(environ) = environ
            && self.live
            && self.open.len() < self.most_open
        {
            self.open.insert(pid, OpenFiles { directory, environ });
        }
    }

    /// The identity of a process. The read of `status` costs more than all others together, so it happens only after a
    /// change of the owner.
    fn identity(
        &mut self,
        directory: BorrowedFd<'_>,
        pid: u32,
        lineage: Lineage,
        owner: u32,
        comm: String,
    ) -> Result<Identity, Absence> {
        let process = (pid, lineage.start_time_ticks);
        let known = self.cache.get(&process);
        let (uids, container) = match known {
            Some(known) if known.is_valid_for(owner) && self.live => (known.uids, known.container.clone()),
            _ => {
                let uids = match read(directory, c"status", &mut self.buffer) {
                    Ok(status) => stat::uids(status.content).and_then(|uids| uids.translated(self.namespace)),
                    Err(Errno::NOENT | Errno::SRCH) => return Err(Absence::Vanished),
                    Err(_) => None,
                };
                // A kernel without cgroups has no such file, and no containers. The container of this program counts as
                // the machine, with several users and a root of its own.
                let container = read(directory, c"cgroup", &mut self.buffer)
                    .ok()
                    .and_then(|cgroup| cgroup::container(cgroup.content))
                    .filter(|found| self.own_container_id.as_ref() != Some(&found.id));
                (uids, container)
            }
        };
        let identity = Identity { owner, uids, container, comm };
        self.cache.insert(process, identity.clone());
        Ok(identity)
    }

    /// The claim of a process, and its open environ if it can be read.
    fn claim(
        &mut self,
        directory: BorrowedFd<'_>,
        pid: u32,
        table: &mut ProcessTable,
    ) -> Result<(Claim, Option<OwnedFd>), Absence> {
        let Some(reading) = WatchedRead::begin(self.watch.as_ref(), pid) else {
            table.unread.insert(pid);
            return Ok((Claim::Missing(MissingEvidence::EnvironUnreadable), None));
        };
        let environ = environ::read_from_directory(directory, &mut self.buffer);
        drop(reading);
        let missing = match environ {
            Ok((_, environ)) if environ.content.is_empty() => None,
            Ok((file, environ)) => return Ok((claim(&environ), Some(file))),
            Err(errno @ (Errno::NOENT | Errno::SRCH)) => Some(errno),
            Err(_) => return Ok((Claim::Missing(MissingEvidence::EnvironUnreadable), None)),
        };
        // The process has ended, or is about to end.
        let stat = read_stat(directory, c"stat", &mut self.buffer)?;
        match missing {
            _ if stat.has_ended() => Ok((Claim::Missing(MissingEvidence::Zombie), None)),
            None => Ok((Claim::Missing(MissingEvidence::EnvironEmpty), None)),
            Some(errno) => Err(Absence::from(errno)),
        }
    }

    /// Finds the owners of the subordinate uids of the table.
    fn find_owners(&mut self, table: &mut ProcessTable) {
        self.subordinates.refresh();
        if !self.live || self.subordinates.is_empty() {
            return;
        }
        let of_processes = table.processes.values().filter_map(|read| match read {
            ProcessRead::Present(facts) => Some([facts.uid, facts.real_uid]),
            ProcessRead::Vanished | ProcessRead::Unreadable => None,
        });
        let of_lineage = table.lineage.values().map(|lineage| lineage.uid);
        let uids: HashSet<u32> = of_processes.flatten().chain(of_lineage).flatten().collect();
        for uid in uids {
            let owner = self.owner(uid);
            if owner != uid {
                table.owners.insert(uid, owner);
            } else if self.subordinates.may_belong_to_any_user(uid) && !self.usernames.is_named(uid) {
                table.ownerless.insert(uid);
            }
        }
    }

    fn fill(&mut self, root: &Root<'_>, request: &ProcessRequest, table: &mut ProcessTable) {
        for &pid in &request.processes {
            if table.processes.contains_key(&pid) {
                continue;
            }
            let read = match self.process(root, pid, table) {
                Ok(facts) => ProcessRead::Present(facts),
                Err(Absence::Vanished) => ProcessRead::Vanished,
                Err(Absence::Hidden) => ProcessRead::Unreadable,
            };
            table.processes.insert(pid, read);
        }
        for &pid in &request.processes {
            self.lineages.add_ancestors(root, pid, table);
        }
        // Members come last: their ancestors are not wanted, and must not end the walks above.
        for &pid in &request.members {
            self.lineages.add(root, pid, table);
        }
        self.lineages.end_cycle(table);
    }
}

impl ProcessSource for DirectReader {
    /// Reads `/proc` once. Without a `/proc`, every process is unreadable and every member hidden.
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let mut table = ProcessTable { pid_namespace: self.live.then(own_pid_namespace), ..ProcessTable::default() };
        table.processes.reserve(request.processes.len());
        table.lineage.reserve(request.processes.len() + request.members.len());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = match openat(CWD, self.root.as_path(), flags, Mode::empty()) {
            Ok(root) => root,
            Err(errno) => {
                table
                    .withheld
                    .push(Withheld::of_host(Withheld::PROCESSES, format!("{}: {errno}", self.root.display())));
                let unreadable = |&pid: &u32| (pid, ProcessRead::Unreadable);
                table.processes = request.processes.iter().map(unreadable).collect();
                table.hidden = request.members.iter().copied().collect();
                return table;
            }
        };
        let root = Root {
            directory: root.as_fd(),
            boot_time_seconds: self.boot_time.seconds(root.as_fd(), self.live, &mut self.buffer),
            ticks_per_second: self.ticks_per_second,
            namespace: self.namespace,
        };
        self.cycle = self.cycle.wrapping_add(1);
        if self.live {
            table.withheld.extend(hidden(&root));
        }
        self.fill(&root, request, &mut table);
        self.find_owners(&mut table);
        let present: HashSet<(u32, u64)> = table
            .processes
            .iter()
            .filter_map(|(&pid, read)| match read {
                ProcessRead::Present(facts) => Some((pid, facts.start_time_ticks)),
                ProcessRead::Vanished | ProcessRead::Unreadable => None,
            })
            .collect();
        self.cache.retain(|process, _| present.contains(process));
        self.open.retain(|pid, _| table.processes.contains_key(pid));
        table
    }

    fn can_act(&mut self, pid: u32) -> bool {
        let path = self.root.join(format!("{pid}/stat"));
        match read_stat(CWD, path, &mut self.buffer) {
            Ok(stat) => !stat.has_ended() && !stat.is_stopped(),
            Err(errno) => matches!(absence(self.live, pid, errno), Absence::Hidden),
        }
    }

    fn owner(&mut self, uid: u32) -> u32 {
        if self.cycle == 0 {
            self.subordinates.refresh();
        }
        let uid_of = |name: &str| uzers::get_user_by_name(name).map(|user| user.uid());
        match self.subordinates.owner(uid, uid_of) {
            // A uid with an account belongs to the account, whatever the ranges are.
            Some(owner) if !self.usernames.is_named(uid) => owner,
            _ => uid,
        }
    }

    fn username(&mut self, uid: u32) -> String {
        self.usernames.username(uid)
    }
}

/// A read that the watch guards, if there is a watch.
struct WatchedRead<'a> {
    _guard: Option<ReadGuard<'a>>,
}

impl<'a> WatchedRead<'a> {
    /// `None` if the watch refuses the process.
    fn begin(watch: Option<&'a Arc<Watch>>, pid: u32) -> Option<Self> {
        let guard = match watch {
            Some(watch) => Some(watch.begin(pid)?),
            None => None,
        };
        Some(Self { _guard: guard })
    }
}

/// The processes that the mount of `/proc` hides from this program, if it hides any. Process 1 belongs to root, and is
/// hidden with the processes of other users.
fn hidden(root: &Root<'_>) -> Option<Withheld> {
    let errno = statat(root.directory, c"1/stat", AtFlags::empty()).err()?;
    let error = format!(
        "/proc/1/stat: {errno}: /proc is mounted with hidepid; run this program as root, or in the group that the mount \
         names (gid=)"
    );
    Some(Withheld::of_host("processes of other users", error))
}

fn own_container_id() -> Option<String> {
    let cgroup = std::fs::read("/proc/self/cgroup").ok()?;
    cgroup::container(&cgroup).map(|container| container.id)
}

/// The claim of an environ that is not empty.
fn claim(environ: &Content<'_>) -> Claim {
    match environ::claim(environ.content) {
        named @ Claim::Named(_) => named,
        _ if !environ.whole => Claim::Missing(MissingEvidence::EnvironUnreadable),
        silent => silent,
    }
}
