//! A daemon that applies a lab's rules on the use of GPUs.
//!
//! Each cycle a [`Publication`](genv_core::model::Publication), the [`config`] and the history of earlier cycles go into
//! [`plan::plan`], which is pure: no clock, no I/O, no idea whether its steps will be carried out. What it returns is
//! told to the users, logged, measured, and carried out or not; how each step went is settled in the history.
//! Every tool (`run`, `check`, `test`, `replay`, `explain`) calls the same function, so that what is shown is what
//! happens.

pub mod config;
pub mod directory;
pub mod execute;
pub mod plan;
pub mod rule_test;
