//! Processes that are exempt from all rules.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use genv_core::proc::ProcessTable;

use super::evidence::{CurrentProcess, refuse_for_good as refused, refuse_for_now};
use super::trusted;
use crate::config::Never;
use crate::plan::Outcome;

/// The paths of sshd and its helper programs in distributions.
const SSH_SERVERS: [&str; 9] = [
    "/usr/sbin/sshd",
    "/usr/local/sbin/sshd",
    "/usr/lib/openssh/sshd-session",
    "/usr/lib/openssh/sshd-auth",
    "/usr/lib/ssh/sshd-session",
    "/usr/lib/ssh/sshd-auth",
    "/usr/libexec/openssh/sshd-session",
    "/usr/libexec/openssh/sshd-auth",
    "/usr/libexec/sshd-session",
];

const LISTED: &str = "its user is listed under never";

/// What the kernel adds to the name of a program that was removed or replaced while it runs (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

/// The program that a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Executable {
    path: PathBuf,
    deleted: bool,
    device: u64,
    inode: u64,
    owner: u32,
}

/// Refuses an exempt process, and, for now, a process that may be exempt.
pub(super) fn check_exempt(pid: u32, current: &CurrentProcess, never: &Never) -> Result<(), Outcome> {
    if pid == 1 {
        return Err(refused("pid 1 is never ended"));
    }
    if lineage(&current.table, std::process::id()).contains(&pid) {
        return Err(refused("it is the enforcer, or started it"));
    }
    let facts = &current.facts;
    match facts.uid {
        // Of a rootless container, anybody can have made up the name.
        Some(0) if facts.container_id.is_none() || facts.container_owner.is_some() => {
            return Err(refused("it is root's, outside of containers"));
        }
        None => return Err(refuse_for_now("its user cannot be read".to_owned())),
        // Root of a container is not this machine's root, whatever is listed.
        Some(0) if never.users.contains(&current.username) => {
            return Err(refused(LISTED));
        }
        Some(0) => {}
        Some(uid) => {
            for uid in [Some(uid), current.user].into_iter().flatten() {
                if let Some(why) = user_exemption(uid, &current.username, never) {
                    return Err(refused(&why));
                }
            }
        }
    }
    if may_hide_its_program(pid) {
        return Err(refuse_for_now("it cannot be read which program it runs".to_owned()));
    }
    match ProtectedPrograms::of(never).exemption(pid) {
        Some(why) => Err(refused(&why)),
        None => Ok(()),
    }
}

/// Whether the program of a process cannot be read, and may be a protected one. Users can hide their programs: a file system of
/// their own (FUSE) shows root no file, and a path of more than a page has no name. A program protects only trusted users.
fn may_hide_its_program(pid: u32) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/exe"));
    let is_forbidden = link.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    is_forbidden || Executable::of(pid).is_none() && trusted::of(pid).is_none_or(|trust| trust.user)
}

/// The programs that are never ended, as their files are now.
#[derive(Debug)]
pub(crate) struct ProtectedPrograms(Vec<Program>);

/// A program, with the file that has its path. Only a file that root owns counts: a user's mount namespace can give any
/// path to their own.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    file: Option<Metadata>,
}

impl Program {
    fn at(path: PathBuf) -> Self {
        let file = fs::metadata(&path).ok().filter(|file| file.uid() == 0);
        Self { path, file }
    }
}

impl ProtectedPrograms {
    pub(crate) fn of(never: &Never) -> Self {
        let configured = never.executables.iter().cloned();
        let paths = configured.chain(SSH_SERVERS.iter().map(PathBuf::from));
        Self(paths.map(Program::at).collect())
    }

    /// Why the program of a process exempts the process. A program does so only if its user is trusted.
    pub(crate) fn exemption(&self, pid: u32) -> Option<String> {
        let path = self.path_of(pid)?;
        let trust = trusted::of(pid)?;
        let is_protected = |parent| self.path_of(parent).is_some();
        let counts = trust.user || trust.roots_child_of.is_some_and(is_protected);
        counts.then(|| format!("it runs {}, which is never ended", path.display()))
    }

    /// The protected program that a process runs, if it can be read.
    fn path_of(&self, pid: u32) -> Option<&Path> {
        let executable = Executable::of(pid)?;
        let mut programs = self.0.iter();
        let runs = programs.find(|program| executable.is(program));
        runs.map(|program| program.path.as_path())
    }
}

/// Why a user is exempt.
pub(super) fn user_exemption(uid: u32, username: &str, never: &Never) -> Option<String> {
    let listed = never.users.contains(username) || never.users.contains(&format!("uid:{uid}"));
    listed.then(|| LISTED.to_owned())
}

/// A process and its ancestors.
fn lineage(table: &ProcessTable, pid: u32) -> HashSet<u32> {
    let mut found = HashSet::new();
    let mut current = Some(pid);
    while let Some(pid) = current.filter(|pid| found.insert(*pid)) {
        current = table.lineage.get(&pid).map(|lineage| lineage.parent);
    }
    found
}

impl Executable {
    fn of(pid: u32) -> Option<Self> {
        let link = format!("/proc/{pid}/exe");
        let target = fs::read_link(&link).ok()?;
        // Through the link the kernel opens the file itself, whatever has its name now.
        let file = fs::metadata(&link).ok()?;
        let name = target.as_os_str().as_bytes();
        let stripped = name.strip_suffix(DELETED);
        Some(Self {
            path: PathBuf::from(OsStr::from_bytes(stripped.unwrap_or(name))),
            deleted: stripped.is_some(),
            device: file.dev(),
            inode: file.ino(),
            owner: file.uid(),
        })
    }

    /// Whether it is the program that has this path now or, having been replaced by an update, had it.
    fn is(&self, program: &Program) -> bool {
        if self.owner != 0 {
            return false;
        }
        let path = &program.path;
        match &program.file {
            Some(file) if (file.dev(), file.ino()) == (self.device, self.inode) => true,
            Some(file) => {
                let real = || fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                self.deleted && file.dev() == self.device && self.path == real()
            }
            None => self.deleted && self.path == *path,
        }
    }
}

#[cfg(test)]
mod tests {
    use genv_core::model::Attribution;
    use genv_core::proc::{Claim, ProcessFacts};

    use super::*;

    /// A program, as if it ran as root in this container.
    fn of_root(container: Option<&str>, container_owner: Option<u32>, never: &[&str]) -> Result<(), Outcome> {
        let facts = ProcessFacts {
            start_time_ticks: 1,
            uid: Some(0),
            real_uid: Some(0),
            comm: "python3".to_owned(),
            container_id: container.map(str::to_owned),
            container_owner,
            claim: Claim::Absent,
        };
        let username = ProcessTable::default().container_username(&facts);
        let current = CurrentProcess {
            user: facts.uid,
            facts,
            username: username.unwrap_or_else(|| "root".to_owned()),
            attribution: Attribution::Outside { reason: "no_claim".to_owned() },
            gpus: [0].into(),
            table: ProcessTable::default(),
        };
        // Any program that may be read will do, except this one.
        let child = std::process::Command::new("sleep").arg("1000000").spawn();
        let mut child = child.unwrap();
        let never = Never { users: never.iter().map(ToString::to_string).collect(), ..Never::default() };
        let why = check_exempt(child.id(), &current, &never);
        child.kill().unwrap();
        child.wait().unwrap();
        why
    }

    #[test]
    fn promise_06_root_is_out_of_reach_except_in_a_container_that_root_made() {
        let root = ["root", "uid:0"];
        assert_eq!(of_root(Some("4f2a6e"), None, &root), Ok(()));
        assert_eq!(of_root(Some("4f2a6e"), None, &["container:4f2a6e"]), Err(refused(LISTED)));
        for (container, owner) in [(None, None), (Some("4f2a6e"), Some(1000))] {
            assert_eq!(of_root(container, owner, &root), Err(refused("it is root's, outside of containers")));
        }
    }

    fn executable(path: &str) -> Executable {
        let file = fs::metadata(path).unwrap();
        Executable {
            path: fs::canonicalize(path).unwrap(),
            deleted: false,
            device: file.dev(),
            inode: file.ino(),
            owner: file.uid(),
        }
    }

    #[test]
    fn promise_06_a_program_is_known_by_its_file_and_not_by_its_name() {
        let sleep = executable("/bin/sleep");
        assert!(sleep.is(&Program::at("/bin/sleep".into())));
        assert!(!sleep.is(&Program::at("/bin/sh".into())));
        let named_alike = Executable { inode: sleep.inode + 1, ..sleep.clone() };
        assert!(!named_alike.is(&Program::at("/bin/sleep".into())));
        let own = Executable { owner: 1000, ..sleep.clone() };
        assert!(!own.is(&Program::at("/bin/sleep".into())));
    }

    #[test]
    fn promise_06_a_program_that_was_updated_while_it_runs_stays_protected() {
        let updated = Executable { deleted: true, inode: 1, ..executable("/bin/sleep") };
        assert!(updated.is(&Program::at("/bin/sleep".into())));
        let elsewhere = Executable { device: updated.device + 1, ..updated.clone() };
        assert!(!elsewhere.is(&Program::at("/bin/sleep".into())));
        let removed = Executable { path: "/usr/lib/xorg/Removed".into(), ..updated };
        assert!(removed.is(&Program::at("/usr/lib/xorg/Removed".into())));
    }
}
