//! `genv deactivate`

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _};
use genv_core::state::{Facts, Left, MemberId, ProcessId, Refusal, Reply, Request};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::announce::{Deactivated, LeaveOutcome, QuietFlag};
use crate::device_facts::DeviceProcess;
use crate::driver_timeout::{brief_patience, needed_patience};
use crate::machine::{Machine, NoSample};
use crate::output::{harmless, joined, print_note};
use crate::own_environment;
use crate::shell::Caller;

/// The interval of checks while waiting for processes.
const POLL: Duration = Duration::from_millis(300);

/// Time limit for the end of a process after SIGTERM.
const END: Duration = Duration::from_secs(10);

/// Leave the environment of this shell. The environment ends with its last shell, and its devices become free.
///
/// Processes that use the devices continue, without a reservation. --wait waits for them, --end ends them.
#[derive(Debug, Args)]
pub(crate) struct Deactivate {
    /// First end the processes that use the devices (SIGTERM).
    #[arg(long, conflicts_with = "wait")]
    end: bool,

    /// First wait until no process uses the devices.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

impl Deactivate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let eid = own_environment::active_eid("deactivate")?;
        let caller = Caller::from_environment()?;
        let mut machine = Machine::here()?;
        if self.end {
            let processes = processes(&mut machine, &eid, caller.pid(), needed_patience()).context(
                "cannot find the processes that use the devices. 'genv deactivate' without --end leaves at once",
            )?;
            end(&processes)?;
        } else if self.wait {
            wait(&mut machine, &eid, caller.pid());
        } else if let Ok(processes) = processes(&mut machine, &eid, caller.pid(), brief_patience())
            && !processes.is_empty()
        {
            print_note(&format!(
                "environment {} ends, and other users may get its devices, but {}. 'genv deactivate --wait' would have \
                                 waited for this, '--end' would have ended it",
                harmless(&eid),
                named(&processes)
            ));
        }
        let member = MemberId::Process(caller.pid());
        let request = Request::Leave { eid: Some(eid.clone()), member, as_shell: false };
        let left = machine.change(&request, &Facts::default(), |before, _, reply| {
            let outcome = match reply {
                Reply::Left(Left::Continues(environment)) => LeaveOutcome::Continues(environment),
                Reply::Left(Left::Ends) => LeaveOutcome::Ends,
                _ => LeaveOutcome::AlreadyEnded,
            };
            Ok::<_, anyhow::Error>((before.attached(&eid), outcome))
        });
        let (devices, outcome) = match left {
            // A shell with a changed user, as by su, must not end another user's environment.
            Err(error) if error.is::<Refusal>() => (Vec::new(), LeaveOutcome::OtherUser),
            left => left?,
        };
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Deactivated { eid: &eid, devices: &devices, outcome });
        Ok(caller.leave()?)
    }
}

/// The processes that lose their devices when this member leaves; none if other members remain.
fn processes(
    machine: &mut Machine,
    eid: &str,
    member: u32,
    patience: Duration,
) -> Result<Vec<DeviceProcess>, NoSample> {
    // A damaged state causes an error in the later change.
    let state = machine.state().unwrap_or_default();
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let is_last = environment.is_some_and(|it| it.shells().eq([member]) && it.kernel_ids.is_empty());
    if !is_last || state.attached(eid).is_empty() {
        return Ok(Vec::new());
    }
    let mut processes = machine.device_processes(&state, eid, patience)?;
    processes.retain(|process| process.id.pid != member);
    Ok(processes)
}

/// Waits until no process uses the devices.
fn wait(machine: &mut Machine, eid: &str, member: u32) {
    let mut last_note = String::new();
    loop {
        let note = match processes(machine, eid, member, needed_patience()) {
            Ok(processes) if processes.is_empty() => return,
            Ok(processes) => format!("waiting: {}", named(&processes)),
            Err(error) => format!("waiting, since the processes are unknown: {error}"),
        };
        if note != last_note {
            print_note(&format!("{note}. Ctrl-C stops waiting"));
            last_note = note;
        }
        thread::sleep(POLL);
    }
}

pub(super) fn named(processes: &[DeviceProcess]) -> String {
    let named = |process: &DeviceProcess| {
        let (pid, comm) = (process.id.pid, harmless(&process.comm));
        let hiding = if process.hides_environment { ", which hides its environment," } else { "" };
        let devices = joined(&process.devices, ",");
        format!("process {pid} ({comm}){hiding} uses device {devices}")
    };
    processes.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// Ends processes and waits for their ends. A process that hides its environment may be outside of environments, and is not
/// ended.
///
/// # Errors
/// A process continues: the environment keeps its devices.
fn end(processes: &[DeviceProcess]) -> anyhow::Result<()> {
    let (hiding, processes): (Vec<DeviceProcess>, Vec<DeviceProcess>) =
        processes.iter().cloned().partition(|it| it.hides_environment);
    for process in &processes {
        let pid = i32::try_from(process.id.pid).ok().and_then(Pid::from_raw);
        let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The pid was not reused before the open if the process still exists.
        if let Some(opened) = opened.filter(|_| lives(process.id))
            && let Err(error) = pidfd_send_signal(&opened, Signal::TERM)
        {
            print_note(&format!("cannot end process {}: {error}", process.id.pid));
        }
    }
    let deadline = Instant::now() + END;
    while processes.iter().any(|process| lives(process.id)) {
        if Instant::now() >= deadline {
            let left: Vec<DeviceProcess> = processes.iter().filter(|process| lives(process.id)).cloned().collect();
            bail!(
                "{}, and did not end after SIGTERM: the environment continues. 'kill -9' ends such a process; 'genv \
                                 deactivate' without --end leaves at once",
                named(&left)
            );
        }
        thread::sleep(POLL / 10);
    }
    if !hiding.is_empty() {
        bail!(
            "{}, and is not ended for this reason: the environment continues. 'kill' ends such a process; 'genv deactivate' \
                         without --end leaves at once",
            named(&hiding)
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
