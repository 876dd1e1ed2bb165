//! What is true on one GPU host, now: devices, environments, users and processes.
//!
//! Three sources ([`gpu`], [`proc`], [`state`]) are read by [`collect`] into one [`model::Snapshot`] per interval, with
//! each process attributed to an environment by [`attribute`] and each interval's use charged to its users by
//! [`accounting`]. [`stream`] publishes the snapshots. Nothing here speaks HTTP or SSH, parses command
//! lines or starts a program, and only [`state`] writes files.

pub mod accounting;
pub mod attribute;
pub mod collect;
pub mod duration;
pub mod enforcement;
pub mod gpu;
pub mod hosts;
pub mod model;
pub mod outside;
pub mod proc;
pub mod state;
pub mod stream;
pub mod text;
pub mod yaml;
