//! The processes of a snapshot.

use super::view::Usernames;
use crate::attribute::Attributor;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::{Process, ProcessDevice};
use crate::proc::{ProcessRead, ProcessTable};

/// Processes that use a device, by pid, each once with all its devices.
pub(super) fn processes<'a>(
    sample: &'a GpuSample,
    table: &ProcessTable,
    attributor: &Attributor<'_>,
    usernames: &Usernames,
) -> Vec<Process> {
    let devices = sample.devices.iter().filter(|device| !device.lost);
    let listed = |device: &'a DeviceSample| {
        let processes = device.processes.iter().flatten();
        processes.map(|process| (process.pid, device.index, process))
    };
    let most = devices.clone().flat_map(|device| &device.processes);
    let mut rows = Vec::with_capacity(most.map(Vec::len).sum());
    rows.extend(devices.flat_map(listed));
    // A stable sort is fast for a sequence of sorted lists.
    rows.sort_by_key(|(pid, index, _)| (*pid, *index));
    rows.dedup_by_key(|(pid, index, _)| (*pid, *index));

    rows.chunk_by(|(a, ..), (b, ..)| a == b)
        .map(|rows| {
            let pid = rows[0].0;
            let facts = match table.processes.get(&pid) {
                Some(ProcessRead::Present(facts)) => Some(facts),
                Some(ProcessRead::Vanished | ProcessRead::Unreadable) | None => None,
            };
            let uid = facts.and_then(|facts| table.shown_user(facts));
            Process {
                pid,
                start_time_ticks: facts.map(|facts| facts.start_time_ticks),
                uid,
                username: facts
                    .and_then(|facts| table.container_username(facts))
                    .or_else(|| uid.map(|uid| usernames.of(uid))),
                comm: facts.map(|facts| facts.comm.clone()),
                container_id: facts.and_then(|facts| facts.container_id.clone()),
                attribution: attributor.attribute(pid),
                devices: rows
                    .iter()
                    .map(|(_, index, process)| ProcessDevice {
                        index: *index,
                        process_type: process.process_type,
                        memory_used_bytes: process.memory_used_bytes.into(),
                        utilization_ratio: process.utilization_ratio.into(),
                    })
                    .collect(),
            }
        })
        .collect()
}
