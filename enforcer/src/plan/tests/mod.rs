//! Tests of whole plans.

mod kinds;
mod lab;
mod ladder;
