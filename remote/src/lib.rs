//! Both ends of the connection to other hosts over SSH.
//!
//! The client keeps one session to each host. `genv remote-serve`, with the engine [`serve`], runs in the session. Both ends
//! speak the [`protocol`]. An error of one host is a [`HostFailure`], and does not affect other hosts.

mod clock;
pub mod conversation;
mod failure;
pub mod fallback;
pub mod fetch;
pub mod flags;
pub mod follow;
pub mod hosts;
mod known_hosts;
mod lines;
mod login;
mod open_files;
pub mod protocol;
pub mod resolve;
mod script;
pub mod serve;
pub mod session;
mod sudo;

pub use failure::{FailureKind, HostFailure};
pub use hosts::{HostEntry, HostList, HostListError, login_name};
pub use login::login_shell;
pub use open_files::allow_open_files;
pub use resolve::{Target, resolve};
pub use session::{LoginAttempts, Session, Timeouts};
