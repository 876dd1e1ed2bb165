//! Trust in the user of a protected program.
//!
//! The file of a program proves little: the user who starts it chooses what it loads (`LD_PRELOAD`) and reads. So a protected
//! program counts only for trusted users: root, system users, and the user of an active session at a seat of the machine.
//! Servers of root serve users by children that run as these users (sshd, nvidia-cuda-mps-control). Such a child counts if its
//! parent is a protected process of root: the parent chooses what the child loads, and no user can give it another direct child.

use std::fs;
use std::path::Path;

use genv_core::proc::{ProcReader, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource as _};

/// Where logind keeps its sessions, a file each: lines `NAME=VALUE`.
const SESSIONS: &str = "/run/systemd/sessions";

/// Where the first uid of people is set: login.defs(5), `UID_MIN`.
const LOGIN_DEFS: &str = "/etc/login.defs";

/// The first uid of people where nothing is set.
const UID_MIN: u32 = 1000;

/// What is known of a process that runs a protected program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    /// Whether its user is trusted with what the program does.
    pub(super) user: bool,
    /// Its parent, if that is root's.
    pub(super) roots_child_of: Option<u32>,
}

/// The trust in a process; absent if the process has ended.
pub(super) fn of(pid: u32) -> Option<Trust> {
    let mut table = ProcReader::new().read(&ProcessRequest { processes: vec![pid], members: Vec::new() });
    let Some(ProcessRead::Present(facts)) = table.processes.remove(&pid) else {
        return None;
    };
    let in_container = facts.container_id.is_some();
    let parent = table.lineage.get(&pid).map(|it| it.parent);
    let is_roots = |pid: &u32| table.lineage.get(pid).is_some_and(|it| it.uid == Some(0));
    let roots_child = parent.filter(is_roots);
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let login_defs = fs::read_to_string(LOGIN_DEFS).unwrap_or_default();
    let user = is_trusted(&facts, uid_min(&login_defs), &cgroup, Path::new(SESSIONS));
    Some(Trust { user: user && !in_container, roots_child_of: roots_child.filter(|_| !in_container) })
}

fn is_trusted(facts: &ProcessFacts, uid_min: u32, cgroup: &str, sessions: &Path) -> bool {
    let (Some(uid), Some(real_uid)) = (facts.uid, facts.real_uid) else {
        return false;
    };
    uid.max(real_uid) < uid_min || uid == real_uid && is_at_the_machine(uid, cgroup, sessions)
}

/// The value of `UID_MIN`.
fn uid_min(login_defs: &str) -> u32 {
    let value = login_defs.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "UID_MIN").then(|| words.next()?.parse().ok())?
    });
    value.unwrap_or(UID_MIN)
}

/// Whether a process of this cgroup belongs to an active session of the user at a seat of this machine: to its scope, or
/// to `session.slice` of the user's service manager, where desktops start their compositor.
fn is_at_the_machine(uid: u32, cgroup: &str, sessions: &Path) -> bool {
    let paths = cgroup.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        (controllers.is_empty() || controllers == "name=systemd").then_some(fields.next()?)
    });
    let slice = format!("/user.slice/user-{uid}.slice/");
    let manager = format!("user@{uid}.service/session.slice/");
    let active = |id: &str| {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let session = is_id.then(|| fs::read_to_string(sessions.join(id)));
        session.is_some_and(|text| text.is_ok_and(|text| is_active_at_a_seat(uid, &text)))
    };
    paths.filter_map(|path| path.strip_prefix(slice.as_str())).any(|below| {
        if below.starts_with(&manager) {
            let all = fs::read_dir(sessions).into_iter().flatten().flatten();
            return all.into_iter().any(|entry| entry.file_name().to_str().is_some_and(active));
        }
        let scope = below.split('/').next().unwrap_or_default();
        let id = scope.strip_prefix("session-").and_then(|it| it.strip_suffix(".scope"));
        id.is_some_and(active)
    })
}

fn is_active_at_a_seat(uid: u32, session: &str) -> bool {
    let value = |name: &str| {
        let mut lines = session.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    value("UID").and_then(|it| it.parse().ok()) == Some(uid)
        && value("ACTIVE") == Some("1")
        && value("SEAT").is_some_and(|seat| !seat.is_empty())
        && value("REMOTE").is_none_or(|remote| remote == "0")
}

#[cfg(test)]
mod tests {
    use genv_core::proc::Claim;

    use super::*;

    const SCOPE: &str = "0::/user.slice/user-1000.slice/session-2.scope\n";

    fn facts(uid: u32, real_uid: u32) -> ProcessFacts {
        ProcessFacts {
            start_time_ticks: 1,
            uid: Some(uid),
            real_uid: Some(real_uid),
            comm: "Xorg".to_owned(),
            container_id: None,
            container_owner: None,
            claim: Claim::Absent,
        }
    }

    fn sessions(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (id, text) in files {
            fs::write(folder.path().join(id), text).unwrap();
        }
        folder
    }

    #[test]
    fn promise_06_root_and_users_of_the_system_are_trusted_with_protected_programs() {
        let none = sessions(&[]);
        let trusted = |uid, real_uid| is_trusted(&facts(uid, real_uid), 1000, "", none.path());
        assert!(trusted(0, 0) && trusted(999, 999) && trusted(0, 120));
        assert!(!trusted(1000, 1000) && !trusted(120, 1000) && !trusted(1000, 120));
        assert_eq!(uid_min("# UID_MIN 7\nUID_MAX 60000\nUID_MIN\t\t  500\n"), 500);
        assert_eq!(uid_min("UID_MIN many\n"), 1000);
        assert_eq!(uid_min(""), 1000);
    }

    #[test]
    fn promise_06_who_sits_at_the_machine_is_trusted_in_that_session_alone() {
        let active = "UID=1000\nUSER=alice\nACTIVE=1\nSTATE=active\nREMOTE=0\nTYPE=x11\nSEAT=seat0\n";
        let there = |cgroup: &str, session: &str| {
            let folder = sessions(&[("2", session), ("5", "UID=1000\nACTIVE=1\nREMOTE=1\n")]);
            is_trusted(&facts(1000, 1000), 1000, cgroup, folder.path())
        };
        for cgroup in [
            SCOPE,
            "12:pids:/\n1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@wayland.service\n",
        ] {
            assert!(there(cgroup, active), "{cgroup}");
            for other in [
                active.replace("ACTIVE=1", "ACTIVE=0"),
                active.replace("SEAT=seat0", "SEAT="),
                active.replace("SEAT=seat0\n", ""),
                active.replace("REMOTE=0", "REMOTE=1"),
                active.replace("UID=1000", "UID=1001"),
                String::new(),
            ] {
                assert!(!there(cgroup, &other), "{cgroup} {other}");
            }
        }
        for cgroup in [
            "",
            "0::/\n",
            "0::/user.slice/user-1000.slice/session-5.scope\n",
            "0::/user.slice/user-1000.slice/session-9.scope\n",
            "0::/user.slice/user-1000.slice/session-../2.scope\n",
            "0::/user.slice/user-1001.slice/session-2.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/hog.scope\n",
            "0::/system.slice/x/user.slice/user-1000.slice/session-2.scope\n",
            "4:memory:/user.slice/user-1000.slice/session-2.scope\n",
        ] {
            assert!(!there(cgroup, active), "{cgroup}");
        }
    }
}
