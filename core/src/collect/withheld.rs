//! The values that a snapshot lacks although its devices and processes have them, in one list for each collector.
//!
//! The source lists failed calls. The checks of a sample add what they do not believe, and this module adds the rest:
//! impossible values, devices that do not answer, and processes that are not known for any other reason.

use super::contradictions::Contradictions;
use crate::attribute::reason;
use crate::gpu::bounds::Distrusted;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::{Attribution, Process, Withheld};
use crate::proc::ProcessTable;

/// The values that one sample withholds, by the checks that need no earlier sample. It has passed
/// [`Bounds`](crate::gpu::bounds::Bounds), and [`withhold`] has added what was removed.
pub fn withheld_values(mut sample: GpuSample) -> Vec<Withheld> {
    Contradictions::default().mark(&mut sample, 0.0, false);
    complete(&mut sample, &[]);
    sample.withheld
}

/// Adds removed values to the list of their sample.
pub fn withhold(sample: &mut GpuSample, distrusted: &[Distrusted]) {
    for it in distrusted {
        let error = format!("the driver reported an impossible value: {}", it.value);
        Withheld::of(it.index, it.reading, error).add_to(&mut sample.withheld);
    }
}

/// Completes the list of a sample that has passed the checks.
pub(super) fn complete(sample: &mut GpuSample, distrusted: &[Distrusted]) {
    withhold(sample, distrusted);
    let GpuSample { devices, withheld, .. } = sample;
    let is_doubted = |it: &&DeviceSample| it.index.mig.is_none() && !it.lost && it.processes_incomplete;
    let doubted: Vec<_> = devices.iter().filter(is_doubted).map(|it| it.index).collect();
    for device in devices {
        if device.lost {
            Withheld::of(device.index, Withheld::ALL, "the device does not answer").add_to(withheld);
        } else if !device.mig_parent && !device.processes_known() {
            let error = "the driver does not list them, or its other answers contradict or do not confirm its list";
            Withheld::of(device.index, Withheld::PROCESSES, error).add_to(withheld);
        } else if device.index.mig.is_some() && doubted.contains(&device.index.whole()) {
            let error = "an impossible reading of its GPU leaves open which processes use it";
            Withheld::of(device.index, Withheld::PROCESSES, error).add_to(withheld);
        }
    }
}

/// What this program may not read of processes.
pub(super) fn of_processes(table: &ProcessTable, processes: &[Process]) -> Vec<Withheld> {
    let mut withheld = table.withheld.clone();
    let is_unreadable = |it: &&Process| matches!(&it.attribution, Attribution::Unknown { reason } if reason == reason::ENVIRON_UNREADABLE);
    if let Some(process) = processes.iter().find(is_unreadable) {
        let error = format!(
            "the environ of process {} may not be read: run this program as root, or with CAP_SYS_PTRACE and \
             CAP_DAC_READ_SEARCH; in a container, AppArmor or SELinux may refuse the read",
            process.pid
        );
        withheld.push(Withheld::of_host("environments of processes", error));
    }
    withheld
}
