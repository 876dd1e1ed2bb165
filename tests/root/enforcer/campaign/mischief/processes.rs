//! Processes that hide, change, or claim to be in another user's environment, and one that holds the lock.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Result;
use genv_tests::process::Sleeper;

use super::super::lab::{MALLORY, SPARE};
use super::Adversary;

/// The lock, while environments of the adversary hold too many devices.
pub(super) fn held_lock(by: &mut Adversary<'_>) -> Result<()> {
    if by.lock.is_none() {
        let mut holder = Command::new("sh");
        let script = "exec 9>\"$1\"; flock 9; exec sleep 1000000";
        holder.args(["-c", script, "sh"]).arg(by.path("genv.lock")).env_clear().env("PATH", "/usr/bin:/bin");
        by.lock = Some(Sleeper::spawn(holder.uid(MALLORY).gid(MALLORY))?);
    }
    let member = by.start(&[("A", "1")], SPARE)?;
    by.change(|files, _| {
        for number in 0..10 {
            files.add(&format!("m{number}"), MALLORY, &[member], &[SPARE, SPARE - 1], None);
        }
    })
}

pub(super) fn respawns(by: &mut Adversary<'_>) -> Result<()> {
    by.processes.clear();
    by.start(&[("A", "1")], SPARE)?;
    Ok(())
}

pub(super) fn claims_of_others(by: &mut Adversary<'_>) -> Result<()> {
    let (eid, device) = (*by.random.one_of(&["a", "b", "d", "f1", "zz"]), by.random.below(8));
    by.start(&[("GENV_ENVIRONMENT_ID", eid)], device)?;
    Ok(())
}

pub(super) fn cleared_environs(by: &mut Adversary<'_>) -> Result<()> {
    let device = by.random.below(8);
    by.start(&[], device)?;
    Ok(())
}

pub(super) fn many_processes(by: &mut Adversary<'_>) -> Result<()> {
    for _ in 0..10 {
        let device = by.random.below(8);
        by.start(&[("A", "1")], device)?;
    }
    Ok(())
}
