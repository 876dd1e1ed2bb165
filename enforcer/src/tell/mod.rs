//! Telling people: users in their [`terminals`], administrators in the log, which the [`journal`] takes with its fields.

pub mod journal;
pub mod notice;
pub(crate) mod notifier;
pub(crate) mod post;
mod readers;
pub mod terminals;
