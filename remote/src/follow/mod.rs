//! A stream of snapshots from many hosts.
//!
//! Each host has a task of its own, which alone waits for it: connects, listens, and connects again (`host`). What it
//! last learned is in a cell that the publisher reads once an interval (`publisher`), so that a host which hangs, floods
//! or is dead does not hold up the sessions of others. Tests drive all of it through [`Dial`] with a clock of their own.

mod backoff;
mod cell;
mod host;
mod hosts;
mod latest;
mod polled;
mod publisher;
mod ssh;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use genv_core::stream::{SnapshotStream, channel};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

pub use hosts::HostSource;
pub use ssh::{SshDial, SshLink};

use crate::hosts::HostEntry;
use crate::protocol::{Answers, Reply, Request};
use crate::{FailureKind, HostFailure};

/// How hosts are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// Time between snapshots, and between publications.
    pub interval: Duration,
    /// Age beyond which a host's snapshot is withdrawn.
    pub max_age: Duration,
    /// How long each step may take until a host has said [`Hello`](crate::protocol::Hello); all together twice as long.
    pub connect_timeout: Duration,
    /// Hosts that may be connecting at the same time.
    pub concurrency: usize,
}

/// Connects to hosts.
pub trait Dial: Send + Sync + 'static {
    /// A session with one.
    type Link: Link;

    /// Connects to a host, up to where it can be asked. Whoever follows it gives up after twice
    /// [`FollowOptions::connect_timeout`].
    ///
    /// # Errors
    /// What went wrong.
    fn dial(&self, host: &HostEntry) -> impl Future<Output = Result<Self::Link, HostFailure>> + Send;
}

/// A session with a host, which ends with the value.
pub trait Link: Send + 'static {
    /// What the host answers with.
    fn answers_with(&self) -> Answers;

    /// The next reply. If the future is dropped before it is ready, nothing is lost.
    ///
    /// # Errors
    /// The session is of no use any more.
    fn next(&mut self) -> impl Future<Output = Result<Reply, HostFailure>> + Send;

    /// Sends a request.
    ///
    /// # Errors
    /// The session is of no use any more, or the host cannot be asked this ([`FailureKind::Unsupported`]).
    fn ask(&mut self, request: &Request) -> impl Future<Output = Result<(), HostFailure>> + Send;
}

/// Follows hosts, each from now on, until nobody has a stream any more. Must be called within a runtime.
///
/// The first publication waits until every host has delivered a snapshot or failed, but not longer than an interval.
pub fn follow<D: Dial>(source: HostSource, dial: D, options: FollowOptions) -> (SnapshotStream, Fleet) {
    let (publisher, stream) = channel();
    let fleet = Fleet::default();
    let followed = hosts::Followed::new(Arc::new(dial), options, fleet.clone());
    tokio::spawn(publisher::run(source, followed, publisher));
    (stream, fleet)
}

/// The hosts that are followed, to be asked to act.
#[derive(Clone, Debug, Default)]
pub struct Fleet(Arc<RwLock<HashMap<String, mpsc::Sender<Errand>>>>);

/// Something that a host is to do.
#[derive(Debug)]
struct Errand {
    intents: Value,
    outcomes: oneshot::Sender<Result<Value, NotEnforced>>,
}

/// A host did not say how what it was asked went.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct NotEnforced {
    /// Why.
    pub failure: HostFailure,
    /// Whether it may have been done.
    pub may_be_done: bool,
}

impl From<HostFailure> for NotEnforced {
    /// Of a host that was not asked, or that answered that it could not.
    fn from(failure: HostFailure) -> Self {
        Self { failure, may_be_done: false }
    }
}

impl Fleet {
    /// Asks a host to carry out what an enforcer decided, and waits for its answer.
    ///
    /// # Errors
    /// The host is not followed, there is no session with it now, it refused, or the session ended before it answered: then
    /// nobody here knows whether it was done.
    pub async fn enforce(&self, hostname: &str, intents: Value) -> Result<Value, NotEnforced> {
        let errands = {
            let hosts = self.0.read().unwrap_or_else(PoisonError::into_inner);
            hosts.get(hostname).cloned()
        };
        let errands =
            errands.ok_or_else(|| HostFailure::new(FailureKind::Unresolved, "it is no host that is followed"))?;
        let (outcomes, answer) = oneshot::channel();
        let ended = |_| NotEnforced {
            failure: HostFailure::new(FailureKind::Disconnected, "its session ended before it answered"),
            may_be_done: true,
        };
        let errand = Errand { intents, outcomes };
        errands.try_send(errand).map_err(|_| {
            HostFailure::new(
                FailureKind::TimedOut,
                "too much is asked of it already: it is asked again in the next cycle",
            )
        })?;
        answer.await.map_err(ended)?
    }

    fn replace(&self, hosts: HashMap<String, mpsc::Sender<Errand>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }
}
