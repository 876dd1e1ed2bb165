//! `genv remote` against hosts behind the real sshd.

mod activate;
mod daemons;
mod failures;
mod lists;
pub(crate) mod support;
