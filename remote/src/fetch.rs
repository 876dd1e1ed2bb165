//! One snapshot from each of many hosts.

use std::sync::Arc;
use std::time::Duration;

use genv_core::model::Snapshot;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::follow::{Dial, Link};
use crate::hosts::HostEntry;
use crate::protocol::{HostProgram, Reply, Request};
use crate::{FailureKind, HostFailure};

/// Limits of [`fetch_snapshots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// The largest number of hosts that are queried at the same time.
    pub concurrency: usize,
    /// The time limit for each host, from the first packet to its reply.
    pub deadline: Duration,
}

/// A snapshot from a host.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The snapshot, with the host's name in the list. Its times are by the host's clock.
    pub snapshot: Snapshot,
    /// The program that has made the snapshot.
    pub program: HostProgram,
    /// How far the host's clock is ahead of this machine's, in seconds; absent if the difference is at most half a minute.
    pub clock_ahead_seconds: Option<f64>,
}

/// A snapshot from a host, or the reason why there is none.
pub type FetchResult = Result<Fetched, HostFailure>;

/// Fetches one snapshot from each host, and calls `progress` at each result. The results are in the order of the list.
pub async fn fetch_snapshots<D: Dial>(
    hosts: impl IntoIterator<Item = HostEntry>,
    dial: D,
    options: FetchOptions,
    mut progress: impl FnMut(&HostEntry, &FetchResult),
) -> Vec<(HostEntry, FetchResult)> {
    let dial = Arc::new(dial);
    let permits = Arc::new(Semaphore::new(options.concurrency.max(1)));
    let hosts: Vec<HostEntry> = hosts.into_iter().collect();
    let mut tasks = JoinSet::new();
    for (position, host) in hosts.iter().cloned().enumerate() {
        let (dial, permits) = (Arc::clone(&dial), Arc::clone(&permits));
        tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            let result = timeout(options.deadline, fetch(&*dial, &host)).await;
            (position, result.unwrap_or_else(|_| Err(timed_out(options.deadline))))
        });
    }
    let mut results: Vec<Option<FetchResult>> = hosts.iter().map(|_| None).collect();
    while let Some(task) = tasks.join_next().await {
        let Ok((position, result)) = task else {
            continue;
        };
        progress(&hosts[position], &result);
        results[position] = Some(result);
    }
    let results = results.into_iter().map(|result| {
        result.unwrap_or_else(|| {
            Err(HostFailure::new(FailureKind::Protocol, "its task ended by a defect of this program: report it"))
        })
    });
    hosts.into_iter().zip(results).collect()
}

async fn fetch<D: Dial>(dial: &D, host: &HostEntry) -> FetchResult {
    let mut link = dial.dial(host).await?;
    link.send(&Request::Once).await?;
    match link.next().await? {
        Reply::Snapshot { mut snapshot } => {
            snapshot.hostname.clone_from(&host.name);
            Ok(Fetched {
                clock_ahead_seconds: clock::ahead_seconds(
                    snapshot.timestamp_seconds,
                    clock::now_seconds(),
                    Duration::ZERO,
                ),
                snapshot: *snapshot,
                program: link.program(),
            })
        }
        Reply::Error { message, .. } => Err(HostFailure::new(FailureKind::Command, message)),
        Reply::Changes { .. } | Reply::Enforced { .. } => Err(HostFailure::new(
            FailureKind::Protocol,
            "its reply does not fit the request: see that genv is of the same version there and here",
        )),
    }
}

fn timed_out(deadline: Duration) -> HostFailure {
    HostFailure::new(
        FailureKind::TimedOut,
        format!(
            "it did not answer within {} s: see whether it is up and what it is busy with, or allow more time",
            deadline.as_secs_f64()
        ),
    )
}

#[cfg(test)]
mod tests {

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Hosts whose names contain the seconds until their replies; other names refuse, hang, or send another reply.
    #[derive(Default)]
    struct Lab {
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    struct Connected(String, Arc<AtomicUsize>);

    impl Drop for Connected {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Dial for Lab {
        type Link = Connected;

        async fn dial(&self, host: &HostEntry) -> Result<Connected, HostFailure> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            let link = Connected(host.name.clone(), Arc::clone(&self.now));
            match host.name.as_str() {
                "hangs" => std::future::pending().await,
                "refuses" => Err(HostFailure::new(FailureKind::Authentication, "no")),
                name => {
                    let seconds = name.trim_matches(|c: char| !c.is_ascii_digit());
                    let seconds = seconds.parse().unwrap_or(1);
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(link)
                }
            }
        }
    }

    impl Link for Connected {
        fn program(&self) -> HostProgram {
            HostProgram::Genv
        }

        async fn next(&mut self) -> Result<Reply, HostFailure> {
            if self.0 == "nonsense" {
                let outcomes = serde_json::Value::Null;
                return Ok(Reply::Enforced { id: 1, outcomes });
            }
            let snapshot = Snapshot {
                hostname: "localhost".to_owned(),
                timestamp_seconds: clock::now_seconds() + self.ahead_seconds(),
                interval_seconds: 1.0,
                installed: true,
                ..Snapshot::default()
            };
            Ok(Reply::Snapshot { snapshot: Box::new(snapshot) })
        }

        async fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
            assert_eq!(*request, Request::Once);
            Ok(())
        }
    }

    impl Connected {
        fn ahead_seconds(&self) -> f64 {
            if self.0 == "gpu9" { 7200.0 } else { 0.0 }
        }
    }

    fn hosts(names: &[&str]) -> Vec<HostEntry> {
        let entry = |name: &&str| HostEntry { name: (*name).to_owned(), user: None, port: None };
        names.iter().map(entry).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_in_the_order_of_the_list() {
        let names = ["gpu9", "hangs", "gpu2", "refuses", "nonsense", "gpu5"];
        let options = FetchOptions { concurrency: 10, deadline: Duration::from_secs(20) };
        let mut order = Vec::new();
        let results = fetch_snapshots(hosts(&names), Lab::default(), options, |host, result| {
            order.push((host.name.clone(), result.is_ok()));
        })
        .await;
        let order: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(order, ["refuses", "nonsense", "gpu2", "gpu5", "gpu9", "hangs"]);
        let failures: Vec<_> = results
            .iter()
            .map(|(host, result)| match result {
                Ok(fetched) => {
                    assert_eq!(fetched.snapshot.hostname, host.name);
                    let ahead = fetched.clock_ahead_seconds;
                    assert_eq!(ahead.is_some_and(|it| it > 7000.0), host.name == "gpu9");
                    assert_eq!(ahead.is_some(), host.name == "gpu9");
                    None
                }
                Err(failure) => Some(failure.kind),
            })
            .collect();
        let expected = [
            None,
            Some(FailureKind::TimedOut),
            None,
            Some(FailureKind::Authentication),
            Some(FailureKind::Protocol),
            None,
        ];
        assert_eq!(failures, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_is_limited_and_the_deadline_begins_after_the_wait() {
        let lab = Lab::default();
        let most = Arc::clone(&lab.most);
        let options = FetchOptions { concurrency: 2, deadline: Duration::from_secs(3) };
        let names: Vec<String> = vec!["gpu2".to_owned(); 20];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let results = fetch_snapshots(hosts(&names), lab, options, |_, _| {}).await;
        assert!(results.iter().all(|(_, result)| result.is_ok()));
        assert_eq!(most.load(Ordering::Relaxed), 2);
    }
}
