//! The processes of the kernel.

mod cgroup;
mod environ;
mod files;
mod hanging;
mod lineage;
mod namespace;
mod patient;
mod pid_namespace;
mod reader;
mod stat;
mod subordinate;
mod usernames;

pub use environ::Named;
pub(crate) use environ::variable;
pub use hanging::may_read_environ;
pub(crate) use hanging::{read_environs, read_in_time};
pub(crate) use namespace::UserNamespace;
pub use namespace::own_uid;
pub use patient::ProcReader;
pub(crate) use pid_namespace::PidHolder;
pub use pid_namespace::{Below, INITIAL as INITIAL_PID_NAMESPACE, in_initial_pid_namespace, own_pid_namespace};
pub use usernames::{find_username, user_phrase, user_phrase_of, username};

use foldhash::{HashMap, HashSet};

use crate::model::Withheld;

/// Whether a pid belongs to a kernel thread, as far as `/proc` shows this.
pub fn is_kernel_thread(pid: u32) -> bool {
    let content = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat::Stat::parse(&content).is_some_and(|stat| stat.is_kernel_thread())
}

/// A source of processes: `/proc`, or a simulation.
pub trait ProcessSource: Send {
    /// Reads processes once. An unreadable process is a part of the table, never an error.
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable;

    /// Whether a process can act: it has neither ended, even as a zombie, nor been stopped (SIGSTOP). A process whose
    /// state is not known counts as able to act.
    fn can_act(&mut self, _pid: u32) -> bool {
        true
    }

    /// The owner of a uid: the uid itself, unless it is a subordinate uid (subuid(5)) without an account of its
    /// own.
    fn owner(&mut self, uid: u32) -> u32 {
        uid
    }

    /// The name of a user in snapshots: the passwd name of a uid, else `uid:1234`.
    fn username(&mut self, uid: u32) -> String;
}

/// The processes to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRequest {
    /// Processes whose facts and ancestors are wanted: those that use a device.
    pub processes: Vec<u32>,
    /// Processes whose start time alone is wanted: members of environments.
    pub members: Vec<u32>,
}

/// The processes of one read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessTable {
    /// By pid, for every process of the request.
    pub processes: HashMap<u32, ProcessRead>,
    /// Start time and parent, by pid, of members that exist, of the processes that are present, and
    /// of all their ancestors. The parent of a member that is no ancestor may have changed since it was read.
    pub lineage: HashMap<u32, Lineage>,
    /// Members and ancestors that exist and may not be read (`hidepid`).
    pub hidden: HashSet<u32>,
    /// The processes of `lineage` that have ended, and whose parent has not waited for them.
    pub zombies: HashSet<u32>,
    /// The members of `processes` whose environ could not be read in time.
    pub unread: HashSet<u32>,
    /// Owners of subordinate uids; see [`ProcessTable::owner`].
    pub owners: HashMap<u32, u32>,
    /// Uids that may be subordinate uids of users in a directory service.
    pub ownerless: HashSet<u32>,
    /// The pid namespace of these pids, by its inode. Absent where every record uses these pids, as in a simulation or
    /// for another machine.
    pub pid_namespace: Option<u64>,
    /// The processes of the pid namespaces below.
    pub below: Below,
    /// What this program may not read at all.
    pub withheld: Vec<Withheld>,
}

impl ProcessTable {
    /// A process that has not ended, so that it can be a member.
    pub fn living(&self, pid: u32) -> Option<&Lineage> {
        self.lineage.get(&pid).filter(|_| !self.zombies.contains(&pid))
    }

    /// The living processes that have a pid in a namespace, or in any namespace of this table. The table's question
    /// included the pid.
    pub(crate) fn holders(&self, pid: u32, pid_namespace: Option<u64>) -> impl Iterator<Item = PidHolder> {
        let here = self.living(pid).map(|&lineage| PidHolder {
            namespace: self.pid_namespace.filter(|it| *it != pid_namespace::NONE),
            pid,
            lineage,
        });
        // This is costly, since it reads all processes: it runs only if the first holder does not suffice.
        let below = std::iter::once_with(move || match pid_namespace {
            Some(namespace) if self.is_of(namespace) => &[],
            Some(_) | None => self.below(pid).unwrap_or_default(),
        });
        let all = here.into_iter().chain(below.flatten().copied());
        all.filter(move |it| pid_namespace.is_none_or(|wanted| self.is_in(it, wanted)))
    }

    /// Whether a holder has its pid in this namespace, as far as this program may see.
    pub(crate) fn is_in(&self, holder: &PidHolder, pid_namespace: u64) -> bool {
        match holder.namespace {
            Some(namespace) => namespace == pid_namespace,
            None => self.pid_namespace.is_none_or(|own| own != pid_namespace),
        }
    }

    /// Whether [`holders`](Self::holders) returns every living process that has a pid in a namespace, or in any.
    pub(crate) fn shows(&self, pid: u32, pid_namespace: Option<u64>) -> bool {
        let is_own = pid_namespace.is_some_and(|it| self.is_of(it));
        !self.hidden.contains(&pid) && (is_own || self.below(pid).is_some())
    }

    /// Whether this namespace is the namespace of the table's pids.
    pub(crate) fn is_of(&self, pid_namespace: u64) -> bool {
        let own = self.pid_namespace;
        own.is_none_or(|own| own == pid_namespace && own != pid_namespace::NONE)
    }

    /// The holders of a pid in namespaces below; none if this program does not see all processes.
    fn below(&self, pid: u32) -> Option<&[PidHolder]> {
        match self.pid_namespace {
            None => Some(&[]),
            Some(INITIAL_PID_NAMESPACE) => self.below.holders(pid),
            Some(_) => None,
        }
    }

    /// The owner of a uid of this table: the uid itself, or the owner of the subordinate uid (subuid(5)).
    pub fn owner(&self, uid: u32) -> u32 {
        self.owners.get(&uid).copied().unwrap_or(uid)
    }

    /// The username of a process of root in a container: `container:ID`, since the user who started it is not known.
    /// `None` for every other process.
    pub fn container_username(&self, facts: &ProcessFacts) -> Option<String> {
        let id = facts.container_id.as_ref().filter(|id| !id.is_empty())?;
        let has_no_known_user = facts.uid == Some(0) && facts.container_owner.is_none();
        has_no_known_user.then(|| format!("container:{}", id.chars().take(12).collect::<String>()))
    }

    /// The user to which a process is attributed: the effective user, or the user who started a setuid program, if that
    /// user is neither the effective user nor root. `None` if the users could not be read, or if the owner of the uid
    /// is not known.
    pub fn shown_user(&self, facts: &ProcessFacts) -> Option<u32> {
        let uid = facts.uid.filter(|uid| !self.ownerless.contains(uid))?;
        let starter = facts.real_uid.filter(|real| ![0, uid].contains(real) && !self.ownerless.contains(real));
        Some(self.owner(starter.unwrap_or(uid)))
    }

    /// The user for whom a process runs. `None` if the uids could not be read, if the owner of the uid is not known, or
    /// if the real and the effective uid belong to two users.
    pub fn user(&self, facts: &ProcessFacts) -> Option<u32> {
        let user = self.owner(facts.uid.filter(|uid| !self.ownerless.contains(uid))?);
        (facts.real_uid.map(|uid| self.owner(uid)) == Some(user)).then_some(user)
    }
}

/// The identity and the parent of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lineage {
    /// Start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
    /// Start, Unix time (`btime` of `/proc/stat` plus the ticks).
    pub start_timestamp_seconds: f64,
    /// Parent's pid: field 4 of `/proc/PID/stat`.
    pub parent: u32,
    /// Effective uid: the owner of `/proc/PID`; absent if it could not be read.
    pub uid: Option<u32>,
}

/// The outcome of reading one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessRead {
    /// The process exists.
    Present(ProcessFacts),
    /// The process does not exist, or its pid was reused during the read.
    Vanished,
    /// `/proc/PID` itself may not be read (`hidepid`).
    Unreadable,
}

/// The facts of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
    /// Effective uid: `Uid:` of `/proc/PID/status`; absent if it could not be read.
    pub uid: Option<u32>,
    /// Real uid, from the same line. It differs from the effective one while a setuid program works for another user.
    pub real_uid: Option<u32>,
    /// Field 2 of `/proc/PID/stat`, with bytes replaced that are not UTF-8; it may be a few reads old.
    pub comm: String,
    /// Container id found in `/proc/PID/cgroup` (Docker, containerd, Podman, Kubernetes, LXC, systemd-nspawn), if any;
    /// none in the container that this program runs in itself.
    pub container_id: Option<String>,
    /// The user in whose part of the cgroup tree (`user-UID.slice`) the container is: the container is rootless, or the
    /// user invented its name. A claim of the container counts as a claim of this user.
    pub container_owner: Option<u32>,
    /// The claim in `/proc/PID/environ`.
    pub claim: Claim,
}

/// What a process claims about its environment by `GENV_ENVIRONMENT_ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It names this environment. A value that is empty or not UTF-8 names no possible environment: it is kept
    /// (lossily), and attribution refutes it.
    Named(String),
    /// Its environ was read whole, is well-formed, and names no environment.
    Absent,
    /// The claim is not known.
    Missing(MissingEvidence),
}

/// Why a claim is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingEvidence {
    /// `/proc/PID/environ` may not be read, or is longer than 1 MiB and names no environment in its first MiB.
    EnvironUnreadable,
    /// It is empty: the process is a kernel thread, was started without variables, or cleared them.
    EnvironEmpty,
    /// It does not consist of `NAME=value` entries, as after setproctitle.
    EnvironOverwritten,
    /// The process is a zombie, which has no environ.
    Zombie,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(uid: u32, real_uid: u32) -> ProcessFacts {
        ProcessFacts {
            start_time_ticks: 1,
            uid: Some(uid),
            real_uid: Some(real_uid),
            comm: "su".to_owned(),
            container_id: None,
            container_owner: None,
            claim: Claim::Absent,
        }
    }

    #[test]
    fn a_setuid_program_is_shown_as_its_starters_and_runs_for_nobody() {
        let mut table = ProcessTable::default();
        table.owners.insert(700_007, 1000);
        let users = |uid: u32, real_uid: u32| {
            let facts = facts(uid, real_uid);
            (table.shown_user(&facts), table.user(&facts))
        };
        assert_eq!(users(1000, 1000), (Some(1000), Some(1000)));
        assert_eq!(users(0, 1000), (Some(1000), None));
        assert_eq!(users(0, 700_007), (Some(1000), None));
        assert_eq!(users(2000, 0), (Some(2000), None));
        assert_eq!(users(700_007, 700_007), (Some(1000), Some(1000)));
    }

    #[test]
    fn root_in_a_container_is_a_user_of_its_own_unless_its_owner_is_known() {
        let name = |uid: u32, container: &str, container_owner: Option<u32>| {
            let container_id = Some(container.to_owned());
            let facts = ProcessFacts { container_id, container_owner, ..facts(uid, uid) };
            ProcessTable::default().container_username(&facts)
        };
        assert_eq!(name(0, "4f2a6e4f2a6e4f2a", None).as_deref(), Some("container:4f2a6e4f2a6e"));
        assert_eq!(name(0, "4f2a6e4f2a6e4f2a", Some(1000)), None);
        assert_eq!(name(1000, "4f2a6e4f2a6e4f2a", None), None);
        assert_eq!(name(0, "", None), None);
    }
}
