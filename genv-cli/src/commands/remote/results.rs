//! The snapshots and the errors of all hosts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use genv_core::text::harmless;
use genv_remote::fetch::{FetchOptions, FetchResult, Fetched, fetch_snapshots};
use genv_remote::{FailureKind, HostEntry, HostFailure};
use serde::Serialize;
use tokio::sync::oneshot;

use super::hosts::{CONCURRENCY, HostFlags, RemoteFlags};
use super::progress::Progress;
use crate::ago::nearest_units;
use crate::failure::Failure;
use crate::local_snapshot;
use crate::output::print_note;

/// Time limit for the answer of a host, in addition to the limit of one step of the connection.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// The results of all hosts, in the order of the list.
pub(super) struct HostResults {
    pub(super) fetched: Vec<(HostEntry, Fetched)>,
    failed: Vec<FailedHost>,
    quiet: bool,
}

/// A host without an answer.
#[derive(Serialize)]
struct FailedHost {
    hostname: String,
    reason: String,
}

/// The document for JSON: the values of the hosts with an answer, and the errors of the others.
#[derive(Serialize)]
pub(super) struct ResultDocument<'a, T> {
    pub(super) hosts: Vec<T>,
    failures: &'a [FailedHost],
}

/// Fetches a snapshot from each host. A host counts as failed too if one of these collectors has failed.
///
/// # Errors
/// The list of hosts is invalid, or a host failed with the flag `--exit-on-error`.
pub(super) fn fetch_all(flags: &RemoteFlags, collectors: &[&str]) -> anyhow::Result<HostResults> {
    let hosts = flags.hosts.list()?;
    let names = hosts.entries().iter().map(|host| host.name.as_str());
    let mut progress = Progress::new(names, flags.quiet);
    let (give_up, mut given_up) = oneshot::channel();
    let mut give_up = flags.exit_on_error.then_some(give_up);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot query other hosts: no runtime could be started")?;
    let options = FetchOptions { concurrency: CONCURRENCY, deadline: flags.hosts.connect_timeout() + ANSWER_PATIENCE };
    let asked = fetch_snapshots(hosts, flags.hosts.dial(), options, |host, answer| {
        let failure = check_collectors(answer, collectors).err();
        progress.done(&host.name, failure.is_some());
        if let Some((failure, give_up)) = failure.and_then(|it| Some((it, give_up.take()?))) {
            // The receiver exists until all hosts have a result.
            let _ = give_up.send((host.clone(), failure));
        }
    });
    let results = runtime.block_on(async {
        tokio::select! {
            biased;
            Ok(failed) = &mut given_up => Err(failed),
            // The last result and the error can come at the same time.
            results = asked => match given_up.try_recv() {
                Ok(failed) => Err(failed),
                Err(_) => Ok(results),
            },
        }
    });
    // Does not wait for threads that still resolve names.
    runtime.shutdown_background();
    drop(progress);
    let results = results.map_err(|(host, failure)| {
        if flags.quiet {
            return anyhow::Error::from(Failure::Silent(1));
        }
        anyhow::anyhow!("{}", line(&host.name, &failure.message))
    })?;
    let mut fetched = Vec::new();
    let mut failed = Vec::new();
    for (host, answer) in results {
        match check_collectors(&answer, collectors) {
            Err(failure) => failed.push(FailedHost { hostname: host.name, reason: failure.message }),
            Ok(()) => fetched.extend(answer.ok().map(|answer| (host, answer))),
        }
    }
    Ok(HostResults { fetched, failed, quiet: flags.quiet })
}

/// Fetches a snapshot from each host, in the form of a publication: first the hosts with an answer.
///
/// # Errors
/// The list of hosts is invalid.
pub(in crate::commands) fn fetch_hosts(hosts: HostFlags) -> anyhow::Result<Vec<HostSnapshot>> {
    let results = fetch_all(&RemoteFlags { hosts, exit_on_error: false, quiet: false }, &[])?;
    let host = |hostname, snapshot: Option<Snapshot>, error: Option<String>| HostSnapshot {
        hostname,
        up: snapshot.is_some(),
        received_timestamp_seconds: None,
        snapshot: snapshot.map(Arc::new),
        ssh: error.map(|error| CollectorStatus { error: Some(error), ..CollectorStatus::default() }),
    };
    let fetched = results.fetched.into_iter().map(|(entry, answer)| host(entry.name, Some(answer.snapshot), None));
    let failed = results.failed.into_iter().map(|it| host(it.hostname, None, Some(it.reason)));
    Ok(fetched.chain(failed).collect())
}

/// Checks that these collectors of a host have succeeded.
fn check_collectors(answer: &FetchResult, collectors: &[&str]) -> Result<(), HostFailure> {
    let Fetched { snapshot, .. } = answer.as_ref().map_err(Clone::clone)?;
    let silent = collectors.iter().find_map(|collector| local_snapshot::silence(snapshot, collector));
    match silent {
        None => Ok(()),
        Some(why) => Err(HostFailure::new(FailureKind::Command, why)),
    }
}

impl HostResults {
    /// The document for JSON.
    pub(super) fn document<'a, T>(
        &'a self,
        of_host: impl Fn(&'a HostEntry, &'a Snapshot) -> T,
    ) -> ResultDocument<'a, T> {
        let hosts = self.fetched.iter();
        ResultDocument {
            hosts: hosts.map(|(host, answer)| of_host(host, &answer.snapshot)).collect(),
            failures: &self.failed,
        }
    }

    /// Prints failed hosts and clock differences, after the output about the other hosts.
    ///
    /// # Errors
    /// Hosts failed. The exit code shows whether all or some hosts failed.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.print_failures();
        match (self.failed.is_empty(), self.fetched.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Failure::Silent(1)),
            (false, false) => Err(Failure::Silent(Failure::SOME_HOSTS)),
        }
    }

    /// Prints failed hosts and clock differences.
    pub(super) fn print_failures(&self) {
        if self.quiet {
            return;
        }
        for (host, answer) in &self.fetched {
            if let Some(ahead) = answer.clock_ahead_seconds {
                print_note(&line(&host.name, &skew(ahead)));
            }
        }
        if self.failed.is_empty() {
            return;
        }
        for failed in &self.failed {
            print_note(&line(&failed.hostname, &failed.reason));
        }
        let all = self.failed.len() + self.fetched.len();
        if all > 1 {
            print_note(&format!("{} of {all} hosts failed", self.failed.len()));
        }
    }

    /// The number of failed hosts.
    pub(super) const fn failed(&self) -> usize {
        self.failed.len()
    }
}

fn skew(ahead_seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "whole seconds; the cast saturates")]
    let off = nearest_units(ahead_seconds.abs().round() as i64);
    let side = if ahead_seconds > 0.0 { "ahead of" } else { "behind" };
    format!("its clock is {off} {side} this machine's: set it (chrony, systemd-timesyncd)")
}

/// A line about a host.
pub(super) fn line(hostname: &str, reason: &str) -> String {
    harmless(&format!("{hostname}: {reason}"))
}
