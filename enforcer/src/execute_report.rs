//! `genv-enforcer execute-report`

use std::io::{Read as _, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use genv_core::collect;
use genv_core::text::harmless;
use genv_simulator::SourceOptions;

use crate::Silent;
use crate::commands::{print, tell};
use crate::config::{BreakerLimits, Config, Mode, Never};
use crate::execute::Policy;
use crate::execute::report::Report;
use crate::flags::ExecuteReportFlags;
use crate::host::{Latest, executor, users_of_devices};
use crate::metrics;
use crate::plan::Outcome;
use crate::plan::words;

/// Where a machine's configuration is if nobody says otherwise.
pub(crate) const CONFIGURATION: &str = "/etc/genv/enforcer.yaml";

/// A report of many thousand processes is smaller.
const MOST_REPORT_BYTES: u64 = 16 << 20;

/// How long GPUs may take to tell who uses them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does what the report on stdin says, and prints a line for each thing that it asks for.
pub(crate) fn execute_report(flags: ExecuteReportFlags) -> anyhow::Result<()> {
    let policy = policy(flags.config.as_deref(), flags.dry_run)?;
    let report = report()?;
    let sources = SourceOptions::from(flags.sources).or_from_environment()?;
    let publication = collect::once(sources.open()?, PATIENCE).context("cannot ask this machine")?;
    let hostname = sources.own_hostname();
    let host = publication.hosts.iter().find(|host| host.hostname == hostname);
    let snapshot = host.and_then(|host| host.snapshot.as_deref());
    let snapshot = snapshot
        .with_context(|| format!("cannot act on the report: nothing tells of this machine, {}", harmless(&hostname)))?;
    if let Some(gpu) = snapshot.collectors.get("gpu").filter(|gpu| !gpu.success) {
        let why = gpu.error.as_deref().unwrap_or("no reason is given");
        bail!("cannot act on the report: who uses the GPUs is not known: {why}");
    }
    let users = users_of_devices(&publication.hosts);
    let latest = Arc::new(Latest::default());
    latest.replace(Arc::clone(&publication));
    let mut executor = executor(&sources, &flags.directory.path(), policy, latest)?;

    let (notes, deeds) = executor.execute_report(&report, &users);
    if let Some(why) = notes.tripped {
        tell(&format!("the breaker trips: {why}: see to it, then 'genv-enforcer reset'"));
    }
    let mut settled = true;
    for deed in &deeds {
        let target = words::target(&deed.target);
        match &deed.outcome {
            Outcome::Refused { reason, .. } | Outcome::Failed { reason } if !deed.is_settled() => {
                settled = false;
                tell(&format!("{target}: {}", harmless(reason)));
            }
            Outcome::Refused { reason, .. } => print(&format!("{target}: {}\n", harmless(reason)))?,
            outcome => print(&format!("{target}: {}\n", metrics::result(outcome)))?,
        }
    }
    // Genv's own variable is no failure, as it is none to genv 1.4.3.
    if settled || !executor.may_signal() { Ok(()) } else { Err(Silent.into()) }
}

/// Who is out of reach is this machine's to say; the rules were the sender's.
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
    let read = stdin().lock().take(MOST_REPORT_BYTES + 1).read_to_end(&mut json);
    let length = read.context("cannot read the report from stdin")?;
    if length as u64 > MOST_REPORT_BYTES {
        bail!(
            "cannot read the report: it is longer than {} MiB: send the processes of this machine alone",
            MOST_REPORT_BYTES >> 20
        );
    }
    Ok(Report::parse(&json)?)
}
