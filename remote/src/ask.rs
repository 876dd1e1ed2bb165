//! One question to many hosts.

use std::sync::Arc;
use std::time::Duration;

use genv_core::model::Snapshot;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::follow::{Dial, Link};
use crate::hosts::HostEntry;
use crate::protocol::{Answers, Reply, Request};
use crate::{FailureKind, HostFailure};

/// How hosts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskOptions {
    /// Hosts that are asked at the same time.
    pub concurrency: usize,
    /// How long each may take from the first packet to its answer.
    pub deadline: Duration,
}

/// What a host answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// By the host's clock, and with its name in the list.
    pub snapshot: Snapshot,
    /// What told it there.
    pub answers_with: Answers,
    /// How far the host's clock is ahead of this machine's, in seconds; none where it is off by no more than half a minute.
    pub clock_ahead_seconds: Option<f64>,
}

/// What a host answered, or why it did not.
pub type HostAnswer = Result<Answer, HostFailure>;

/// Asks each host for one snapshot. `progress` is told of each as it answers or fails; the answers are in the order of the
/// list.
pub async fn ask_once<D: Dial>(
    hosts: impl IntoIterator<Item = HostEntry>,
    dial: D,
    options: AskOptions,
    mut progress: impl FnMut(&HostEntry, &HostAnswer),
) -> Vec<(HostEntry, HostAnswer)> {
    let dial = Arc::new(dial);
    let turns = Arc::new(Semaphore::new(options.concurrency.max(1)));
    let hosts: Vec<HostEntry> = hosts.into_iter().collect();
    let mut asked = JoinSet::new();
    for (position, host) in hosts.iter().cloned().enumerate() {
        let (dial, turns) = (Arc::clone(&dial), Arc::clone(&turns));
        asked.spawn(async move {
            // It is never closed.
            let _turn = turns.acquire_owned().await;
            let answer = timeout(options.deadline, ask(&*dial, &host)).await;
            (position, answer.unwrap_or_else(|_| Err(late(options.deadline))))
        });
    }
    let mut answers: Vec<Option<HostAnswer>> = hosts.iter().map(|_| None).collect();
    while let Some(done) = asked.join_next().await {
        let Ok((position, answer)) = done else {
            continue;
        };
        progress(&hosts[position], &answer);
        answers[position] = Some(answer);
    }
    let told = answers.into_iter().map(|answer| {
        answer.unwrap_or_else(|| {
            Err(HostFailure::new(FailureKind::Protocol, "asking it ended by a defect of this program: report it"))
        })
    });
    hosts.into_iter().zip(told).collect()
}

async fn ask<D: Dial>(dial: &D, host: &HostEntry) -> HostAnswer {
    let mut link = dial.dial(host).await?;
    link.ask(&Request::Once).await?;
    match link.next().await? {
        Reply::Snapshot { mut snapshot } => {
            snapshot.hostname.clone_from(&host.name);
            Ok(Answer {
                clock_ahead_seconds: clock::ahead_seconds(
                    snapshot.timestamp_seconds,
                    clock::now_seconds(),
                    Duration::ZERO,
                ),
                snapshot: *snapshot,
                answers_with: link.answers_with(),
            })
        }
        Reply::Error { message, .. } => Err(HostFailure::new(FailureKind::Command, message)),
        Reply::Changes { .. } | Reply::Enforced { .. } => Err(HostFailure::new(
            FailureKind::Protocol,
            "it answers what it was not asked: see that genv is of the same version there and here",
        )),
    }
}

fn late(deadline: Duration) -> HostFailure {
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

    /// Hosts of which each takes its time, as its name says; one refuses, one hangs and one says nonsense.
    #[derive(Default)]
    struct Lab {
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    struct Asked(String, Arc<AtomicUsize>);

    impl Drop for Asked {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Dial for Lab {
        type Link = Asked;

        async fn dial(&self, host: &HostEntry) -> Result<Asked, HostFailure> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            let link = Asked(host.name.clone(), Arc::clone(&self.now));
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

    impl Link for Asked {
        fn answers_with(&self) -> Answers {
            Answers::Genv
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

        async fn ask(&mut self, request: &Request) -> Result<(), HostFailure> {
            assert_eq!(*request, Request::Once);
            Ok(())
        }
    }

    impl Asked {
        fn ahead_seconds(&self) -> f64 {
            if self.0 == "gpu9" { 7200.0 } else { 0.0 }
        }
    }

    fn hosts(names: &[&str]) -> Vec<HostEntry> {
        let entry = |name: &&str| HostEntry { name: (*name).to_owned(), user: None, port: None };
        names.iter().map(entry).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_in_the_order_of_the_list_whoever_is_first_and_whatever_fails() {
        let names = ["gpu9", "hangs", "gpu2", "refuses", "nonsense", "gpu5"];
        let options = AskOptions { concurrency: 10, deadline: Duration::from_secs(20) };
        let mut order = Vec::new();
        let answers = ask_once(hosts(&names), Lab::default(), options, |host, answer| {
            order.push((host.name.clone(), answer.is_ok()));
        })
        .await;
        let order: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(order, ["refuses", "nonsense", "gpu2", "gpu5", "gpu9", "hangs"]);
        let told: Vec<_> = answers
            .iter()
            .map(|(host, answer)| match answer {
                Ok(answer) => {
                    assert_eq!(answer.snapshot.hostname, host.name);
                    let ahead = answer.clock_ahead_seconds;
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
        assert_eq!(told, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_asked_at_once_than_may_be_and_waiting_costs_nobody_his_time() {
        let lab = Lab::default();
        let most = Arc::clone(&lab.most);
        let options = AskOptions { concurrency: 2, deadline: Duration::from_secs(3) };
        let names: Vec<String> = vec!["gpu2".to_owned(); 20];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let answers = ask_once(hosts(&names), lab, options, |_, _| {}).await;
        assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
        assert_eq!(most.load(Ordering::Relaxed), 2);
    }
}
