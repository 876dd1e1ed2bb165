//! How users are named in metrics and snapshots: `--usernames`.

use std::sync::Arc;

use genv_core::collect::HostSources;
use genv_core::model::Publication;
use genv_core::proc::{ProcessRequest, ProcessSource, ProcessTable};
use sha2::{Digest, Sha256};

/// How users are named.
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
    /// The same sources, with users named this way everywhere: in labels, accounting and snapshots.
    #[must_use]
    pub fn applied_to(self, host: HostSources) -> HostSources {
        if self == Self::Name {
            return host;
        }
        let processes = Box::new(Renamed {
            source: host.processes,
            usernames: self,
        });
        HostSources { processes, ..host }
    }

    /// What may be shown of a publication whose sources had these names applied: a uid tells as much as a name.
    pub(crate) fn without_uids_if_hidden(self, publication: Arc<Publication>) -> Arc<Publication> {
        if self != Self::Hash {
            return publication;
        }
        let mut publication = Arc::unwrap_or_clone(publication);
        for snapshot in publication.hosts.iter_mut().flat_map(|it| &mut it.snapshot) {
            let snapshot = Arc::make_mut(snapshot);
            for environment in &mut snapshot.environments {
                environment.uid = None;
            }
            for process in &mut snapshot.processes {
                process.uid = None;
            }
        }
        Arc::new(publication)
    }
}

struct Renamed {
    source: Box<dyn ProcessSource>,
    usernames: Usernames,
}

impl ProcessSource for Renamed {
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

/// 64 bits of SHA-256: enough to tell the users of a site apart.
fn hashed(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
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
            if uid == 1000 {
                "alice".to_owned()
            } else {
                format!("uid:{uid}")
            }
        }
    }

    #[test]
    fn users_are_named_as_asked() {
        let name = |usernames, uid| {
            Renamed {
                source: Box::new(Passwd),
                usernames,
            }
            .username(uid)
        };
        assert_eq!(name(Usernames::Name, 1000), "alice");
        assert_eq!(name(Usernames::Uid, 1000), "uid:1000");
        // The first 16 digits of `printf alice | sha256sum`.
        assert_eq!(name(Usernames::Hash, 1000), "2bd806c97f0e00af");
        assert_ne!(name(Usernames::Hash, 1001), name(Usernames::Hash, 1002));
    }
}
