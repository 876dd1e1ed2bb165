//! What only root can start: processes of other users, namespaces, and file systems that are full.

mod attribution;
mod containers;
mod diary;
mod enforcer;
mod full_disk;
mod planted_links;
mod used_outside;
mod users;

use genv_tests::root::FIRST_UID;

/// Users without a name on any machine.
const ALICE: u32 = FIRST_UID;
const BOB: u32 = FIRST_UID + 1;

/// An environ in which no environment is claimed.
const ANYTHING: [(&str, &str); 1] = [("A", "1")];
