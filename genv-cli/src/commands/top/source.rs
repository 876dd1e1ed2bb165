//! Publications of this machine, or of hosts over SSH, as events.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use genv_core::collect::{CollectOptions, HostSources, spawn};
use genv_core::model::Publication;
use genv_core::stream::Ended;
use genv_remote::allow_open_files;
use genv_remote::follow::{FollowOptions, HostSource, SshDial, follow};
use genv_simulator::SourceOptions;

use crate::commands::remote::HostFlags;
use crate::failure::Failure;

/// The source of the facts.
pub(super) enum Source {
    /// This machine, or the hosts of a scenario.
    Here(Vec<HostSources>, CollectOptions),
    /// Hosts over SSH, and their number.
    Hosts(HostSource, SshDial, FollowOptions, usize),
}

/// Receives the publications; a return of `false` ends them.
pub(super) trait Receive: FnMut(Result<Arc<Publication>, Ended>) -> bool + Send + 'static {}

impl<F: FnMut(Result<Arc<Publication>, Ended>) -> bool + Send + 'static> Receive for F {}

impl Source {
    /// Opens the source that the flags name.
    ///
    /// # Errors
    /// The flags or a file are wrong.
    pub(super) fn open(interval: Duration, here: SourceOptions, hosts: &HostFlags) -> anyhow::Result<Self> {
        let options = CollectOptions::every(interval);
        if !hosts.name_hosts() {
            if hosts.need_hosts() {
                return Err(Failure::Usage(
                    "--username and --sudo are for other hosts: name them with --host or --hostfile".to_owned(),
                )
                .into());
            }
            return Ok(Self::Here(here.or_from_environment()?.open()?, options));
        }
        if here != SourceOptions::default() {
            return Err(Failure::Usage(
                "--gpu.… is for this machine, and --host or --hostfile shows other hosts instead: leave one out"
                    .to_owned(),
            )
            .into());
        }
        let (source, list) = hosts.open()?;
        let count = list.entries().len();
        Ok(Self::Hosts(source, hosts.dial(), hosts.follow_options(interval, options.max_age), count))
    }

    /// What is waited for before the first publication.
    pub(super) fn awaited(&self) -> String {
        match self {
            Self::Here(..) => "reading".to_owned(),
            Self::Hosts(_, _, _, 1) => "connecting to 1 host".to_owned(),
            Self::Hosts(_, _, _, count) => format!("connecting to {count} hosts"),
        }
    }

    /// Starts to publish.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(self, mut receive: impl Receive) -> anyhow::Result<()> {
        let thread = thread::Builder::new().name("publications".to_owned());
        match self {
            Self::Here(hosts, options) => {
                let mut stream = spawn(hosts, options).context("cannot start collecting")?;
                thread.spawn(move || while receive(stream.next_blocking()) {})
            }
            Self::Hosts(source, dial, options, _) => {
                allow_open_files();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.context("cannot follow other hosts: no runtime could be started")?;
                thread.spawn(move || {
                    runtime.block_on(async {
                        let (mut stream, _) = follow(source, dial, options);
                        while receive(stream.next().await) {}
                    });
                    // Does not wait for threads that still resolve names.
                    runtime.shutdown_background();
                })
            }
        }
        .context("cannot start a thread")?;
        Ok(())
    }
}

/// The collection has ended.
pub(super) fn ended() -> anyhow::Error {
    anyhow!("cannot go on: a part of this program ended by a defect; start it again")
}
