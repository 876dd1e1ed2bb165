//! Hosts without this genv, polled by programs that they have.
//!
//! `nvidia-smi` lists the devices, a shell loop over `/proc` describes the processes on them, and `genv usage snapshot` of
//! genv 1.x lists environments. The code that collects on a host with this genv also assembles, attributes and accounts these
//! facts. Facts that these programs do not have stay unknown.

mod genv1;
mod nvidia_smi;
mod processes;
mod sections;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::Future;
use std::time::{Duration, Instant};

use genv_core::collect::{CollectOptions, PollReport, PollTime, PolledHost};
use genv_core::gpu::GpuSample;
use genv_core::model::Snapshot;
use genv_core::proc::{Claim, ProcessTable};
use genv_core::state::{EnvironmentState, State};
use genv_core::text::{harmless, shortened};
use jiff::tz::{Offset, TimeZone};

use crate::protocol::{HostProgram, LONGEST_LINE_BYTES};
use crate::session::{CommandOutput, RunLimits};
use crate::{FailureKind, HostFailure, Session, script};
use genv1::Genv1;
use nvidia_smi::Columns;
use processes::ProcessList;
use sections::{Section, sections};

const POLL: &str = concat!(include_str!("../path.sh"), include_str!("poll.sh"));
const FACTS: &str = include_str!("facts.sh");

/// Runs commands on a host.
pub trait Commands: Sync {
    /// Runs a command, and waits for its end.
    ///
    /// # Errors
    /// The command cannot be started, takes too long, or writes too much.
    fn run(
        &self,
        command: &str,
        stdin: &[u8],
        limits: &RunLimits,
    ) -> impl Future<Output = Result<CommandOutput, HostFailure>> + Send;
}

impl Commands for Session {
    async fn run(&self, command: &str, stdin: &[u8], limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        Session::run(self, command, stdin, limits).await
    }
}

/// A polled host with its counters, which count from the time of [`Poller::new`].
pub struct Poller {
    hostname: String,
    genv1: bool,
    sudo: bool,
    columns: Columns,
    host: PolledHost,
    started: Instant,
    limits: RunLimits,
}

impl Poller {
    /// A host with this [program](HostProgram), polled each `options.interval`. `sudo`: sudo runs genv 1.x as root there.
    /// `command_timeout` is the limit for each of the two commands of a poll.
    pub fn new(
        hostname: &str,
        program: HostProgram,
        sudo: bool,
        options: &CollectOptions,
        command_timeout: Duration,
    ) -> Self {
        Self {
            hostname: hostname.to_owned(),
            genv1: program == HostProgram::Genv1,
            sudo,
            columns: Columns::default(),
            host: PolledHost::new(hostname.to_owned(), options),
            started: Instant::now(),
            limits: RunLimits { stdout_bytes: LONGEST_LINE_BYTES, duration: command_timeout },
        }
    }

    /// Polls once. If one of the programs fails, its collector in the snapshot has the error.
    ///
    /// # Errors
    /// The connection is lost, a command fails, or the output is incomplete.
    pub async fn poll(&mut self, host: &impl Commands) -> Result<Snapshot, HostFailure> {
        let poll_started = Instant::now();
        let word = |yes| if yes { "yes" } else { "no" };
        let output = loop {
            let columns = self.columns.names().join(",");
            let arguments = [word(self.genv1), word(self.sudo), columns.as_str()];
            let output = host.run(&script::command(POLL, &arguments), b"", &self.limits).await?;
            let devices = sections(&output.stdout).get("devices").copied();
            let Some(column) = devices.and_then(|devices| self.columns.refuse(devices)) else {
                break output;
            };
            if !self.columns.has_other_name(column) {
                tracing::info!(
                    hostname = self.hostname.as_str(),
                    column,
                    "the host's nvidia-smi does not have this column: its values are absent"
                );
            }
        };
        let parts = sections(&output.stdout);
        let (Some(host_info), Some(devices), Some(processes), true) =
            (parts.get("host"), parts.get("devices"), parts.get("processes"), parts.contains_key("end"))
        else {
            return Err(incomplete(&output));
        };
        let HostInfo { timestamp_seconds, zone, uid } =
            HostInfo::parse(*host_info).ok_or_else(|| incomplete(&output))?;
        let gpu = nvidia_smi::sample(&self.columns, *devices, *processes);
        let genv1 = self.genv1.then(|| {
            let usage = parts.get("usage").copied();
            let usage = usage.unwrap_or(Section { text: b"", code: 1 });
            Genv1::parse(usage, &output.stderr, &zone, self.sudo || uid == Some(0))
        });
        let query = ProcessQuery::of(gpu.as_ref().ok(), genv1.as_ref().and_then(|it| it.as_ref().ok()));
        let facts = host.run(&script::command(FACTS, &[]), query.stdin().as_bytes(), &self.limits).await?;
        let parts = sections(&facts.stdout);
        let list = parts.get("facts").ok_or_else(|| incomplete(&facts))?;
        let mut list = ProcessList::parse(list.text);
        let usernames = std::mem::take(&mut list.usernames);
        let (state, table) = match genv1 {
            // A host without genv has no environments: claims of its processes mean nothing.
            None => (Ok(State::default()), list.table(query.processes, |_, _| Claim::Absent)),
            Some(Ok(genv1)) => {
                let table = list.table(query.processes, |pid, facts| genv1.claim(pid, facts));
                (Ok(genv1.state), table)
            }
            Some(Err(error)) => (Err(error), list.table(query.processes, |_, _| processes::UNREADABLE)),
        };
        let told = PollReport {
            gpu,
            state,
            processes: Ok::<ProcessTable, String>(table),
            usernames,
            duration_seconds: poll_started.elapsed().as_secs_f64(),
        };
        let at = PollTime { seconds: self.started.elapsed().as_secs_f64(), timestamp_seconds };
        Ok(self.host.observe(told, at))
    }
}

/// The host's clock, time zone and user.
struct HostInfo {
    timestamp_seconds: f64,
    zone: TimeZone,
    uid: Option<u32>,
}

impl HostInfo {
    /// Parses the lines with the host's name, its time and zone, and the uid.
    fn parse(section: Section<'_>) -> Option<Self> {
        let text = std::str::from_utf8(section.text).ok()?;
        let mut lines = text.lines();
        let _name = lines.next()?;
        let (seconds, zone) = lines.next()?.split_once(' ')?;
        Some(Self {
            timestamp_seconds: seconds.parse().ok().filter(|it: &f64| it.is_finite())?,
            zone: offset(zone).unwrap_or(TimeZone::UTC),
            uid: lines.next().and_then(|uid| uid.trim().parse().ok()),
        })
    }
}

/// The time zone with an offset such as `+0130`.
fn offset(text: &str) -> Option<TimeZone> {
    let number: i32 = text.trim().parse().ok()?;
    let seconds = (number / 100) * 3600 + (number % 100) * 60;
    Some(Offset::from_seconds(seconds).ok()?.to_time_zone())
}

/// The processes and users that `facts.sh` describes.
struct ProcessQuery {
    processes: BTreeSet<u32>,
    members: BTreeSet<u32>,
    users: BTreeSet<u32>,
}

impl ProcessQuery {
    fn of(sample: Option<&GpuSample>, genv1: Option<&Genv1>) -> Self {
        let devices = sample.iter().flat_map(|sample| &sample.devices);
        let rows = devices.flat_map(|device| device.processes.iter().flatten());
        let environments = || genv1.iter().flat_map(|genv1| &genv1.state.environments);
        Self {
            processes: rows.map(|row| row.pid).collect(),
            members: environments().flat_map(EnvironmentState::pids).collect(),
            users: environments().map(|it| it.uid).collect(),
        }
    }

    /// The input of `facts.sh`. Processes precede members: the script describes a process only once, and tests the environ only
    /// of processes.
    fn stdin(&self) -> String {
        let mut lines = String::new();
        for (kind, numbers) in [("p", &self.processes), ("m", &self.members), ("u", &self.users)] {
            for number in numbers {
                // Writing to a string does not fail.
                let _ = writeln!(lines, "{kind} {number}");
            }
        }
        lines
    }
}

/// The error of a script that did not run to its end.
fn incomplete(output: &CommandOutput) -> HostFailure {
    let printed = output.stderr.lines().rfind(|line| !line.trim().is_empty());
    let stdout = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(1000)]);
    let printed = printed.or_else(|| stdout.lines().find(|line| !line.trim().is_empty()));
    let printed =
        printed.map_or_else(|| "nothing".to_owned(), |line| format!("'{}'", shortened(&harmless(line.trim()), 160)));
    HostFailure::new(
        FailureKind::Protocol,
        format!(
            "cannot poll it: a script for sh {} there without a complete output, and printed {printed}: see that the user may \
                         run commands there",
            output.end
        ),
    )
}
