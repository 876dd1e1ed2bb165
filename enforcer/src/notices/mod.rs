//! Notices to users: in their terminals, and through the administrator's notifier.

pub(crate) mod delivery;
pub(crate) mod notice;
pub(crate) mod notifier;
mod readers;
mod terminals;
mod text;
