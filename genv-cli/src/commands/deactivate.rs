//! `genv deactivate`

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _};
use genv_core::state::{EditableState, MemberId, ProcessId, StoreError};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::devices::indices;
use crate::announce::{Deactivated, Fate, QuietFlag};
use crate::machine::{INVENTORY_PATIENCE, Job, Machine, NoSample, USAGE_PATIENCE, tell};
use crate::output::harmless;
use crate::own_environment::{self, check_outside};
use crate::shell::Caller;

/// How often those who wait for a job look again.
const POLL: Duration = Duration::from_millis(300);

/// How long a job may take to end after SIGTERM.
const END: Duration = Duration::from_secs(10);

/// Let this shell leave its environment. With its last shell the environment ends, and its devices become free.
///
/// A job that works on them goes on without them, unless it is waited for or ended.
#[derive(Debug, Args)]
pub(crate) struct Deactivate {
    /// End the jobs that work on the devices first (SIGTERM).
    #[arg(long, conflicts_with = "wait")]
    end: bool,

    /// Wait first until no job works on the devices.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

impl Deactivate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active("deactivate")?;
        let caller = Caller::from_environment()?;
        let mut machine = Machine::here()?;
        if self.end {
            let jobs = jobs(&mut machine, &eid, caller.pid(), INVENTORY_PATIENCE).context(
                "cannot tell which jobs work on the devices. 'genv deactivate' without --end leaves at once",
            )?;
            end(&jobs)?;
        } else if self.wait {
            wait(&mut machine, &eid, caller.pid());
        } else if let Ok(jobs) = jobs(&mut machine, &eid, caller.pid(), USAGE_PATIENCE)
            && !jobs.is_empty()
        {
            tell(&format!(
                "environment {} ends, and others may get its devices, but {}. 'genv deactivate --wait' would have waited \
                 for that, '--end' would have ended it",
                harmless(&eid),
                named(&jobs)
            ));
        }
        let member = MemberId::Process(caller.pid());
        let (devices, fate) = machine.update(|state| {
            let devices = state.attached(&eid);
            Ok::<_, StoreError>((devices, leave(state, &eid, &member)))
        })?;
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Deactivated { eid: &eid, devices: &devices, fate });
        Ok(caller.leave()?)
    }
}

fn leave(state: &mut EditableState, eid: &str, member: &MemberId) -> Fate {
    // A shell that changed its user, as by su, must not end another user's environment.
    if check_outside(state, eid, "leave").is_err() {
        return Fate::OfAnother;
    }
    let was_there = state.environment(eid).is_some();
    state.leave(eid, member);
    match state.environment(eid) {
        Some(environment) => Fate::GoesOn(environment.clone()),
        None if was_there => Fate::Ends,
        None => Fate::HadEnded,
    }
}

/// Jobs that lose their devices when this member leaves: none if it is not the last.
fn jobs(machine: &mut Machine, eid: &str, member: u32, patience: Duration) -> Result<Vec<Job>, NoSample> {
    // What cannot be read now fails below, where it matters.
    let state = machine.state().unwrap_or_default();
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let is_last = environment.is_some_and(|it| state.shells(it).eq([member]) && it.kernel_ids.is_empty());
    if !is_last || state.attached(eid).is_empty() {
        return Ok(Vec::new());
    }
    let mut jobs = machine.jobs(&state, eid, patience)?;
    jobs.retain(|job| job.process.pid != member);
    Ok(jobs)
}

/// Waits until it is known that no job works on the devices.
fn wait(machine: &mut Machine, eid: &str, member: u32) {
    let mut told = String::new();
    loop {
        let why = match jobs(machine, eid, member, INVENTORY_PATIENCE) {
            Ok(jobs) if jobs.is_empty() => return,
            Ok(jobs) => format!("waiting: {}", named(&jobs)),
            Err(error) => format!("waiting, as it is not known which jobs work: {error}"),
        };
        if why != told {
            tell(&format!("{why}. Ctrl-C stops waiting"));
            told = why;
        }
        thread::sleep(POLL);
    }
}

pub(super) fn named(jobs: &[Job]) -> String {
    let named = |job: &Job| {
        let (pid, comm) = (job.process.pid, harmless(&job.comm));
        let unclear = if job.is_unclear { ", which does not show its environment," } else { "" };
        let devices = indices(&job.devices);
        format!("process {pid} ({comm}){unclear} works on device {devices}")
    };
    jobs.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// Ends jobs and waits for their ends. A process that does not show its environment may be in no environment, and
/// stays.
///
/// # Errors
/// A job goes on: its devices stay in the environment.
fn end(jobs: &[Job]) -> anyhow::Result<()> {
    let (unclear, jobs): (Vec<Job>, Vec<Job>) = jobs.iter().cloned().partition(|it| it.is_unclear);
    for job in &jobs {
        let pid = i32::try_from(job.process.pid).ok().and_then(Pid::from_raw);
        let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The opened process is the job if the job still exists.
        if let Some(opened) = opened.filter(|_| lives(job.process))
            && let Err(error) = pidfd_send_signal(&opened, Signal::TERM)
        {
            tell(&format!("cannot end process {}: {error}", job.process.pid));
        }
    }
    let deadline = Instant::now() + END;
    while jobs.iter().any(|job| lives(job.process)) {
        if Instant::now() >= deadline {
            let left: Vec<Job> = jobs.iter().filter(|job| lives(job.process)).cloned().collect();
            bail!(
                "{}, and has not ended by SIGTERM: the environment goes on. 'kill -9' ends such a process; 'genv deactivate' \
                 without --end leaves at once",
                named(&left)
            );
        }
        thread::sleep(POLL / 10);
    }
    if !unclear.is_empty() {
        bail!(
            "{}, and is not ended for that: the environment goes on. 'kill' ends such a process; 'genv deactivate' without --end \
             leaves at once",
            named(&unclear)
        );
    }
    Ok(())
}

fn lives(process: ProcessId) -> bool {
    let request = ProcessRequest { processes: Vec::new(), members: vec![process.pid] };
    let table = ProcReader::new().read(&request);
    let found = table.living(process.pid);
    found.is_some_and(|found| found.start_time_ticks == process.start_time_ticks)
}
