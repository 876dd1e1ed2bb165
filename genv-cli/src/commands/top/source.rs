//! Facts of this machine, or of hosts over SSH: once, or as events.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use genv_core::collect::{CollectOptions, HostSources, once, spawn};
use genv_core::model::{HostSnapshot, Publication};
use genv_core::progress::ProgressLine;
use genv_core::stream::Ended;
use genv_remote::allow_open_files;
use genv_remote::follow::{HostSource, follow};
use genv_simulator::SourceOptions;

use crate::commands::remote::{HostFlags, fetch_hosts};
use crate::driver_timeout::usage_patience;
use crate::failure::Failure;
use crate::output::counted;

/// The source of the facts.
pub(super) enum Source {
    /// This machine, or the hosts of a scenario.
    Here(Vec<HostSources>),
    /// Hosts over SSH, and their number.
    Hosts(HostFlags, HostSource, usize),
}

/// Receives the publications; a return of `false` ends them.
pub(super) trait Receive: FnMut(Result<Arc<Publication>, Ended>) -> bool + Send + 'static {}

impl<F: FnMut(Result<Arc<Publication>, Ended>) -> bool + Send + 'static> Receive for F {}

impl Source {
    /// Opens the source that the flags name.
    ///
    /// # Errors
    /// The flags or a file are wrong.
    pub(super) fn open(here: SourceOptions, hosts: HostFlags) -> anyhow::Result<Self> {
        if !hosts.name_hosts() {
            if hosts.need_hosts() {
                return Err(Failure::Usage(
                    "--username and --sudo are for other hosts: name them with --host or --hostfile".to_owned(),
                )
                .into());
            }
            return Ok(Self::Here(here.or_from_environment()?.open()?));
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
        Ok(Self::Hosts(hosts, source, count))
    }

    /// What is waited for before the first publication.
    pub(super) fn awaited(&self) -> String {
        match self {
            Self::Here(_) => "reading".to_owned(),
            Self::Hosts(_, _, count) => format!("connecting to {}", counted(*count, "host")),
        }
    }

    /// Collects once. Waits for the driver and for hosts as other commands do.
    ///
    /// # Errors
    /// A thread cannot be started, or the list of hosts is invalid.
    pub(super) fn once(self) -> anyhow::Result<Vec<HostSnapshot>> {
        match self {
            Self::Here(hosts) => {
                let line = ProgressLine::on_stderr(true);
                line.show(|| "genv: waiting for the driver".to_owned());
                Ok(once(hosts, usage_patience()).context("cannot start collecting")?.hosts)
            }
            Self::Hosts(flags, ..) => fetch_hosts(flags),
        }
    }

    /// Starts to publish, once an interval.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(self, interval: Duration, mut receive: impl Receive) -> anyhow::Result<()> {
        let thread = thread::Builder::new().name("publications".to_owned());
        let options = CollectOptions::every(interval);
        match self {
            Self::Here(hosts) => {
                let mut stream = spawn(hosts, options).context("cannot start collecting")?;
                thread.spawn(move || while receive(stream.next_blocking()) {})
            }
            Self::Hosts(flags, source, _) => {
                allow_open_files();
                let (dial, options) = (flags.dial(), flags.follow_options(interval, options.max_age));
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
