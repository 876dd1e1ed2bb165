//! Tests of whole plans.

mod crowd;
pub(crate) mod daemon;
mod explain;
mod frozen;
mod generated;
mod holds;
pub(crate) mod lab;
mod ladder;
mod left_behind;
mod listed;
mod moved;
mod progress;
mod promises;
mod properties;
mod reload;
mod rounds;
mod silence;
mod unconfirmed;
