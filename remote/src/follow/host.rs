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
use super::cell::Cell;
use super::latest::Latest;
use super::{Dial, EnforceCall, FollowOptions, Link, NotEnforced};
use crate::clock;
use crate::hosts::HostEntry;
use crate::protocol::{Reply, Request};
use crate::{FailureKind, HostFailure};

/// A host that is connected has this many intervals to deliver, or the age at which its snapshot is withdrawn.
const MISSED_INTERVALS: u32 = 3;

/// All steps until a host can be asked may together take so many times as long as one of them.
const STEPS: u32 = 2;

/// Sending is waited for so long: it takes a host that does not read, or a path that is cut.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// [`Request::Alive`] is sent so often.
const ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// A session with a host that cannot be asked to act may have begun before somebody mended that, if it is as old as this.
const RENEWED_AFTER: Duration = Duration::from_secs(4 * 60);

type Pending = HashMap<u64, oneshot::Sender<Result<Value, NotEnforced>>>;

/// Everything that the task of a host works with.
pub(super) struct Host<D> {
    pub(super) entry: HostEntry,
    pub(super) dial: Arc<D>,
    pub(super) options: FollowOptions,
    pub(super) connecting: Arc<Semaphore>,
    pub(super) cell: Cell,
    pub(super) calls: mpsc::Receiver<EnforceCall>,
}

impl<D: Dial> Host<D> {
    /// Connects, listens, and connects again, until the task is ended.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut skewed = false;
        loop {
            let failure = match self.connect().await {
                Ok(link) => {
                    let delivered = self.listen(link, &mut skewed).await;
                    if delivered.snapshots > 0 {
                        backoff.reset();
                    }
                    delivered.failure
                }
                Err(failure) => failure,
            };
            let wait = backoff.next(failure.kind, random());
            self.cell.failed(failure.clone());
            self.refuse_calls(&failure, wait).await;
        }
    }

    async fn connect(&self) -> Result<D::Link, HostFailure> {
        let permit = self.connecting.acquire().await;
        let began = Instant::now();
        // Whatever hangs is named by the step that it holds up, which has its own limit.
        let limit = self.options.connect_timeout * STEPS;
        let dialled = timeout(limit, self.dial.dial(&self.entry)).await;
        drop(permit);
        let link = dialled.unwrap_or_else(|_| {
            Err(HostFailure::new(
                FailureKind::TimedOut,
                format_args!(
                    "it did not come to an answer within {} s, each step of which was slow: see how busy it is, and the way to it",
                    limit.as_secs_f64()
                ),
            ))
        })?;
        self.cell.connected(began.elapsed());
        Ok(link)
    }

    /// Hears a host until something goes wrong.
    async fn listen(&mut self, mut link: D::Link, skewed: &mut bool) -> Delivered {
        let mut snapshots = 0;
        let ended = |snapshots, failure| Delivered { snapshots, failure };
        let follow = Request::Follow { interval_seconds: self.options.interval.as_secs_f64(), changes: true };
        if let Err(failure) = send(&mut link, &follow).await {
            return ended(snapshots, failure);
        }
        let patience = self.options.max_age.max(self.options.interval * MISSED_INTERVALS);
        let mut deadline = Instant::now() + patience;
        let mut alive = interval(ALIVE_INTERVAL);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pending = Pending::new();
        let mut latest = Latest::default();
        let mut last_id = 0;
        let began = Instant::now();
        loop {
            let reply = loop {
                tokio::select! {
                    reply = link.next() => break reply,
                    () = sleep_until(deadline) => break Err(HostFailure::new(
                        FailureKind::TimedOut,
                        format_args!(
                            "it is connected, and has sent no snapshot for {} s: see what it is busy with; its session is begun anew",
                            patience.as_secs_f64()
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
                                if began.elapsed() > RENEWED_AFTER {
                                    break Err(HostFailure::new(
                                        FailureKind::Disconnected,
                                        "it cannot be asked to act: its session is begun anew, to see whether that was mended",
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
                Ok(Reply::Changes { changes }) => match latest.changed(*changes) {
                    Ok(snapshot) => snapshot,
                    Err(failure) => return ended(snapshots, failure),
                },
                Ok(Reply::Enforced { id, outcomes }) => {
                    answer(&mut pending, id, Ok(outcomes));
                    continue;
                }
                Ok(Reply::Error { id: Some(id), message }) if pending.contains_key(&id) => {
                    let failure = HostFailure::new(FailureKind::Command, message);
                    answer(&mut pending, id, Err(failure.into()));
                    continue;
                }
                Ok(Reply::Error { message, .. }) => {
                    return ended(snapshots, HostFailure::new(FailureKind::Command, message));
                }
                Err(failure) => return ended(snapshots, failure),
            };
            snapshots += 1;
            deadline = Instant::now() + patience;
            latest.keep(self.receive(snapshot, skewed));
        }
    }

    /// Publishes a snapshot, with the host's name in the list and else as it came.
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
                "the host's clock differs from this one's: its snapshots are taken by the time at which they come; set its clock (chrony, systemd-timesyncd)"
            );
        } else if *skewed && ahead.is_none() {
            tracing::info!(hostname, "the host's clock agrees with this one's again");
        }
        *skewed = ahead.is_some();
        snapshot.hostname.clone_from(hostname);
        let snapshot = Arc::new(snapshot);
        self.cell.received(Arc::clone(&snapshot), now_seconds);
        snapshot
    }

    /// Waits before the next attempt, and refuses calls during this time.
    async fn refuse_calls(&mut self, failure: &HostFailure, wait: Duration) {
        let mut waited = pin!(sleep(wait));
        loop {
            tokio::select! {
                () = &mut waited => return,
                Some(call) = self.calls.recv() => {
                    let _ = call.outcomes.send(Err(failure.clone().into()));
                }
            }
        }
    }
}

/// What came of a session.
struct Delivered {
    snapshots: u64,
    failure: HostFailure,
}

async fn send(link: &mut impl Link, request: &Request) -> Result<(), HostFailure> {
    let sent = timeout(SEND_TIMEOUT, link.send(request)).await;
    sent.unwrap_or_else(|_| {
        Err(HostFailure::new(FailureKind::TimedOut, "it does not read what is sent to it: its session is begun anew"))
    })
}

fn answer(pending: &mut Pending, id: u64, outcomes: Result<Value, NotEnforced>) {
    if let Some(asked) = pending.remove(&id) {
        // Nobody may be waiting any more.
        let _ = asked.send(outcomes);
    }
}

/// From 0 to 1; it only has to differ from host to host.
fn random() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
