//! The names of users in metrics and snapshots: `--usernames`.

use std::collections::HashMap;
use std::sync::Arc;

use genv_core::collect::HostSources;
use genv_core::model::{NOBODY, Publication, Snapshot};
use genv_core::proc::{ProcessRequest, ProcessSource, ProcessTable};
use sha2::{Digest, Sha256};

/// The names of users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Usernames {
    /// By their name in passwd, else `uid:1234`.
    #[default]
    Name,
    /// As `uid:1234`.
    Uid,
    /// By a hash of the name, the same on every host, and with no uid anywhere: for dashboards that are
    /// shown around. Whoever knows a name can recognise it; what users name themselves (environments,
    /// commands) is shown as it is.
    Hash,
}

impl Usernames {
    /// The same sources with these names of users in labels, accounting and snapshots.
    pub fn applied_to(self, host: HostSources) -> HostSources {
        if self == Self::Name {
            return host;
        }
        let processes = Box::new(RenamedSource { source: host.processes, usernames: self });
        HostSources { processes, ..host }
    }

    /// The publication with these names. Sources on this machine have them already, other hosts do not. With hashes, uids
    /// are removed, since a uid identifies a user as a name does.
    pub(crate) fn shown(self, publication: Arc<Publication>) -> Arc<Publication> {
        if self == Self::Name {
            return publication;
        }
        let mut publication = Arc::unwrap_or_clone(publication);
        for host in &mut publication.hosts {
            let Some(snapshot) = &mut host.snapshot else {
                continue;
            };
            if host.ssh.is_some() {
                self.rename(Arc::make_mut(snapshot));
            }
            if self == Self::Hash {
                without_uids(Arc::make_mut(snapshot));
            }
        }
        Arc::new(publication)
    }

    /// Renames the users of another host. The name of a user without a known uid (no process, environment or waiting
    /// request any more) is hashed.
    fn rename(self, snapshot: &mut Snapshot) {
        let environments = snapshot.environments.iter();
        let environments = environments.map(|it| (Some(&it.username), it.uid));
        let processes = snapshot.processes.iter();
        let processes = processes.map(|it| (it.username.as_ref(), it.uid));
        let waiting = snapshot.queue.iter();
        let waiting = waiting.map(|it| (Some(&it.username), it.uid));
        let uids: HashMap<String, u32> = environments
            .chain(processes)
            .chain(waiting)
            .filter_map(|(name, uid)| Some((name?.clone(), uid?)))
            .collect();
        let name = |username: &mut String| {
            let is_uid = username.starts_with("uid:");
            match (self, uids.get(username)) {
                _ if username == NOBODY => {}
                (Self::Name, _) => {}
                (Self::Uid, _) if is_uid => {}
                (Self::Uid, Some(uid)) => *username = format!("uid:{uid}"),
                (Self::Uid, None) | (Self::Hash, _) => *username = hashed(username),
            }
        };
        let counters = &mut snapshot.counters;
        let use_of_devices = counters.user_device_use.iter_mut();
        let xids = counters.user_xid_errors.iter_mut();
        let environments = snapshot.environments.iter_mut();
        let processes = snapshot.processes.iter_mut();
        let waiting = snapshot.queue.iter_mut();
        use_of_devices
            .map(|it| &mut it.username)
            .chain(xids.map(|it| &mut it.username))
            .chain(environments.map(|it| &mut Arc::make_mut(it).username))
            .chain(processes.filter_map(|it| Arc::make_mut(it).username.as_mut()))
            .chain(waiting.map(|it| &mut it.username))
            .for_each(name);
    }
}

fn without_uids(snapshot: &mut Snapshot) {
    for environment in &mut snapshot.environments {
        Arc::make_mut(environment).uid = None;
    }
    for process in &mut snapshot.processes {
        Arc::make_mut(process).uid = None;
    }
    for waiting in &mut snapshot.queue {
        waiting.uid = None;
    }
}

struct RenamedSource {
    source: Box<dyn ProcessSource>,
    usernames: Usernames,
}

impl ProcessSource for RenamedSource {
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        self.source.read(request)
    }

    fn username(&mut self, uid: u32) -> String {
        match self.usernames {
            Usernames::Name => self.source.username(uid),
            Usernames::Uid => format!("uid:{uid}"),
            Usernames::Hash => hashed(&self.source.username(uid)),
        }
    }
}

/// 64 bits of SHA-256: enough to distinguish the users of a site.
fn hashed(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Passwd;

    impl ProcessSource for Passwd {
        fn read(&mut self, _: &ProcessRequest) -> ProcessTable {
            ProcessTable::default()
        }

        fn username(&mut self, uid: u32) -> String {
            if uid == 1000 { "alice".to_owned() } else { format!("uid:{uid}") }
        }
    }

    #[test]
    fn users_are_named_by_the_flag() {
        let name = |usernames, uid| RenamedSource { source: Box::new(Passwd), usernames }.username(uid);
        assert_eq!(name(Usernames::Name, 1000), "alice");
        assert_eq!(name(Usernames::Uid, 1000), "uid:1000");
        // The first 16 digits of `printf alice | sha256sum`.
        assert_eq!(name(Usernames::Hash, 1000), "2bd806c97f0e00af");
        assert_ne!(name(Usernames::Hash, 1001), name(Usernames::Hash, 1002));
    }
}
