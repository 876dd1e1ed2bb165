//! Many hosts over SSH: one session each, kept open, through which a host sends its snapshots and is asked to act.
//!
//! A host answers with `genv remote-serve`, which speaks the [`protocol`]. What goes wrong with one is a [`HostFailure`],
//! and disturbs no other.

pub mod ask;
mod clock;
pub mod conversation;
mod failure;
pub mod fallback;
pub mod flags;
pub mod follow;
pub mod hosts;
mod known_hosts;
mod lines;
mod login;
mod open_files;
pub mod protocol;
pub mod resolve;
mod said;
mod script;
pub mod session;
mod sudo;

pub use failure::{FailureKind, HostFailure};
pub use hosts::{HostEntry, HostList, HostListError};
pub use login::login_shell;
pub use open_files::allow_open_files;
pub use resolve::{Target, resolve};
pub use session::{Session, Timeouts};
