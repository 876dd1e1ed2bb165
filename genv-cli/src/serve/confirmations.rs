//! What users of this host confirmed by their commands, which an enforcer elsewhere cannot read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use genv_core::model::{Confirmed, Snapshot};
use genv_core::state::{directory_path, read_confirmed};

/// Adds confirmations to the environments of snapshots.
#[derive(Clone, Debug)]
pub(crate) struct Confirmations {
    directory: PathBuf,
}

impl Confirmations {
    /// Of genv's state directory.
    pub(crate) fn new() -> Self {
        let directory = directory_path(std::env::var_os("GENV_TMPDIR").as_deref());
        Self { directory }
    }

    /// The snapshot with what the user of each environment, and root, changed in it.
    pub(crate) fn add(&self, snapshot: &Arc<Snapshot>) -> Arc<Snapshot> {
        let mut by_user: HashMap<u32, Vec<Confirmed>> = HashMap::new();
        let mut with = Arc::clone(snapshot);
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let Some(uid) = environment.uid else {
                continue;
            };
            let mut confirmed = Vec::new();
            for writer in if uid == 0 { vec![0] } else { vec![0, uid] } {
                let all = by_user.entry(writer);
                let all = all.or_insert_with(|| read_confirmed(&self.directory, writer));
                let of_it = all.iter().filter(|it| it.eid == environment.eid);
                confirmed.extend(of_it.cloned());
            }
            if !confirmed.is_empty() {
                let environments = &mut Arc::make_mut(&mut with).environments;
                Arc::make_mut(&mut environments[position]).confirmed = confirmed;
            }
        }
        with
    }
}
