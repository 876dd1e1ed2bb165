//! Publishes what is known of all hosts, once an interval.

use std::time::Duration;

use genv_core::model::Publication;
use genv_core::stream::Publisher;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::Dial;
use super::hosts::{Followed, HostSource};
use crate::hosts::HostList;

/// How often it is looked whether all hosts have been heard, before the first publication.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// Runs until nobody has a stream any more.
pub(super) async fn run<D: Dial>(source: HostSource, mut followed: Followed<D>, publisher: Publisher) {
    let mut file = HostFile::new(source);
    if let Some(hosts) = file.look().await {
        followed.replace(&hosts);
    }
    let interval_length = followed.interval();
    let deadline = Instant::now() + interval_length;
    while !followed.are_settled() && Instant::now() < deadline {
        sleep(FIRST_LOOK.min(interval_length)).await;
    }
    let mut ticks = interval(interval_length);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut sequence = 0;
    loop {
        ticks.tick().await;
        if publisher.is_closed() {
            return;
        }
        if let Some(hosts) = file.look().await {
            followed.replace(&hosts);
        }
        sequence += 1;
        publisher.publish(Publication { sequence, hosts: followed.publish() });
    }
}

/// Between two readings of a file that has changed, which somebody may be writing.
const WRITING: Duration = Duration::from_millis(50);

/// The host file, read again each interval: that costs less than what could be missed by watching it.
struct HostFile {
    source: HostSource,
    last: Option<Result<HostList, String>>,
}

impl HostFile {
    fn new(source: HostSource) -> Self {
        Self { source, last: None }
    }

    async fn read(&self) -> Option<Result<HostList, String>> {
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || source.read()).await.ok()?;
        Some(read.map_err(|error| error.to_string()))
    }

    /// The hosts, if they are others than at the last look.
    async fn look(&mut self) -> Option<HostList> {
        if self.last.is_some() && self.source.is_fixed() {
            return None;
        }
        let read = self.read().await?;
        if self.last.as_ref() == Some(&read) {
            return None;
        }
        if self.last.is_some() {
            sleep(WRITING).await;
            if self.read().await? != read {
                return None;
            }
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
