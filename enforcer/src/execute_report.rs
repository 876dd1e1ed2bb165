//! `genv-enforcer execute-report`

use std::io::{Read as _, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use genv_core::collect;
use genv_core::text::harmless;
use genv_simulator::SourceOptions;

use crate::SilentExit;
use crate::config::{BreakerLimits, Config, Mode, Never};
use crate::execute::Policy;
use crate::execute::report::Report;
use crate::flags::ExecuteReportFlags;
use crate::host::{LatestPublication, executor, users_of_devices};
use crate::metrics;
use crate::output::{print, print_note};
use crate::plan::Outcome;
use crate::plan::words;

/// The default path of a machine's configuration.
pub(crate) const CONFIGURATION: &str = "/etc/genv/enforcer.yaml";

/// The largest report: a report of many thousand processes is smaller.
const MAX_REPORT_BYTES: u64 = 16 << 20;

/// How long the driver may take to list the processes on the GPUs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Executes the report on stdin, and prints a line for each of its actions.
pub(crate) fn execute_report(flags: ExecuteReportFlags) -> anyhow::Result<()> {
    let policy = policy(flags.config.as_deref(), flags.dry_run)?;
    let report = report()?;
    let sources = SourceOptions::from(flags.sources).or_from_environment()?;
    let publication = Arc::new(collect::once(sources.open()?, TIMEOUT).context("cannot ask this machine")?);
    let hostname = sources.own_hostname();
    let host = publication.hosts.iter().find(|host| host.hostname == hostname);
    let snapshot = host.and_then(|host| host.snapshot.as_deref());
    let snapshot = snapshot.with_context(|| {
        format!("cannot act on the report: there is no snapshot of this machine, {}", harmless(&hostname))
    })?;
    if let Some(gpu) = snapshot.collectors.get("gpu").filter(|gpu| !gpu.success) {
        let why = gpu.error.as_deref().unwrap_or("no reason is given");
        bail!("cannot act on the report: the processes on the GPUs are not known: {why}");
    }
    let users = users_of_devices(&publication.hosts);
    let latest = Arc::new(LatestPublication::default());
    latest.replace(Arc::clone(&publication));
    let mut executor = executor(&sources, &flags.directory.path(), policy, latest)?;

    let (notes, actions) = executor.execute_report(&report, &users);
    if let Some(why) = notes.tripped {
        print_note(&format!("the breaker trips: {why}: see to it, then 'genv-enforcer reset'"));
    }
    let mut settled = true;
    for action in &actions {
        let target = words::target(&action.target);
        match &action.outcome {
            Outcome::Refused { reason, .. } | Outcome::Failed { reason } if !action.is_settled() => {
                settled = false;
                print_note(&format!("{target}: {}", harmless(reason)));
            }
            Outcome::Refused { reason, .. } => print(&format!("{target}: {}\n", harmless(reason)))?,
            outcome => print(&format!("{target}: {}\n", metrics::result(outcome)))?,
        }
    }
    // GENV_TERMINATE_PROCESSES=0 is no failure, as in genv 1.4.3.
    if settled || !executor.may_signal() { Ok(()) } else { Err(SilentExit.into()) }
}

/// `never` and `breaker` of this machine apply, while the rules are those of the sender.
fn policy(config: Option<&Path>, dry_run: bool) -> anyhow::Result<Policy> {
    let default = Some(Path::new(CONFIGURATION)).filter(|path| path.exists());
    let mode = if dry_run { Mode::DryRun } else { Mode::Enforce };
    Ok(match config.or(default) {
        Some(path) => Policy { mode, ..Policy::from(&Config::load(path)?) },
        None => Policy { mode, never: Never::default(), breaker: BreakerLimits::default() },
    })
}

fn report() -> anyhow::Result<Report> {
    let mut json = Vec::new();
    let read = stdin().lock().take(MAX_REPORT_BYTES + 1).read_to_end(&mut json);
    let length = read.context("cannot read the report from stdin")?;
    if length as u64 > MAX_REPORT_BYTES {
        bail!(
            "cannot read the report: it is longer than {} MiB: send the processes of this machine alone",
            MAX_REPORT_BYTES >> 20
        );
    }
    Ok(Report::parse(&json)?)
}
