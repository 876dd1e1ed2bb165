//! What `genv remote-serve` is made of: requests in, replies out, and what an enforcer asks for.

mod carry_out;
mod confirmations;
mod errand;
mod outbox;
mod requests;
mod snapshot_lines;

pub(crate) use carry_out::carry_out;
pub(crate) use confirmations::Confirmations;
pub(crate) use errand::Errand;
pub(crate) use outbox::{Full, Outbox};
pub(crate) use requests::{Line, Lines};
