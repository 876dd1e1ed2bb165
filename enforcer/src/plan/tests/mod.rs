//! Tests of whole plans.

mod crowd;
mod daemon;
mod explain;
mod frozen;
mod generated;
mod holds;
mod idle;
mod kinds;
pub(crate) mod lab;
mod ladder;
mod left_behind;
mod limits;
mod listed;
mod moved;
mod progress;
mod promises;
mod properties;
mod reload;
mod rounds;
mod silence;
mod unconfirmed;
