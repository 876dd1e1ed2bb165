//! The collection of the daemon's facts: from this machine, or from other hosts over SSH.

use std::time::Duration;

use genv_core::collect::CollectOptions;
use genv_core::stream::SnapshotStream;
use genv_remote::allow_open_files;
use genv_remote::flags::HostFlags;
use genv_remote::follow::{Fleet, follow};
use genv_simulator::SourceOptions;
use genv_web::flags::{CollectFlags, SourceFlags};
use tokio::runtime::Handle;

use crate::UsageError;
use crate::config::Config;
use crate::host;
use crate::remote_steps::transport::SshTransport;

/// The interval of the collection for a single cycle.
const ONCE_INTERVAL: Duration = Duration::from_secs(10);

/// The source of facts.
pub(super) enum Facts {
    /// This machine.
    Here { sources: SourceOptions, collect: CollectFlags },
    /// Other hosts, over SSH. Their audits name this machine.
    Elsewhere { hosts: HostFlags, hostname: String },
}

impl Facts {
    pub(super) fn new(sources: SourceFlags, collect: CollectFlags, hosts: HostFlags) -> anyhow::Result<Self> {
        let given = SourceOptions::from(sources);
        if !hosts.name_hosts() {
            return Ok(Self::Here { sources: given.or_from_environment()?.in_reader(), collect });
        }
        let hostname = given.own_hostname();
        let of_this_machine = SourceOptions { hostname: None, ..given };
        let defaults = CollectOptions::default();
        if of_this_machine != SourceOptions::default() || collect.contradictory_after != defaults.contradictory_after {
            return Err(UsageError(
                "cannot enforce: --gpu.… is about this machine, and --host or --hostfile names other hosts. Leave one out"
                    .to_owned(),
            )
            .into());
        }
        Ok(Self::Elsewhere { hosts, hostname })
    }

    pub(super) fn hostname(&self) -> String {
        match self {
            Self::Here { sources, .. } => sources.own_hostname(),
            Self::Elsewhere { hostname, .. } => hostname.clone(),
        }
    }

    fn collect(&self, interval: Duration) -> anyhow::Result<(SnapshotStream, Option<Fleet>)> {
        match self {
            Self::Here { sources, collect } => {
                let contradictory_after = collect.contradictory_after;
                let options = CollectOptions { contradictory_after, ..host::collect_options(interval) };
                Ok((host::collect(sources.open()?, options)?, None))
            }
            Self::Elsewhere { hosts, .. } => {
                let (source, _) = hosts.open()?;
                allow_open_files();
                let options = hosts.follow_options(interval, host::max_age(interval));
                let (stream, fleet) = follow(source, hosts.dial(true), options);
                Ok((stream, Some(fleet)))
            }
        }
    }
}

/// The collection. It is restarted when its interval changes.
pub(super) struct Collecting {
    pub(super) facts: Facts,
    interval: Duration,
    pub(super) stream: SnapshotStream,
    transport: Option<SshTransport>,
}

impl Collecting {
    pub(super) fn start(facts: Facts, config: &Config) -> anyhow::Result<(Self, Option<SshTransport>)> {
        let interval = collection_interval(config);
        let (stream, fleet) = facts.collect(interval)?;
        let transport = fleet.map(|fleet| SshTransport::new(fleet, Handle::current()));
        let collecting = Self { facts, interval, stream, transport: transport.clone() };
        Ok((collecting, transport))
    }

    pub(super) fn follow(&mut self, config: &Config) -> anyhow::Result<()> {
        let interval = collection_interval(config);
        if interval != self.interval {
            let (stream, fleet) = self.facts.collect(interval)?;
            (self.interval, self.stream) = (interval, stream);
            if let (Some(transport), Some(fleet)) = (&self.transport, fleet) {
                transport.replace(fleet);
            }
        }
        Ok(())
    }
}

fn collection_interval(config: &Config) -> Duration {
    if config.interval.is_zero() { ONCE_INTERVAL } else { config.interval }
}
