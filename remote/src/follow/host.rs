//! The task of one host.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use genv_core::model::Snapshot;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::backoff::Backoff;
use super::last_snapshot::LastSnapshot;
use super::status::SharedStatus;
use super::{Dial, EnforceCall, FollowOptions, Link, NotEnforced};
use crate::clock;
use crate::hosts::HostEntry;
use crate::protocol::{Reply, Request};
use crate::{FailureKind, HostFailure};

/// The time limit for the next snapshot, in intervals. [`FollowOptions::max_age`] counts if it is longer.
const MISSED_INTERVALS: u32 = 3;

/// The time limit for the whole connection, in multiples of the limit for one step.
const STEPS: u32 = 2;

/// The time limit for sending a request. A host that does not read, or a broken network path, exceeds it.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval between two requests [`Request::Alive`].
const ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// A session without support for steps is opened anew after this time: its host may have got support meanwhile.
const RENEWED_AFTER: Duration = Duration::from_secs(4 * 60);

type Pending = HashMap<u64, oneshot::Sender<Result<Value, NotEnforced>>>;

pub(super) struct HostTask<D> {
    pub(super) entry: HostEntry,
    pub(super) dial: Arc<D>,
    pub(super) options: FollowOptions,
    pub(super) connecting: Arc<Semaphore>,
    pub(super) status: SharedStatus,
    pub(super) calls: mpsc::Receiver<EnforceCall>,
}

impl<D: Dial> HostTask<D> {
    /// Connects, receives snapshots, and connects again, until the task is aborted.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut skewed = false;
        loop {
            let failure = match self.connect().await {
                Ok(link) => {
                    let end = self.receive_all(link, &mut skewed).await;
                    if end.snapshots > 0 {
                        backoff.reset();
                    }
                    end.failure
                }
                Err(failure) => failure,
            };
            let wait = backoff.next(failure.kind, random());
            self.status.failed(failure.clone());
            self.refuse_calls(&failure, wait).await;
        }
    }

    async fn connect(&self) -> Result<D::Link, HostFailure> {
        let permit = self.connecting.acquire().await;
        let started = Instant::now();
        // The limit of a step is shorter, so that its error names the step that hangs.
        let limit = self.options.connect_timeout * STEPS;
        // A future has the size of its largest state for its whole life, here the life of this task. The box frees the
        // states of the setup, which are large.
        let dialled = timeout(limit, Box::pin(self.dial.dial(&self.entry))).await;
        drop(permit);
        let link = dialled.unwrap_or_else(|_| {
            Err(HostFailure::new(
                FailureKind::TimedOut,
                format_args!(
                    "it was not connected within {} s, since each step was slow: see how busy the host and the network are",
                    limit.as_secs_f64()
                ),
            ))
        })?;
        self.status.connected(started.elapsed());
        Ok(link)
    }

    /// Receives snapshots and answers calls until an error.
    async fn receive_all(&mut self, mut link: D::Link, skewed: &mut bool) -> SessionEnd {
        let mut snapshots = 0;
        let ended = |snapshots, failure| SessionEnd { snapshots, failure };
        let follow = Request::Follow { interval_seconds: self.options.interval.as_secs_f64(), changed_fields: true };
        if let Err(failure) = send(&mut link, &follow).await {
            return ended(snapshots, failure);
        }
        let snapshot_timeout = self.options.max_age.max(self.options.interval * MISSED_INTERVALS);
        let mut deadline = Instant::now() + snapshot_timeout;
        let mut alive = interval(ALIVE_INTERVAL);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pending = Pending::new();
        let mut last_snapshot = LastSnapshot::default();
        let mut last_id = 0;
        let started = Instant::now();
        loop {
            let reply = loop {
                tokio::select! {
                    reply = link.next() => break reply,
                    () = sleep_until(deadline) => break Err(HostFailure::new(
                        FailureKind::TimedOut,
                        format_args!(
                            "it is connected, and has sent no snapshot for {} s: see how busy it is; its session is opened anew",
                            snapshot_timeout.as_secs_f64()
                        ),
                    )),
                    _ = alive.tick() => {
                        if let Err(failure) = send(&mut link, &Request::Alive).await {
                            break Err(failure);
                        }
                    }
                    Some(call) = self.calls.recv() => {
                        last_id += 1;
                        let request = Request::Enforce { id: last_id, intents: call.intents };
                        match send(&mut link, &request).await {
                            Ok(()) => { pending.insert(last_id, call.outcomes); }
                            // The snapshots of a host that cannot execute steps are still useful.
                            Err(failure) if failure.kind == FailureKind::Unsupported => {
                                let _ = call.outcomes.send(Err(failure.into()));
                                if started.elapsed() > RENEWED_AFTER {
                                    break Err(HostFailure::new(
                                        FailureKind::Disconnected,
                                        "it does not accept step requests: its session is opened anew, to see whether it does now",
                                    ));
                                }
                            }
                            Err(failure) => {
                                let not_enforced = NotEnforced { failure: failure.clone(), may_be_done: true };
                                let _ = call.outcomes.send(Err(not_enforced));
                                break Err(failure);
                            }
                        }
                    }
                }
            };
            let snapshot = match reply {
                Ok(Reply::Snapshot { snapshot }) => *snapshot,
                Ok(Reply::Changes { changes }) => match last_snapshot.changed(&changes) {
                    Ok(snapshot) => snapshot,
                    Err(failure) => return ended(snapshots, failure),
                },
                Ok(Reply::Enforced { id, outcomes }) => {
                    complete(&mut pending, id, Ok(outcomes));
                    continue;
                }
                Ok(Reply::Error { id: Some(id), message }) if pending.contains_key(&id) => {
                    let failure = HostFailure::new(FailureKind::Command, message);
                    complete(&mut pending, id, Err(failure.into()));
                    continue;
                }
                Ok(Reply::Error { message, .. }) => {
                    return ended(snapshots, HostFailure::new(FailureKind::Command, message));
                }
                Err(failure) => return ended(snapshots, failure),
            };
            snapshots += 1;
            deadline = Instant::now() + snapshot_timeout;
            // The kept snapshot has the name of the list. Changes contain the host's own name only if it changed, and
            // `receive` overwrites it.
            last_snapshot.keep(self.receive(snapshot, skewed));
        }
    }

    /// Publishes a snapshot with the host's name in the list. Warns once if the clocks differ.
    fn receive(&self, mut snapshot: Snapshot, skewed: &mut bool) -> Arc<Snapshot> {
        let now_seconds = clock::now_seconds();
        let interval = self.options.interval;
        let ahead = clock::ahead_seconds(snapshot.timestamp_seconds, now_seconds, interval);
        let hostname = &self.entry.name;
        if let Some(ahead) = ahead
            && !*skewed
        {
            tracing::warn!(
                hostname,
                skew_seconds = ahead.round(),
                "the host's clock differs from this machine's: the age of its snapshots counts from their arrival; set its clock (chrony, systemd-timesyncd)"
            );
        } else if *skewed && ahead.is_none() {
            tracing::info!(hostname, "the host's clock agrees with this machine's again");
        }
        *skewed = ahead.is_some();
        snapshot.hostname.clone_from(hostname);
        let snapshot = Arc::new(snapshot);
        self.status.received(Arc::clone(&snapshot), now_seconds);
        snapshot
    }

    /// Waits before the next attempt, and refuses calls during this time.
    async fn refuse_calls(&mut self, failure: &HostFailure, wait: Duration) {
        let mut sleep = pin!(sleep(wait));
        loop {
            tokio::select! {
                () = &mut sleep => return,
                Some(call) = self.calls.recv() => {
                    let _ = call.outcomes.send(Err(failure.clone().into()));
                }
            }
        }
    }
}

struct SessionEnd {
    /// The number of received snapshots.
    snapshots: u64,
    failure: HostFailure,
}

async fn send(link: &mut impl Link, request: &Request) -> Result<(), HostFailure> {
    let sent = timeout(SEND_TIMEOUT, link.send(request)).await;
    sent.unwrap_or_else(|_| {
        Err(HostFailure::new(FailureKind::TimedOut, "it does not read requests: its session is opened anew"))
    })
}

fn complete(pending: &mut Pending, id: u64, outcomes: Result<Value, NotEnforced>) {
    if let Some(caller) = pending.remove(&id) {
        // The caller may have stopped waiting.
        let _ = caller.send(outcomes);
    }
}

/// A number from 0 to 1 that differs from host to host.
fn random() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
