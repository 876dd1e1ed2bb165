//! The processes of a snapshot.

use super::view::Usernames;
use crate::attribute::Attributor;
use crate::gpu::GpuSample;
use crate::model::{Process, ProcessDevice};
use crate::proc::{ProcessRead, ProcessTable};

/// Processes that use a device, by pid, each once with all its devices.
pub(super) fn processes(
    sample: &GpuSample,
    table: &ProcessTable,
    attributor: &Attributor<'_>,
    usernames: &Usernames,
) -> Vec<Process> {
    let mut rows: Vec<(u32, ProcessDevice)> = Vec::new();
    for device in sample.devices.iter().filter(|device| !device.lost) {
        for process in device.processes.iter().flatten() {
            rows.push((
                process.pid,
                ProcessDevice {
                    index: device.index,
                    process_type: process.process_type,
                    memory_used_bytes: process.memory_used_bytes,
                    utilization_ratio: process.utilization_ratio,
                },
            ));
        }
    }
    // The rows of each device are mostly in order, of which only this sort makes use.
    rows.sort_by_key(|(pid, device)| (*pid, device.index));
    rows.dedup_by_key(|(pid, device)| (*pid, device.index));

    rows.chunk_by(|(a, _), (b, _)| a == b)
        .map(|rows| {
            let pid = rows[0].0;
            let facts = match table.processes.get(&pid) {
                Some(ProcessRead::Present(facts)) => Some(facts),
                Some(ProcessRead::Vanished | ProcessRead::Unreadable) | None => None,
            };
            let uid = facts.and_then(|facts| facts.uid);
            Process {
                pid,
                start_time_ticks: facts.map(|facts| facts.start_time_ticks),
                uid,
                username: uid.map(|uid| usernames.of(uid)),
                comm: facts.map(|facts| facts.comm.clone()),
                container_id: facts.and_then(|facts| facts.container_id.clone()),
                attribution: attributor.attribute(pid),
                devices: rows.iter().map(|(_, device)| device.clone()).collect(),
            }
        })
        .collect()
}
