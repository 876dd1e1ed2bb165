//! The present facts of one GPU host: devices, environments, users and processes.
//!
//! [`collect`] reads three sources ([`gpu`], [`proc`], [`state`]) into one [`model::Snapshot`] per interval.
//! [`attribute`] finds the environment of each process, and [`accounting`] charges the use of each interval to its
//! users. [`stream`] publishes the snapshots. This crate has no HTTP, no SSH and no command line, starts no program
//! but its own ([`gpu::reader`]), and writes files only in [`state`], by [`files`].

pub mod accounting;
pub mod attribute;
pub mod collect;
pub mod duration;
pub mod enforcement;
pub mod files;
pub mod gpu;
pub mod hosts;
pub mod lab;
pub mod model;
pub mod outside;
#[cfg(test)]
mod patience;
pub mod proc;
pub mod progress;
pub mod state;
pub mod stream;
pub mod terminal;
pub mod text;
pub mod yaml;
