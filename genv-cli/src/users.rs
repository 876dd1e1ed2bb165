//! Names of users by the name service. Names in records do not count.

use std::collections::HashMap;

use genv_core::proc::{find_username, user_phrase_of};

use crate::output::{Cell, harmless};

/// Names of users, each looked up once.
#[derive(Debug, Default)]
pub(crate) struct Users {
    names: HashMap<u32, Option<String>>,
}

impl Users {
    /// A cell such as `root(0)`, or `54321` without a name.
    pub(crate) fn cell(&mut self, uid: u32) -> Cell {
        Cell::foreign(&user_phrase_of(uid, self.find(uid)))
    }

    /// `root`, or `54321` without a name.
    pub(crate) fn name(&mut self, uid: u32) -> String {
        self.find(uid).map_or_else(|| uid.to_string(), harmless)
    }

    fn find(&mut self, uid: u32) -> Option<&str> {
        let name = self.names.entry(uid);
        name.or_insert_with(|| find_username(uid)).as_deref()
    }
}
