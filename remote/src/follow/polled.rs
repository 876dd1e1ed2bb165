//! A host without this genv. A separate task polls the host, so that a poll continues if the caller stops waiting.

use std::time::Duration;

use genv_core::collect::CollectOptions;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::fallback::{Commands, Poller};
use crate::protocol::{HostProgram, Reply, Request};
use crate::{FailureKind, HostFailure};

/// A link to a host without this genv.
#[derive(Debug)]
pub(super) struct PolledLink<C> {
    pub(super) hostname: String,
    pub(super) program: HostProgram,
    /// Whether sudo runs genv 1.x as root on the host.
    pub(super) sudo: bool,
    /// Time limit for each command on the host.
    pub(super) command_timeout: Duration,
    /// Runs commands on the host. The polling task takes it at the first request.
    commands: Option<C>,
    polling: Option<PollTask>,
}

#[derive(Debug)]
struct PollTask {
    task: JoinHandle<()>,
    replies: mpsc::Receiver<Result<Reply, HostFailure>>,
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<C: Commands + Send + 'static> PolledLink<C> {
    pub(super) fn new(
        commands: C,
        hostname: &str,
        program: HostProgram,
        sudo: bool,
        command_timeout: Duration,
    ) -> Self {
        Self { hostname: hostname.to_owned(), program, sudo, command_timeout, commands: Some(commands), polling: None }
    }

    /// The next snapshot, in the form of the protocol.
    pub(super) async fn next(&mut self) -> Result<Reply, HostFailure> {
        let Some(polling) = &mut self.polling else {
            return std::future::pending().await;
        };
        polling
            .replies
            .recv()
            .await
            .unwrap_or_else(|| Err(HostFailure::new(FailureKind::Disconnected, "it was polled once, and has answered")))
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
                    match self.program {
                        HostProgram::Genv1 => {
                            "genv 1.x there ends processes by pids that it does not verify, so it gets no step requests: \
                                                         install this genv there"
                        }
                        _ => "it has no genv that could execute steps: install genv there",
                    },
                ));
            }
        };
        let Some(commands) = self.commands.take() else {
            return Err(HostFailure::new(FailureKind::Unsupported, "it is polled already"));
        };
        let interval = every.unwrap_or(CollectOptions::default().interval);
        let options = CollectOptions::every(interval);
        let poller = Poller::new(&self.hostname, self.program, self.sudo, &options, self.command_timeout);
        let (sender, replies) = mpsc::channel(1);
        let task = tokio::spawn(poll(commands, poller, every, sender));
        self.polling = Some(PollTask { task, replies });
        Ok(())
    }
}

/// Polls once, or each interval until a poll fails or the receiver is dropped.
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
        let polled = poller.poll(&commands).await;
        let failed = polled.is_err();
        let reply = polled.map(|snapshot| Reply::Snapshot { snapshot: Box::new(snapshot) });
        let received = replies.send(reply).await.is_ok();
        if failed || !received || ticks.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{CommandEnd, CommandOutput, RunLimits};

    /// A host on which this many commands succeed, and the next one fails.
    struct SimulatedCommands(std::sync::atomic::AtomicUsize);

    impl Commands for SimulatedCommands {
        async fn run(&self, command: &str, _stdin: &[u8], limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
            assert_eq!(limits.duration, Duration::from_secs(5));
            // Longer than the caller waits.
            tokio::time::sleep(Duration::from_millis(700)).await;
            let left = self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            if left == 0 {
                return Err(HostFailure::new(FailureKind::Disconnected, "gone"));
            }
            let stdout = if command.contains("nvidia-smi") {
                "#genv-remote begin 0\nh\n1795200000 +0000\n0\n#genv-remote host 0\n0, GPU-a, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, A\n\
                 #genv-remote devices 0\n#genv-remote processes 0\n#genv-remote end 0\n"
            } else {
                "#genv-remote facts 0\n"
            };
            Ok(CommandOutput { end: CommandEnd::Exited(0), stdout: stdout.into(), stderr: String::new() })
        }
    }

    fn polled(commands: usize) -> PolledLink<SimulatedCommands> {
        let commands = SimulatedCommands(commands.into());
        let command_timeout = Duration::from_secs(5);
        PolledLink::new(commands, "gpu01", HostProgram::NvidiaSmi, false, command_timeout)
    }

    fn is_snapshot(reply: &Result<Reply, HostFailure>) -> bool {
        matches!(reply, Ok(Reply::Snapshot { snapshot }) if snapshot.devices.len() == 1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_continues_while_the_caller_does_not_wait() {
        let mut polled = polled(4);
        polled.send(&Request::Follow { interval_seconds: 10.0, changed_fields: true }).unwrap();
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
        // Polls at 0 and 10 s succeed with two commands each. The poll at 20 s fails at its first command.
        assert_eq!((snapshots, failure.kind), (2, FailureKind::Disconnected));
        assert!(waits > 150, "{waits}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_request_gets_a_single_snapshot() {
        let mut polled = polled(2);
        polled.send(&Request::Once).unwrap();
        assert!(is_snapshot(&polled.next().await));
        assert!(polled.next().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn step_requests_are_refused() {
        let enforce = Request::Enforce { id: 1, intents: serde_json::json!([]) };
        for (program, expected) in [(HostProgram::Genv1, "does not verify"), (HostProgram::NvidiaSmi, "it has no genv")]
        {
            let mut polled = PolledLink { program, ..polled(0) };
            let failure = polled.send(&enforce).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(failure.message.contains(expected), "{failure}");
        }
    }
}
