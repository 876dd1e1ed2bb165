//! What hosts answered, and which did not.

use std::time::Duration;

use anyhow::Context as _;
use genv_core::model::Snapshot;
use genv_core::text::harmless;
use genv_remote::fetch::{FetchOptions, FetchResult, Fetched, fetch_snapshots};
use genv_remote::{FailureKind, HostEntry, HostFailure};
use serde::Serialize;
use tokio::sync::oneshot;

use super::hosts::HostFlags;
use super::progress::Progress;
use crate::ago::whole_units;
use crate::failure::Failure;
use crate::local_snapshot;
use crate::machine::tell;

/// Hosts that are asked at the same time.
const CONCURRENCY: usize = 64;

/// How much longer than a step of connecting a host may take, until it has answered.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// What all hosts answered, in the order of the list.
pub(super) struct Answers {
    pub(super) told: Vec<(HostEntry, Fetched)>,
    failed: Vec<Failed>,
    quiet: bool,
}

/// A host that did not answer.
#[derive(Serialize)]
struct Failed {
    hostname: String,
    reason: String,
}

/// What is printed as JSON: of hosts that answered what is asked for, of the others why they did not.
#[derive(Serialize)]
pub(super) struct Document<'a, T> {
    pub(super) hosts: Vec<T>,
    failures: &'a [Failed],
}

/// Asks all hosts. One whose `collectors` could not tell has failed too: what they would have told is not known.
///
/// # Errors
/// The hosts are named wrongly, or one failed and that is to end it.
pub(super) fn ask(flags: &HostFlags, collectors: &[&str]) -> anyhow::Result<Answers> {
    let hosts = flags.list()?;
    let names = hosts.entries().iter().map(|host| host.name.as_str());
    let mut progress = Progress::new(names, flags.quiet);
    let (give_up, mut given_up) = oneshot::channel();
    let mut give_up = flags.exit_on_error.then_some(give_up);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot ask other hosts: no runtime could be started")?;
    let options = FetchOptions { concurrency: CONCURRENCY, deadline: flags.connect_timeout() + ANSWER_PATIENCE };
    let asked = fetch_snapshots(hosts, flags.dial(), options, |host, answer| {
        progress.done(&host.name);
        if let Some(failure) = known(answer, collectors).err()
            && let Some(give_up) = give_up.take()
        {
            // Whoever waits for it waits until all is asked.
            let _ = give_up.send((host.clone(), failure));
        }
    });
    let answers = runtime.block_on(async {
        tokio::select! {
            biased;
            Ok(failed) = &mut given_up => Err(failed),
            // Of the last host both come at once.
            answers = asked => match given_up.try_recv() {
                Ok(failed) => Err(failed),
                Err(_) => Ok(answers),
            },
        }
    });
    // What still resolves a name is not waited for.
    runtime.shutdown_background();
    drop(progress);
    let answers = answers.map_err(|(host, failure)| {
        if flags.quiet {
            return anyhow::Error::from(Failure::Silent(1));
        }
        anyhow::anyhow!("{}", line(&host.name, &failure.message))
    })?;
    let mut told = Vec::new();
    let mut failed = Vec::new();
    for (host, answer) in answers {
        match known(&answer, collectors) {
            Err(failure) => failed.push(Failed { hostname: host.name, reason: failure.message }),
            Ok(()) => told.extend(answer.ok().map(|answer| (host, answer))),
        }
    }
    Ok(Answers { told, failed, quiet: flags.quiet })
}

/// Whether a host has told what these collectors tell.
fn known(answer: &FetchResult, collectors: &[&str]) -> Result<(), HostFailure> {
    let Fetched { snapshot, .. } = answer.as_ref().map_err(Clone::clone)?;
    let silent = collectors.iter().find_map(|collector| local_snapshot::silence(snapshot, collector));
    match silent {
        None => Ok(()),
        Some(why) => Err(HostFailure::new(FailureKind::Command, why)),
    }
}

impl Answers {
    /// What is printed as JSON.
    pub(super) fn document<'a, T>(&'a self, of_host: impl Fn(&'a HostEntry, &'a Snapshot) -> T) -> Document<'a, T> {
        let hosts = self.told.iter();
        Document {
            hosts: hosts.map(|(host, answer)| of_host(host, &answer.snapshot)).collect(),
            failures: &self.failed,
        }
    }

    /// Tells which hosts failed or have another time, after what the others told has been printed.
    ///
    /// # Errors
    /// There are such: the exit code says whether all or some.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.complain();
        match (self.failed.is_empty(), self.told.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Failure::Silent(1)),
            (false, false) => Err(Failure::Silent(Failure::SOME_HOSTS)),
        }
    }

    /// Tells which hosts failed, and of which others the clock is off.
    pub(super) fn complain(&self) {
        if self.quiet {
            return;
        }
        for (host, answer) in &self.told {
            if let Some(ahead) = answer.clock_ahead_seconds {
                tell(&line(&host.name, &skew(ahead)));
            }
        }
        if self.failed.is_empty() {
            return;
        }
        for failed in &self.failed {
            tell(&line(&failed.hostname, &failed.reason));
        }
        let all = self.failed.len() + self.told.len();
        if all > 1 {
            tell(&format!("{} of {all} hosts failed", self.failed.len()));
        }
    }

    /// How many hosts failed.
    pub(super) const fn failed(&self) -> usize {
        self.failed.len()
    }
}

fn skew(ahead_seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole seconds of what a host says, at most all that there are"
    )]
    let off = whole_units(ahead_seconds.abs() as i64);
    let side = if ahead_seconds > 0.0 { "ahead of" } else { "behind" };
    format!("its clock is {off} {side} this machine's: set it (chrony, systemd-timesyncd)")
}

fn line(hostname: &str, reason: &str) -> String {
    harmless(&format!("{hostname}: {reason}"))
}
