//! A host in memory, and its snapshots.

mod accounts;
mod answers;
mod contradictions;
mod contradictory;
mod lab;
mod moods;
mod moved;
mod properties;
mod threads;
mod unexplained;
mod view;
mod withheld;

use crate::gpu::{DeviceSample, GpuProcess, GpuSample};
use crate::model::{Device, DeviceIndex, DeviceMeasurements, DeviceMemory, MemoryAmount, ProcessType, Snapshot};
use crate::proc::{Claim, Lineage, ProcessFacts, ProcessRead, ProcessTable};
use crate::state::{AttachmentState, DeviceState, EnvironmentState, MemberState, State};

const GIB: u64 = 1 << 30;

/// A whole GPU of 16 GiB that answers everything.
pub(super) fn gpu(index: u32) -> DeviceSample {
    DeviceSample {
        index: DeviceIndex::gpu(index),
        uuid: format!("GPU-{index}"),
        lost: false,
        name: Some("Simulated".to_owned()),
        minor: Some(index),
        profile: None,
        gpu_instance: None,
        mig_parent: false,
        mig_unsplit: false,
        measurements: DeviceMeasurements {
            utilization_ratio: Some(0.5),
            memory: Some(DeviceMemory {
                total_bytes: 16 * GIB,
                used_bytes: GIB,
                free_bytes: 15 * GIB,
                reserved_bytes: None,
            }),
            power_watts: Some(100.0),
            energy_joules: Some(0.0),
            ..DeviceMeasurements::default()
        },
        processes: Some(Vec::new()),
        processes_incomplete: false,
        lists_answered: true,
    }
}

fn mig(gpu_index: u32, mig_index: u8) -> DeviceSample {
    DeviceSample {
        index: DeviceIndex::mig(gpu_index, mig_index),
        uuid: format!("MIG-{gpu_index}-{mig_index}"),
        profile: Some("3g.20gb".to_owned()),
        measurements: DeviceMeasurements { memory: gpu(0).measurements.memory, ..DeviceMeasurements::default() },
        ..gpu(gpu_index)
    }
}

fn lost(device: &DeviceSample) -> DeviceSample {
    DeviceSample::lost(device.index, device.uuid.clone())
}

pub(super) fn on_gpu(pid: u32, utilization_ratio: Option<f64>) -> GpuProcess {
    GpuProcess { pid, process_type: ProcessType::Compute, memory_used_bytes: Some(GIB), utilization_ratio }
}

pub(super) fn sample(devices: Vec<DeviceSample>) -> GpuSample {
    GpuSample {
        driver_version: Some("550.163.01".to_owned()),
        serves_one_machine: true,
        devices,
        ..GpuSample::default()
    }
}

pub(super) fn environment(eid: &str, uid: u32, pids: &[u32]) -> EnvironmentState {
    EnvironmentState {
        eid: eid.to_owned(),
        uid,
        username: Some("the name in the file".to_owned()),
        created_timestamp_seconds: Some(1_000.0),
        members: pids.iter().map(|pid| MemberState::from(*pid)).collect(),
        ..EnvironmentState::default()
    }
}

pub(super) fn attached(index: u32, attachments: &[(&str, Option<u64>)]) -> DeviceState {
    DeviceState {
        index,
        total_memory: Some(MemoryAmount::from_bytes(16 * GIB)),
        attachments: attachments
            .iter()
            .map(|(eid, gpu_memory_bytes)| AttachmentState {
                eid: (*eid).to_owned(),
                gpu_memory: gpu_memory_bytes.map(MemoryAmount::from_bytes),
                attached_timestamp_seconds: Some(1_000.0),
            })
            .collect(),
    }
}

pub(super) fn state(environments: Vec<EnvironmentState>, devices: Vec<DeviceState>) -> State {
    State { installed: true, written_timestamp_seconds: Some(2_000.0), environments, devices, ..State::default() }
}

/// Adds a process, a child of `init`, to a table.
pub(super) fn add_process(table: &mut ProcessTable, pid: u32, uid: u32, claim: Claim) {
    let lineage = |pid, parent| Lineage {
        start_time_ticks: u64::from(pid),
        start_timestamp_seconds: 1_000.0,
        parent,
        uid: Some(if pid == 1 { 0 } else { uid }),
    };
    table.lineage.insert(1, lineage(1, 0));
    table.lineage.insert(pid, lineage(pid, 1));
    table.processes.insert(
        pid,
        ProcessRead::Present(ProcessFacts {
            start_time_ticks: u64::from(pid),
            uid: Some(uid),
            real_uid: Some(uid),
            comm: "python".to_owned(),
            container_id: None,
            container_owner: None,
            claim,
        }),
    );
}

fn device(snapshot: &Snapshot, index: u32) -> &Device {
    let index = DeviceIndex::gpu(index);
    let mut devices = snapshot.devices.iter();
    devices.find(|device| device.index == index).unwrap()
}
