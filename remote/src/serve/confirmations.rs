//! Changes of environments that users of this host have confirmed. Snapshots carry them, since an enforcer on another machine
//! cannot read the files of the confirmations.

use std::collections::HashMap;
use std::sync::Arc;

use genv_core::model::{Confirmed, Snapshot};
use genv_core::state::{directory_path, read_confirmed};

/// The snapshot with the changes that each environment's user and root have confirmed.
pub(super) fn add_confirmations(snapshot: &Arc<Snapshot>) -> Arc<Snapshot> {
    let directory = directory_path(std::env::var_os("GENV_TMPDIR").as_deref());
    let mut by_user: HashMap<u32, Vec<Confirmed>> = HashMap::new();
    let mut result = Arc::clone(snapshot);
    for (position, environment) in snapshot.environments.iter().enumerate() {
        let Some(uid) = environment.uid else {
            continue;
        };
        let mut confirmed = Vec::new();
        for writer in if uid == 0 { vec![0] } else { vec![0, uid] } {
            let changes = by_user.entry(writer).or_insert_with(|| read_confirmed(&directory, writer));
            confirmed.extend(changes.iter().filter(|change| change.eid == environment.eid).cloned());
        }
        if !confirmed.is_empty() {
            let environments = &mut Arc::make_mut(&mut result).environments;
            Arc::make_mut(&mut environments[position]).confirmed = confirmed;
        }
    }
    result
}
