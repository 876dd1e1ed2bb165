//! `genv jobs`, `logs`, `wait` and `stop`

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::model::local_time_zone;
use genv_core::text::moment;
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

use crate::child::exit_code_result;
use crate::failure::{EXIT_CODES, Failure};
use crate::jobs::{self, Job, JobState};
use crate::output::{BAD, Cell, GOOD, Table, TableFlags, joined, print_json, print_note, stdout};

/// The interval of the checks while waiting for a job.
const POLL: Duration = Duration::from_millis(200);

/// List your jobs on this machine. 'genv exec --detach' starts a job.
#[derive(Debug, Args)]
#[command(after_help = "Example: list your jobs with their states\n  genv jobs")]
pub(crate) struct Jobs {
    #[command(flatten)]
    table: TableFlags,
}

/// Print the output of a job.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: follow the newest job until it ends\n  genv exec --detach -- python train.py\n  genv logs --follow"
)]
pub(crate) struct Logs {
    #[command(flatten)]
    which: JobArgument,

    /// Print new output until the job ends.
    #[arg(short, long)]
    follow: bool,
}

/// Wait for the end of a job. The exit code is the job's, or 128+n if signal n ended it.
#[derive(Debug, Args)]
#[command(after_help = format!("Example: wait for a job\n  genv exec --detach --name train -- python train.py\n  genv wait train\n\n{EXIT_CODES}"))]
pub(crate) struct Wait {
    #[command(flatten)]
    which: JobArgument,
}

/// End a job: send SIGTERM to its command, and SIGKILL if it does not end in time.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: end a job that needs up to a minute to save its work\n  genv exec --detach --name train -- python train.py\n  genv stop train --timeout 1m"
)]
pub(crate) struct Stop {
    /// Number or name of the job. Of several jobs with this name: the newest running one.
    #[arg(value_name = "JOB")]
    job: String,

    /// Time limit for the end after SIGTERM.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(Debug, Args)]
struct JobArgument {
    /// Number or name of the job. Of several jobs with this name: the newest. Default: the newest job.
    #[arg(value_name = "JOB")]
    job: Option<String>,
}

impl Jobs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let jobs = jobs::all()?;
        if self.table.json {
            let objects: Vec<_> = jobs.iter().map(object).collect();
            return Ok(print_json(&objects)?);
        }
        let header = &["JOB", "NAME", "STATE", "ENVIRONMENT", "DEVICES", "SINCE", "COMMAND"];
        let mut table = Table::new(header).header(!self.table.no_header);
        let zone = local_time_zone();
        for job in &jobs {
            let record = &job.record;
            let (state, style) = match job.state() {
                JobState::Running => ("running".to_owned(), Some(GOOD)),
                JobState::Ended(0) => ("done".to_owned(), None),
                JobState::Ended(code) => (format!("exit {code}"), Some(BAD)),
                JobState::Lost => ("ended unseen".to_owned(), Some(BAD)),
            };
            let state = Cell::own(state);
            table.row([
                Cell::own(record.number.to_string()),
                Cell::foreign(record.name.as_deref().unwrap_or_default()),
                style.map_or_else(|| state.clone(), |style| state.clone().style(style)),
                Cell::foreign(&record.eid),
                Cell::own(joined(&record.devices, ",")),
                Cell::own(moment(record.started_timestamp_seconds, &zone)),
                Cell::foreign(&record.command.join(" ")),
            ]);
        }
        Ok(table.write(&mut stdout())?)
    }
}

fn object(job: &Job) -> serde_json::Value {
    let record = &job.record;
    let state = match job.state() {
        JobState::Running => "running",
        JobState::Ended(_) => "ended",
        JobState::Lost => "lost",
    };
    json!({
        "number": record.number,
        "name": record.name,
        "state": state,
        "exit_code": record.exit_code,
        "eid": record.eid,
        "devices": record.devices,
        "command": record.command,
        "directory": record.directory,
        "output": job.output(),
        "started_timestamp_seconds": record.started_timestamp_seconds,
        "ended_timestamp_seconds": record.ended_timestamp_seconds,
    })
}

impl Logs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let job = jobs::find(self.which.job.as_deref())?;
        let path = job.output();
        let cannot = || format!("cannot read {}", path.display());
        let mut output = File::open(&path).with_context(cannot)?;
        let mut out = io::stdout().lock();
        loop {
            // The state is read before the output: the last read covers all output before the end.
            let is_over = !self.follow || job.again()?.state() != JobState::Running;
            let mut chunk = vec![0; 64 << 10];
            loop {
                let length = output.read(&mut chunk).with_context(cannot)?;
                if length == 0 {
                    break;
                }
                out.write_all(&chunk[..length])?;
            }
            out.flush()?;
            if is_over {
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }
}

impl Wait {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let job = jobs::find(self.which.job.as_deref())?;
        exit_code_result(ended(&job, None)?)
    }
}

/// Waits for the end of a job, up to `patience`. Returns the exit code.
fn ended(job: &Job, patience: Option<Duration>) -> anyhow::Result<u8> {
    let began = Instant::now();
    loop {
        match job.again()?.state() {
            JobState::Ended(code) => return Ok(code),
            JobState::Lost => bail!(
                "job {} has ended with an unknown exit code: the machine was restarted, or the program that waited for it was killed",
                job.title()
            ),
            JobState::Running if patience.is_some_and(|patience| began.elapsed() >= patience) => {
                return Err(Failure::NotInTime(format!("job {} still runs", job.title())).into());
            }
            JobState::Running => thread::sleep(POLL),
        }
    }
}

impl Stop {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let job = jobs::find_running(&self.job)?;
        if job.state() != JobState::Running {
            print_note(&format!("job {} has ended already", job.title()));
            return Ok(());
        }
        // The first process forwards the signal to its command.
        send(&job, Signal::TERM, 0)?;
        if ended(&job, Some(self.timeout)).is_err() && job.state() == JobState::Running {
            send(&job, Signal::KILL, 1)?;
            // `genv exec` sees the end and cleans up: wait for both.
            let _ = ended(&job, Some(self.timeout));
            print_note(&format!("job {} did not end after SIGTERM, and got SIGKILL", job.title()));
        }
        Ok(())
    }
}

/// Sends a signal to the first living process of a job, starting at position `first`.
fn send(job: &Job, signal: Signal, first: usize) -> anyhow::Result<()> {
    let mut processes = job.processes().into_iter().skip(first);
    let Some(process) = processes.find_map(jobs::JobProcess::open) else {
        // The job has ended meanwhile.
        return Ok(());
    };
    match pidfd_send_signal(process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => bail!("cannot end job {}: {errno}", job.title()),
    }
}
