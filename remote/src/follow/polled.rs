//! A host without our genv, polled in a task of its own: whoever listens to it may stop waiting, and a poll goes on.

use std::time::Duration;

use genv_core::collect::CollectOptions;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::fallback::{Commands, Poller};
use crate::protocol::{Answers, Reply, Request};
use crate::{FailureKind, HostFailure};

/// How a host is polled.
#[derive(Debug)]
pub(super) struct Polled<C> {
    pub(super) hostname: String,
    pub(super) answers: Answers,
    /// Whether genv 1.x runs as root there.
    pub(super) sudo: bool,
    /// How long each of its commands may take.
    pub(super) patience: Duration,
    /// Until somebody asks.
    commands: Option<C>,
    polling: Option<Polling>,
}

#[derive(Debug)]
struct Polling {
    task: JoinHandle<()>,
    replies: mpsc::Receiver<Result<Reply, HostFailure>>,
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<C: Commands + Send + 'static> Polled<C> {
    pub(super) fn new(commands: C, hostname: &str, answers: Answers, sudo: bool, patience: Duration) -> Self {
        Self { hostname: hostname.to_owned(), answers, sudo, patience, commands: Some(commands), polling: None }
    }

    /// The next snapshot, as the host would send it that had genv.
    pub(super) async fn next(&mut self) -> Result<Reply, HostFailure> {
        let Some(polling) = &mut self.polling else {
            return std::future::pending().await;
        };
        polling
            .replies
            .recv()
            .await
            .unwrap_or_else(|| Err(HostFailure::new(FailureKind::Disconnected, "it was asked once, and has answered")))
    }

    pub(super) fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
        let every = match request {
            Request::Follow { interval_seconds, .. } => {
                Some(Duration::try_from_secs_f64(*interval_seconds).map_err(|error| {
                    HostFailure::new(FailureKind::Unsupported, format!("cannot follow it: {error}"))
                })?)
            }
            Request::Once => None,
            Request::Alive => return Ok(()),
            Request::Enforce { .. } => {
                return Err(HostFailure::new(
                    FailureKind::Unsupported,
                    match self.answers {
                        Answers::Genv1 => {
                            "genv 1.x there ends processes by numbers that it does not verify, and is never asked to: \
                             install this genv there"
                        }
                        _ => "there is no genv that could act: install genv there",
                    },
                ));
            }
        };
        let Some(commands) = self.commands.take() else {
            return Err(HostFailure::new(FailureKind::Unsupported, "it is polled already"));
        };
        let interval = every.unwrap_or(CollectOptions::default().interval);
        let options = CollectOptions::every(interval);
        let poller = Poller::new(&self.hostname, self.answers, self.sudo, &options, self.patience);
        let (sender, replies) = mpsc::channel(1);
        let task = tokio::spawn(poll(commands, poller, every, sender));
        self.polling = Some(Polling { task, replies });
        Ok(())
    }
}

/// Polls each interval, or once, until a poll fails or nobody listens.
async fn poll<C: Commands>(
    commands: C,
    mut poller: Poller,
    every: Option<Duration>,
    replies: mpsc::Sender<Result<Reply, HostFailure>>,
) {
    let mut ticks = every.map(|every| {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    });
    loop {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let told = poller.poll(&commands).await;
        let failed = told.is_err();
        let reply = told.map(|snapshot| Reply::Snapshot { snapshot: Box::new(snapshot) });
        let heard = replies.send(reply).await.is_ok();
        if failed || !heard || ticks.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{CommandEnd, CommandOutput, RunLimits};

    /// A host whose first commands answer, of which the rest fail.
    struct Answering(std::sync::atomic::AtomicUsize);

    impl Commands for Answering {
        async fn run(&self, command: &str, _stdin: &[u8], limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
            assert_eq!(limits.duration, Duration::from_secs(5));
            // Slower than whoever listens is patient.
            tokio::time::sleep(Duration::from_millis(700)).await;
            let left = self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            if left == 0 {
                return Err(HostFailure::new(FailureKind::Disconnected, "gone"));
            }
            let stdout = if command.contains("nvidia-smi") {
                "#genv-remote begin 0\nh\n1795200000 +0000\n0\n#genv-remote host 0\n0, GPU-a, 1, 1, 1, 1, 1, 1, 1, 1, 1, A\n\
                 #genv-remote devices 0\n#genv-remote processes 0\n#genv-remote end 0\n"
            } else {
                "#genv-remote facts 0\n"
            };
            Ok(CommandOutput { end: CommandEnd::Exited(0), stdout: stdout.into(), stderr: String::new() })
        }
    }

    fn polled(commands: usize) -> Polled<Answering> {
        let commands = Answering(commands.into());
        let patience = Duration::from_secs(5);
        Polled::new(commands, "gpu01", Answers::NvidiaSmi, false, patience)
    }

    fn is_snapshot(reply: &Result<Reply, HostFailure>) -> bool {
        matches!(reply, Ok(Reply::Snapshot { snapshot }) if snapshot.devices.len() == 1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_goes_on_while_who_listens_looks_elsewhere() {
        let mut polled = polled(4);
        polled.send(&Request::Follow { interval_seconds: 10.0, changes: true }).unwrap();
        let mut snapshots = 0;
        let mut waits = 0;
        let failure = loop {
            match tokio::time::timeout(Duration::from_millis(100), polled.next()).await {
                Err(_) => waits += 1,
                Ok(Err(failure)) => break failure,
                Ok(reply) => {
                    assert!(is_snapshot(&reply), "{reply:?}");
                    snapshots += 1;
                }
            }
            polled.send(&Request::Alive).unwrap();
        };
        // At 0 and 10 s, each after two commands; the third fails at its first.
        assert_eq!((snapshots, failure.kind), (2, FailureKind::Disconnected));
        assert!(waits > 150, "{waits}");
    }

    #[tokio::test(start_paused = true)]
    async fn asked_once_it_answers_once() {
        let mut polled = polled(2);
        polled.send(&Request::Once).unwrap();
        assert!(is_snapshot(&polled.next().await));
        assert!(polled.next().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_never_asked_to_end_anything() {
        let enforce = Request::Enforce { id: 1, intents: serde_json::json!([]) };
        for (answers, expected) in [(Answers::Genv1, "does not verify"), (Answers::NvidiaSmi, "there is no genv")] {
            let mut polled = Polled { answers, ..polled(0) };
            let failure = polled.send(&enforce).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(failure.message.contains(expected), "{failure}");
        }
    }
}
