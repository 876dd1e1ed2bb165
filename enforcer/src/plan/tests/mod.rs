//! Tests of whole plans.

mod daemon;
mod explain;
mod generated;
mod holds;
mod idle;
mod kinds;
pub(crate) mod lab;
mod ladder;
mod left_behind;
mod limits;
mod progress;
mod promises;
mod properties;
mod reload;
mod rounds;
mod silence;
