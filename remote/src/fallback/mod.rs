//! Hosts without this project's genv: they are polled, by programs that they have.
//!
//! With genv 1.x that is `genv usage snapshot` for its environments. Of the devices `nvidia-smi` tells, and a loop of the
//! shell over `/proc` of the processes on them. What they told is assembled, attributed and accounted by the same code as
//! on a host of ours; what they cannot tell stays unknown.

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

use genv_core::collect::{CollectOptions, PolledHost, Told, ToldAt};
use genv_core::gpu::GpuSample;
use genv_core::model::Snapshot;
use genv_core::proc::{Claim, ProcessTable};
use genv_core::state::State;
use genv_core::text::{harmless, shortened};
use jiff::tz::{Offset, TimeZone};

use crate::protocol::{Answers, LONGEST_LINE_BYTES};
use crate::session::{CommandOutput, RunLimits};
use crate::{FailureKind, HostFailure, Session, script};
use genv1::Genv1;
use processes::Answer;
use sections::{Section, sections};

const POLL: &str = include_str!("poll.sh");
const FACTS: &str = include_str!("facts.sh");

/// Where commands of a host are run.
pub trait Commands: Sync {
    /// Runs one, and waits for its end.
    ///
    /// # Errors
    /// It cannot be run, or takes or writes too much.
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

/// A host that is polled, and what is remembered of it: its counters count from when this was made.
pub struct Poller {
    genv1: bool,
    sudo: bool,
    host: PolledHost,
    began: Instant,
    limits: RunLimits,
}

impl Poller {
    /// A host of which nothing is known but what it [answers with](Answers), polled each `options.interval`. `sudo`:
    /// genv 1.x runs as root there. Each of two commands may take `patience`.
    #[must_use]
    pub fn new(hostname: &str, answers: Answers, sudo: bool, options: &CollectOptions, patience: Duration) -> Self {
        Self {
            genv1: answers == Answers::Genv1,
            sudo,
            host: PolledHost::new(hostname.to_owned(), options),
            began: Instant::now(),
            limits: RunLimits { stdout_bytes: LONGEST_LINE_BYTES, duration: patience },
        }
    }

    /// Asks once. What one program there cannot tell is told by the collectors of the snapshot.
    ///
    /// # Errors
    /// The host is gone, runs no commands, or says what no program of these says.
    pub async fn poll(&mut self, host: &impl Commands) -> Result<Snapshot, HostFailure> {
        let asked = Instant::now();
        let word = |yes| if yes { "yes" } else { "no" };
        let arguments = [word(self.genv1), word(self.sudo)];
        let output = host.run(&script::command(POLL, &arguments), b"", &self.limits).await?;
        let parts = sections(&output.stdout);
        let (Some(about), Some(devices), Some(processes), true) =
            (parts.get("host"), parts.get("devices"), parts.get("processes"), parts.contains_key("end"))
        else {
            return Err(not_told(&output));
        };
        let About { timestamp_seconds, zone, uid } = About::parse(*about).ok_or_else(|| not_told(&output))?;
        let gpu = nvidia_smi::sample(*devices, *processes);
        let genv1 = self.genv1.then(|| {
            let usage = parts.get("usage").copied();
            let usage = usage.unwrap_or(Section { text: b"", code: 1 });
            Genv1::parse(usage, &output.stderr, &zone, self.sudo || uid == Some(0))
        });
        let question = Question::of(gpu.as_ref().ok(), genv1.as_ref().and_then(|it| it.as_ref().ok()));
        let facts = host.run(&script::command(FACTS, &[]), question.stdin().as_bytes(), &self.limits).await?;
        let parts = sections(&facts.stdout);
        let answer = parts.get("facts").ok_or_else(|| not_told(&facts))?;
        let mut answer = Answer::parse(answer.text);
        let usernames = std::mem::take(&mut answer.usernames);
        let (state, table) = match genv1 {
            // Where there is no genv nobody is in an environment, whatever a process claims.
            None => (Ok(State::default()), answer.table(question.processes, |_, _| Claim::Absent)),
            Some(Ok(genv1)) => {
                let table = answer.table(question.processes, |pid, facts| genv1.claim(pid, facts));
                (Ok(genv1.state), table)
            }
            Some(Err(error)) => (Err(error), answer.table(question.processes, |_, _| processes::UNREADABLE)),
        };
        let told = Told {
            gpu,
            state,
            processes: Ok::<ProcessTable, String>(table),
            usernames,
            duration_seconds: asked.elapsed().as_secs_f64(),
        };
        let at = ToldAt { seconds: self.began.elapsed().as_secs_f64(), timestamp_seconds };
        Ok(self.host.observe(told, at))
    }
}

/// What a host says of itself.
struct About {
    timestamp_seconds: f64,
    zone: TimeZone,
    uid: Option<u32>,
}

impl About {
    /// Reads its name, its time and zone, and the user's number.
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

/// The zone that `+0130` means.
fn offset(text: &str) -> Option<TimeZone> {
    let number: i32 = text.trim().parse().ok()?;
    let seconds = (number / 100) * 3600 + (number % 100) * 60;
    Some(Offset::from_seconds(seconds).ok()?.to_time_zone())
}

/// Which processes and users are asked about.
struct Question {
    processes: BTreeSet<u32>,
    members: BTreeSet<u32>,
    users: BTreeSet<u32>,
}

impl Question {
    fn of(sample: Option<&GpuSample>, genv1: Option<&Genv1>) -> Self {
        let devices = sample.iter().flat_map(|sample| &sample.devices);
        let rows = devices.flat_map(|device| device.processes.iter().flatten());
        let environments = || genv1.iter().flat_map(|genv1| &genv1.state.environments);
        Self {
            processes: rows.map(|row| row.pid).collect(),
            members: environments().flat_map(|it| &it.pids).copied().collect(),
            users: environments().map(|it| it.uid).collect(),
        }
    }

    /// Processes come first: of them more is told than of members.
    fn stdin(&self) -> String {
        let mut lines = String::new();
        for (kind, numbers) in [("p", &self.processes), ("m", &self.members), ("u", &self.users)] {
            for number in numbers {
                // A text can always be written to.
                let _ = writeln!(lines, "{kind} {number}");
            }
        }
        lines
    }
}

/// The script itself did not run to its end.
fn not_told(output: &CommandOutput) -> HostFailure {
    let said = output.stderr.lines().rfind(|line| !line.trim().is_empty());
    let stdout = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(1000)]);
    let said = said.or_else(|| stdout.lines().find(|line| !line.trim().is_empty()));
    let said =
        said.map_or_else(|| "nothing".to_owned(), |line| format!("'{}'", shortened(&harmless(line.trim()), 160)));
    HostFailure::new(
        FailureKind::Protocol,
        format!(
            "cannot poll it: a script for sh {} there before it told all, and said {said}: see that the user may run \
             commands there",
            output.end
        ),
    )
}
