//! How requests reach hosts.

use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use genv_remote::follow::{Fleet, NotEnforced};
use genv_remote::{FailureKind, HostFailure};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a host may take for its report: SSH can be slow, and the host reads its GPUs again.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(25);

/// The report of a host as JSON, or the reason why there is no report.
pub(crate) type HostReply = Result<Value, NotEnforced>;

/// Sends requests to hosts.
pub(crate) trait Transport: Debug + Send {
    /// Sends a request. `on_reply` is called once, on any thread, and not later than [`REPORT_TIMEOUT`].
    fn send(&self, hostname: &str, request: Value, on_reply: Box<dyn FnOnce(HostReply) + Send>);
}

/// Sends requests through the SSH sessions that also deliver the snapshots.
#[derive(Clone, Debug)]
pub(crate) struct SshTransport {
    fleet: Arc<RwLock<Fleet>>,
    runtime: Handle,
}

impl SshTransport {
    pub(crate) fn new(fleet: Fleet, runtime: Handle) -> Self {
        Self { fleet: Arc::new(RwLock::new(fleet)), runtime }
    }

    /// Uses other sessions from now on. A new interval has new sessions.
    pub(crate) fn replace(&self, fleet: Fleet) {
        *self.fleet.write().unwrap_or_else(PoisonError::into_inner) = fleet;
    }
}

impl Transport for SshTransport {
    fn send(&self, hostname: &str, request: Value, on_reply: Box<dyn FnOnce(HostReply) + Send>) {
        let fleet = self.fleet.read().unwrap_or_else(PoisonError::into_inner).clone();
        let hostname = hostname.to_owned();
        self.runtime.spawn(async move {
            let reply = timeout(REPORT_TIMEOUT, fleet.enforce(&hostname, request)).await;
            on_reply(reply.unwrap_or_else(|_| {
                let seconds = REPORT_TIMEOUT.as_secs();
                let message = format_args!("it did not answer within {seconds} s");
                let failure = HostFailure::new(FailureKind::TimedOut, message);
                Err(NotEnforced { failure, may_be_done: true })
            }));
        });
    }
}
