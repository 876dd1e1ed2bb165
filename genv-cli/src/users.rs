//! The display of users: by uid, with the name of the name service, whatever name a record has.

use std::collections::HashMap;

use genv_core::proc::find_username;

use crate::output::{Cell, harmless};

/// `root(0)`, or `54321` without a name. It may wait for the network: call it while the state is not locked.
pub(crate) fn shown(uid: u32) -> String {
    find_username(uid).map_or_else(
        || uid.to_string(),
        |name| format!("{}({uid})", harmless(&name)),
    )
}

/// The users of a table, each looked up once.
#[derive(Debug, Default)]
pub(crate) struct Users {
    shown: HashMap<u32, String>,
}

impl Users {
    /// As [`shown`].
    pub(crate) fn cell(&mut self, uid: u32) -> Cell {
        let shown = self.shown.entry(uid).or_insert_with(|| shown(uid));
        Cell::foreign(shown)
    }
}
