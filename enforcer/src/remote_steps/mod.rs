//! Steps on other hosts.
//!
//! The enforcer of a monitoring machine plans for all hosts. Its `dispatcher` sends each host a [`StepRequest`] over the
//! `transport`. On the host `genv remote-serve` starts `genv-enforcer carry-out`, which is `execution`: it plans again
//! with the rules in the request, executes the steps that its own plan confirms, and prints a [`StepReport`]. A request
//! has rules, violations and targets, and never bare pids: an outdated view of the monitoring machine harms no process.

pub(crate) mod dispatcher;
pub(crate) mod execution;
mod messages;
pub(crate) mod transport;

pub use messages::{RemoteStep, Rules, StepReport, StepRequest, VERSION};
