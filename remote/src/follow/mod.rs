//! A stream of snapshots from all hosts.
//!
//! Each host has its own task (`host`), which connects, receives snapshots, and connects again. The task writes the host's
//! status, and the publisher reads the status of all hosts each interval (`publisher`). So a host that hangs, floods or is
//! down delays no other host. Tests replace the connections with their own [`Dial`], and use a paused clock.

mod backoff;
mod host;
mod hosts;
mod last_snapshot;
mod polled;
mod publisher;
mod ssh;
mod status;
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
use crate::protocol::{HostProgram, Reply, Request};
use crate::{FailureKind, HostFailure};

/// Intervals and limits of [`follow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// Time between snapshots, and between publications.
    pub interval: Duration,
    /// Age beyond which a host's snapshot is withdrawn.
    pub max_age: Duration,
    /// Time limit for each step until the [`Hello`](crate::protocol::Hello) of a host. All steps together have twice this limit.
    pub connect_timeout: Duration,
    /// The largest number of hosts that connect at the same time.
    pub concurrency: usize,
}

/// Connects to hosts.
pub trait Dial: Send + Sync + 'static {
    /// A session with a host.
    type Link: Link;

    /// Connects to a host until it accepts requests. The caller cancels the attempt after twice
    /// [`FollowOptions::connect_timeout`].
    ///
    /// # Errors
    /// A step of the connection failed.
    fn dial(&self, host: &HostEntry) -> impl Future<Output = Result<Self::Link, HostFailure>> + Send;
}

/// A session with a host. A drop ends it.
pub trait Link: Send + 'static {
    /// The program that answers on the host.
    fn program(&self) -> HostProgram;

    /// The next reply. If the future is dropped before it is ready, no byte is lost.
    ///
    /// # Errors
    /// The session is over.
    fn next(&mut self) -> impl Future<Output = Result<Reply, HostFailure>> + Send;

    /// Sends a request.
    ///
    /// # Errors
    /// The session is over, or the host does not support the request ([`FailureKind::Unsupported`]).
    fn send(&mut self, request: &Request) -> impl Future<Output = Result<(), HostFailure>> + Send;
}

/// Follows hosts until the last stream is dropped. Must be called within a tokio runtime.
///
/// The first publication waits until each host has delivered a snapshot or failed, but at most one interval. If some had done
/// neither, another publication follows as soon as all have.
pub fn follow<D: Dial>(source: HostSource, dial: D, options: FollowOptions) -> (SnapshotStream, Fleet) {
    let (publisher, stream) = channel();
    let fleet = Fleet::default();
    let followed = hosts::FollowedHosts::new(Arc::new(dial), options, fleet.clone());
    tokio::spawn(publisher::run(source, followed, publisher));
    (stream, fleet)
}

/// Sends [`Request::Enforce`] to followed hosts.
#[derive(Clone, Debug, Default)]
pub struct Fleet(Arc<RwLock<HashMap<String, mpsc::Sender<EnforceCall>>>>);

/// A [`Request::Enforce`] that waits for the task of its host, with the channel for the outcomes.
#[derive(Debug)]
struct EnforceCall {
    intents: Value,
    outcomes: oneshot::Sender<Result<Value, NotEnforced>>,
}

/// The error of a [`Request::Enforce`] without outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct NotEnforced {
    /// The reason.
    pub failure: HostFailure,
    /// Whether the host may have executed steps.
    pub may_be_done: bool,
}

impl From<HostFailure> for NotEnforced {
    /// The error of a request that was not sent, or that the host refused.
    fn from(failure: HostFailure) -> Self {
        Self { failure, may_be_done: false }
    }
}

impl Fleet {
    /// Sends intents to a host, and waits for the outcomes.
    ///
    /// # Errors
    /// The host is not followed, has no session now, refused, or its session ended before the reply. After the end of a
    /// session it is not known whether the host executed steps.
    pub async fn enforce(&self, hostname: &str, intents: Value) -> Result<Value, NotEnforced> {
        let calls = {
            let hosts = self.0.read().unwrap_or_else(PoisonError::into_inner);
            hosts.get(hostname).cloned()
        };
        let calls =
            calls.ok_or_else(|| HostFailure::new(FailureKind::Unresolved, "it is not a host that is followed"))?;
        let (outcomes, reply) = oneshot::channel();
        let ended = |_| NotEnforced {
            failure: HostFailure::new(FailureKind::Disconnected, "its session ended before it answered"),
            may_be_done: true,
        };
        let call = EnforceCall { intents, outcomes };
        calls.try_send(call).map_err(|_| {
            HostFailure::new(
                FailureKind::TimedOut,
                "too many requests to it are waiting: the next cycle sends this one again",
            )
        })?;
        reply.await.map_err(ended)?
    }

    fn replace(&self, hosts: HashMap<String, mpsc::Sender<EnforceCall>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }
}
