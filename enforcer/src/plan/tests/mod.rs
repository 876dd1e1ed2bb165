//! Tests of whole plans.

mod explain;
mod holds;
mod idle;
mod kinds;
mod lab;
mod ladder;
mod promises;
mod properties;
mod rounds;
mod silence;
