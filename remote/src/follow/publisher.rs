//! Publishes what is known of all hosts: once an interval, and as soon as each host of the start has delivered or failed.

use std::sync::Arc;

use genv_core::files::Watched;
use genv_core::model::Publication;
use genv_core::stream::Publisher;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Dial;
use super::hosts::{FollowedHosts, HostSource};
use crate::hosts::HostList;

/// Runs until nobody has a stream any more.
pub(super) async fn run<D: Dial>(source: HostSource, mut followed: FollowedHosts<D>, publisher: Publisher) {
    let mut file = HostFile::new(source);
    if let Some(hosts) = file.look().await {
        followed.replace(&hosts);
    }
    let interval_length = followed.interval();
    let mut ticks = interval_at(Instant::now() + interval_length, interval_length);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut are_settled = false;
    let mut sequence = 0;
    loop {
        let is_due = tokio::select! {
            _ = ticks.tick() => true,
            () = file.wake.notified() => false,
            () = followed.settled(), if !are_settled => {
                are_settled = true;
                ticks.reset();
                true
            }
        };
        if publisher.is_closed() {
            return;
        }
        if let Some(hosts) = file.look().await {
            followed.replace(&hosts);
        }
        if !is_due {
            continue;
        }
        sequence += 1;
        publisher.publish(Publication { sequence, hosts: followed.publish() });
    }
}

/// The host file, which is read when it has changed.
struct HostFile {
    source: HostSource,
    /// Absent while a thread reads it, and if there is no file.
    watched: Option<Watched>,
    wake: Arc<Notify>,
    last: Option<Result<HostList, String>>,
}

impl HostFile {
    fn new(source: HostSource) -> Self {
        let watched = source.file().cloned().map(Watched::new);
        let wake = watched.as_ref().map(Watched::wake).unwrap_or_default();
        Self { source, watched, wake, last: None }
    }

    async fn read(&mut self) -> Option<Result<HostList, String>> {
        let Some(mut watched) = self.watched.take() else {
            // What the command line names cannot change.
            let is_first = self.last.is_none();
            return is_first.then(|| self.source.read().map_err(|error| error.to_string()));
        };
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || {
            let read = watched.changed(|_| source.read());
            (watched, read)
        });
        let (watched, read) = read.await.ok()?;
        self.watched = Some(watched);
        Some(read?.map_err(|error| error.to_string()))
    }

    /// The hosts, if they are others than at the last look.
    async fn look(&mut self) -> Option<HostList> {
        let read = self.read().await?;
        if self.last.as_ref() == Some(&read) {
            return None;
        }
        let was_refused = matches!(self.last, Some(Err(_)));
        self.last = Some(read.clone());
        match read {
            Ok(hosts) => {
                tracing::info!(
                    event = "hosts_loaded",
                    hosts = hosts.entries().len(),
                    again = was_refused,
                    "these hosts are followed"
                );
                Some(hosts)
            }
            Err(error) => {
                tracing::error!(
                    event = "hosts_refused",
                    error,
                    "the host file cannot be used; the hosts of before are followed"
                );
                None
            }
        }
    }
}
