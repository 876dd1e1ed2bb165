//! The kernel's process table, read so that no user can block the reader.

use std::path::PathBuf;
use std::sync::Arc;

use super::hanging::{Hanging, MOST_AT_ONCE, Worker};
use super::reader::{DirectReader, PROC};
use super::{ProcessRead, ProcessRequest, ProcessSource, ProcessTable};
use crate::model::Withheld;

/// Reads `/proc` with a time limit. If a process cannot be read in time, its claim is missing, and
/// [`ProcessTable::unread`] lists it. The other processes are read.
#[derive(Debug)]
pub struct ProcReader {
    root: PathBuf,
    /// `None` after a reader was left behind with its thread.
    direct: Option<DirectReader>,
    /// The thread of the last read.
    worker: Option<Worker>,
    hanging: Arc<Hanging>,
}

impl Default for ProcReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcReader {
    /// A reader of the running kernel's `/proc`.
    pub fn new() -> Self {
        Self::reading(PROC.into(), Hanging::live())
    }

    /// A reader of another directory that is laid out like `/proc`.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let hanging = Arc::new(Hanging::of(&root));
        Self::reading(root, hanging)
    }

    fn reading(root: PathBuf, hanging: Arc<Hanging>) -> Self {
        Self { direct: None, worker: None, root, hanging }
    }

    fn direct(&mut self) -> &mut DirectReader {
        let root = &self.root;
        let direct = &mut self.direct;
        direct.get_or_insert_with(|| DirectReader::with_root(root))
    }
}

impl ProcessSource for ProcReader {
    /// Reads `/proc` once. Without a `/proc`, every process is unreadable and every member hidden.
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        // No read of a member can hang.
        if request.processes.is_empty() {
            return self.direct().read(request);
        }
        for attempt in 0..=MOST_AT_ONCE {
            let direct = self.direct.take();
            let mut direct = direct.unwrap_or_else(|| DirectReader::with_root(&self.root));
            let request = request.clone();
            let gives_up = attempt == MOST_AT_ONCE;
            let read = self.hanging.watched(&mut self.worker, gives_up, move |watch| {
                direct.guard_by(watch);
                let table = direct.read(&request);
                (direct, table)
            });
            if let Some((direct, table)) = read {
                self.direct = Some(direct);
                return table;
            }
        }
        unread(request)
    }

    fn can_act(&mut self, pid: u32) -> bool {
        self.direct().can_act(pid)
    }

    fn owner(&mut self, uid: u32) -> u32 {
        self.direct().owner(uid)
    }

    fn username(&mut self, uid: u32) -> String {
        self.direct().username(uid)
    }
}

/// A table in which no process is known.
fn unread(request: &ProcessRequest) -> ProcessTable {
    let unreadable = |&pid: &u32| (pid, ProcessRead::Unreadable);
    ProcessTable {
        processes: request.processes.iter().map(unreadable).collect(),
        hidden: request.members.iter().copied().collect(),
        unread: request.processes.iter().copied().collect(),
        withheld: vec![Withheld::of_host(Withheld::PROCESSES, "reads of /proc hang")],
        ..ProcessTable::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::path::Path;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::patience::until;
    use crate::proc::Claim;

    /// A process of a user. Its environ is a file, or, if `hangs`, a pipe without a writer, which blocks the open.
    fn process(root: &Path, pid: u32, uid: u32, hangs: bool) {
        let directory = root.join(pid.to_string());
        fs::create_dir(&directory).unwrap();
        let zeros = "0 ".repeat(40);
        let stat = format!("{pid} (x) S 1 1 1 0 -1 0 {zeros}");
        fs::write(directory.join("stat"), stat).unwrap();
        fs::write(directory.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        let environ = directory.join("environ");
        if hangs {
            mknodat(CWD, &environ, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        } else {
            fs::write(environ, "GENV_ENVIRONMENT_ID=7\0").unwrap();
        }
    }

    fn claims(reader: &mut ProcReader, pids: &[u32]) -> Vec<bool> {
        let table = reader.read(&ProcessRequest { processes: pids.to_vec(), members: Vec::new() });
        let named = |pid: &u32| match &table.processes[pid] {
            ProcessRead::Present(facts) => facts.claim == Claim::Named("7".to_owned()),
            other => panic!("{other:?}"),
        };
        assert!(pids.iter().all(|pid| named(pid) != table.unread.contains(pid)));
        pids.iter().map(named).collect()
    }

    /// Reads until these claims are known. A busy machine may delay the read of any process for so long that it counts as
    /// one that hangs; that process is read again as soon as its read has ended.
    fn until_claims(reader: &mut ProcReader, expected: &[(u32, bool)]) {
        let pids: Vec<u32> = expected.iter().map(|(pid, _)| *pid).collect();
        let expected: Vec<bool> = expected.iter().map(|(_, is_known)| *is_known).collect();
        until(|| claims(reader, &pids) == expected);
    }

    /// Ends all reads of a pipe, and puts a file in its place.
    fn answers(root: &Path, pid: u32) {
        let (environ, new) = (root.join(format!("{pid}/environ")), root.join("new"));
        // Opening for both directions waits for no reader, and the readers that wait for a writer have had one.
        let pipe = OpenOptions::new().read(true).write(true).open(&environ).unwrap();
        fs::write(&new, "GENV_ENVIRONMENT_ID=7\0").unwrap();
        fs::rename(new, environ).unwrap();
        drop(pipe);
    }

    #[test]
    fn processes_that_hang_are_waited_for_once_and_hold_up_no_others() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, uid, hangs) in
            [(1, 0, false), (10, 1000, true), (11, 1000, true), (12, 1000, true), (13, 1000, false), (20, 2000, false)]
        {
            process(folder.path(), pid, uid, hangs);
        }
        let mut reader = ProcReader::with_root(folder.path());
        until_claims(&mut reader, &[(10, false), (20, true)]);
        until_claims(&mut reader, &[(11, false)]);
        // After a second hanging process of a user, no process of that user is read: the pipe of 12 would hang, and the
        // environ of 13 would be known.
        let others = [(10, false), (11, false), (12, false), (13, false), (20, true)];
        until(|| {
            let thread = reader.worker.as_ref().map(Worker::id);
            until_claims(&mut reader, &others);
            // A read that hangs costs the thread. The same one has read all: no process that hangs was tried again.
            thread.is_some() && reader.worker.as_ref().map(Worker::id) == thread
        });
        // A process that answers again is read again.
        for pid in [10, 11] {
            answers(folder.path(), pid);
        }
        until_claims(&mut reader, &[(10, true), (11, true), (13, true)]);
    }
}
