//! What only root can start: processes of other users, namespaces, and file systems that are full.

mod attribution;
mod containers;
mod diary;
mod enforcer;
mod full_disk;
mod planted_links;
mod used_outside;
mod users;
