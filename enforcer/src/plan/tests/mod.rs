//! Tests of whole plans.

mod holds;
mod idle;
mod kinds;
mod lab;
mod ladder;
mod promises;
mod properties;
mod rounds;
