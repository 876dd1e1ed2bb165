//! Changes of the state, as pure functions: no file, no clock, no driver, no process.

mod attached;
mod ends;
mod state;
#[cfg(test)]
pub(in crate::state) mod tests;

pub(in crate::state) use attached::{attach_free, attach_visible};
pub(in crate::state) use ends::end_environments;
pub use state::{ChangeError, EditableState};
