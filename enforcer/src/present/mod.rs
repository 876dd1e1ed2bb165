//! The sentences that people read about a plan, for log, status, notices, `why`, `explain` and `replay` alike.

mod violation;
pub(crate) mod words;

pub(crate) use violation::WrittenFact;
