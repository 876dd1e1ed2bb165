//! Process lists in all their layouts, utilization by process, and MIG devices.

use std::ffi::c_uint;

use libloading::os::unix::{Library, Symbol};
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use crate::driver::{Driver, handle, number};

const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
const NOT_SUPPORTED: nvmlReturn_t = 3;
const NOT_FOUND: nvmlReturn_t = 6;
const NO_INSTANCE: u32 = u32::MAX;

const BUSY: &str = "version: 1
users: {alice: 1001}
hosts:
- name: gpu01
  environments: []
  devices:
  - {memory: 80gi}
  - {memory: 80gi}
  - name: NVIDIA A100-SXM4-80GB
    memory: 80gi
    mig:
    - {profile: 3g.40gb, memory: 40gi, uuid: MIG-12345678-1234-1234-1234-123456780010}
    - {profile: 1c.4g.40gb, memory: 39gi}
  processes:
  - {pid: 10, user: alice, devices: [{index: 0, memory: 1gi, utilization: 0.25}, {index: \"2:1\", memory: 4gi}]}
  - {pid: 11, user: alice, type: graphics, devices: [{index: 0, memory: 2gi, utilization: 0.5}, {index: \"2:0\", memory: 5gi}]}
  - {pid: 12, user: alice, type: compute_and_graphics, devices: [{index: 0, memory: 3gi}]}
";

const GI: u64 = 1 << 30;

/// Pid, memory, GPU instance and compute instance.
type Row = (u32, u64, u32, u32);

fn rows(processes: Vec<ProcessInfo>) -> Vec<Row> {
    processes
        .into_iter()
        .map(|process| {
            let memory = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => bytes,
                UsedGpuMemory::Unavailable => u64::MAX,
            };
            let instance = |id: Option<u32>| id.unwrap_or(NO_INSTANCE);
            (process.pid, memory, instance(process.gpu_instance_id), instance(process.compute_instance_id))
        })
        .collect()
}

#[test]
fn each_list_holds_the_processes_of_its_kind() -> Result<(), NvmlError> {
    let driver = Driver::new(BUSY);
    let device = driver.gpu(0);
    let row = |pid, memory| (pid, memory, NO_INSTANCE, NO_INSTANCE);
    assert_eq!(rows(device.running_compute_processes()?), [row(10, GI), row(12, 3 * GI)]);
    assert_eq!(rows(device.running_graphics_processes()?), [row(11, 2 * GI), row(12, 3 * GI)]);
    assert_eq!(rows(device.mps_running_compute_processes()?), []);
    assert_eq!(rows(driver.gpu(1).running_compute_processes()?), []);
    Ok(())
}

#[test]
fn memory_that_the_driver_does_not_tell_is_not_available() -> Result<(), NvmlError> {
    let refused = "- {memory: 80gi, faults: [{not_supported: [process_memory]}]}";
    let driver = Driver::new(&BUSY.replacen("- {memory: 80gi}", refused, 1));
    let processes = driver.gpu(0).running_compute_processes()?;
    assert_eq!(processes.len(), 2);
    assert!(processes.iter().all(|process| matches!(process.used_gpu_memory, UsedGpuMemory::Unavailable)));
    Ok(())
}

type ListCall<T> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut T) -> nvmlReturn_t;

/// Calls one of NVML's lists by its name: the wrapper has not all of them.
fn list<T: Copy>(driver: &Driver, name: &str, device: &Device<'_>, capacity: u32) -> (nvmlReturn_t, u32, Vec<T>) {
    let library = driver.scenario.simulation.library();
    // SAFETY: loading the simulated library, which is loaded already, runs no code.
    let library = unsafe { Library::new(library) }.expect("the simulated library loads");
    // SAFETY: NVML's functions of these names have this type.
    let call: Symbol<ListCall<T>> = unsafe { library.get(name.as_bytes()) }.expect("the library has the call");
    let mut count = capacity;
    let mut buffer = Vec::with_capacity(capacity as usize);
    let pointer = if capacity == 0 { std::ptr::null_mut() } else { buffer.as_mut_ptr() };
    // SAFETY: the buffer has room for as many entries as `count` says.
    let code = unsafe { call(handle(device), &raw mut count, pointer) };
    if code == 0 && capacity > 0 {
        // SAFETY: the call has filled this many entries, of a plain type.
        unsafe { buffer.set_len(count as usize) };
    }
    (code, count, buffer)
}

#[test]
fn the_question_for_the_size_is_answered_as_a_driver_does() {
    let driver = Driver::new(BUSY);
    let call = |gpu, capacity| {
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        let (code, count, _) = list::<nvmlProcessInfo_v2_t>(&driver, name, &driver.gpu(gpu), capacity);
        (code, count)
    };
    assert_eq!(call(0, 0), (INSUFFICIENT_SIZE, 2));
    assert_eq!(call(0, 1), (INSUFFICIENT_SIZE, 2));
    assert_eq!(call(0, 2), (0, 2));
    assert_eq!(call(0, 9), (0, 2));
    assert_eq!(call(1, 0), (0, 0));
}

#[test]
fn every_version_of_a_list_has_its_layout() {
    let driver = Driver::new(BUSY);
    for kind in ["Compute", "Graphics", "MPSCompute"] {
        let expected: &[(u32, u64)] = match kind {
            "Compute" => &[(10, GI), (12, 3 * GI)],
            "Graphics" => &[(11, 2 * GI), (12, 3 * GI)],
            _ => &[],
        };
        let name = format!("nvmlDeviceGet{kind}RunningProcesses");
        let (code, _, first) = list::<nvmlProcessInfo_v1_t>(&driver, &name, &driver.gpu(0), 8);
        let told: Vec<_> = first.iter().map(|entry| (entry.pid, entry.usedGpuMemory)).collect();
        assert_eq!((code, told.as_slice()), (0, expected), "{name}");
        for version in ["_v2", "_v3"] {
            let name = format!("{name}{version}");
            let (code, _, later) = list::<nvmlProcessInfo_v2_t>(&driver, &name, &driver.gpu(0), 8);
            let told: Vec<_> = later.iter().map(|entry| (entry.pid, entry.usedGpuMemory)).collect();
            assert_eq!((code, told.as_slice()), (0, expected), "{name}");
            assert!(later.iter().all(|entry| entry.gpuInstanceId == NO_INSTANCE), "{name}");
        }
    }
}

#[test]
fn processes_that_come_between_two_calls_make_the_buffer_too_small() {
    let driver = Driver::new(&(BUSY.to_owned() + "  faults: [{insufficient_size: 20}]\n"));
    let call = |capacity| {
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        let (code, count, _) = list::<nvmlProcessInfo_v2_t>(&driver, name, &driver.gpu(0), capacity);
        (code, count)
    };
    assert_eq!(call(0), (INSUFFICIENT_SIZE, 2));
    assert_eq!(call(2), (INSUFFICIENT_SIZE, 22));
    assert_eq!(call(22), (0, 2));
    assert!(matches!(driver.gpu(0).running_compute_processes(), Err(NvmlError::InsufficientSize(_))));
}

#[test]
fn utilization_is_told_of_processes_that_ran_since_the_last_sample_seen() -> Result<(), NvmlError> {
    let driver = Driver::new(BUSY);
    let device = driver.gpu(0);
    let samples = device.process_utilization_stats(0)?;
    let told: Vec<_> = samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect();
    assert_eq!(told, [(10, 25), (11, 50)], "pid 12 did nothing");

    let seen = samples[0].timestamp;
    let later = seen + 3_600_000_000;
    assert!(matches!(device.process_utilization_stats(later), Err(NvmlError::NotFound)));
    assert!(matches!(driver.gpu(1).process_utilization_stats(0), Err(NvmlError::NotFound)));

    let next = loop {
        match device.process_utilization_stats(seen) {
            Ok(samples) => break samples,
            Err(NvmlError::NotFound) => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    };
    assert!(next.iter().all(|sample| sample.timestamp > seen), "{next:?}");
    Ok(())
}

#[test]
fn room_is_wanted_for_all_utilization_samples_that_are_kept() {
    let driver = Driver::new(BUSY);
    let ask = driver.lib().nvmlDeviceGetProcessUtilization.as_ref().expect("the library has the call");
    let call = |gpu, room: u32| {
        let mut samples = Vec::<nvmlProcessUtilizationSample_t>::with_capacity(room as usize);
        let mut count = room;
        // SAFETY: there is room for as many samples as `count` says.
        let code = unsafe { ask(handle(&driver.gpu(gpu)), samples.as_mut_ptr(), &raw mut count, 0) };
        (code, count)
    };
    for idle_or_busy in [0, 1] {
        for room in [0, 1, 2, 71] {
            assert_eq!(call(idle_or_busy, room), (INSUFFICIENT_SIZE, 72));
        }
    }
    assert_eq!(call(0, 72), (0, 2));
    assert_eq!(call(1, 72), (NOT_FOUND, 72));
}

#[test]
fn a_split_gpu_has_mig_devices_with_memory_and_processes_of_their_own() -> Result<(), NvmlError> {
    let driver = Driver::new(BUSY);
    let parent = driver.gpu(2);
    assert_eq!(parent.mig_mode()?.current, 1);
    assert_eq!(parent.mig_device_count()?, 7);
    assert!(matches!(parent.mig_device_by_index(2), Err(NvmlError::NotFound)));

    let first = parent.mig_device_by_index(0)?;
    assert!(first.mig_is_mig_device_handle()?);
    assert_eq!(first.name()?, "NVIDIA A100-SXM4-80GB MIG 3g.40gb");
    assert_eq!(first.uuid()?, "MIG-12345678-1234-1234-1234-123456780010");
    assert_eq!(first.index()?, 0);
    assert_eq!(driver.device_by_uuid(first.uuid()?)?.name()?, first.name()?);
    let memory = first.memory_info()?;
    assert_eq!((memory.total, memory.used), (40 * GI, 5 * GI));
    assert_eq!(rows(first.running_compute_processes()?), []);
    assert_eq!(rows(first.running_graphics_processes()?), [(11, 5 * GI, 1, 0)]);

    let second = parent.mig_device_by_index(1)?;
    assert_eq!(rows(second.running_compute_processes()?), [(10, 4 * GI, 2, 0)]);
    let attributes = second.attributes()?;
    assert_eq!(
        (attributes.gpu_instance_slice_count, attributes.compute_instance_slice_count, attributes.memory_size_mb),
        (4, 1, 39 * 1024)
    );

    assert_eq!(rows(parent.running_compute_processes()?), [(10, 4 * GI, 2, 0)]);
    assert_eq!(rows(parent.running_graphics_processes()?), [(11, 5 * GI, 1, 0)]);
    assert_eq!(parent.memory_info()?.used, 9 * GI);
    Ok(())
}

#[test]
fn instances_and_parents_of_mig_devices_are_told() -> Result<(), NvmlError> {
    let driver = Driver::new(BUSY);
    let mig = driver.gpu(2).mig_device_by_index(1)?;
    let lib = driver.lib();
    let gpu_instance = lib.nvmlDeviceGetGpuInstanceId.as_ref().expect("the library has the call");
    let compute_instance = lib.nvmlDeviceGetComputeInstanceId.as_ref().expect("the library has the call");
    assert_eq!(number(*gpu_instance, &mig), Ok(2));
    assert_eq!(number(*compute_instance, &mig), Ok(0));
    assert_eq!(number(*gpu_instance, &driver.gpu(2)), Err(NOT_SUPPORTED));
    assert_eq!(mig.mig_parent_device()?.uuid()?, driver.gpu(2).uuid()?);
    Ok(())
}

#[test]
fn what_concerns_whole_gpus_is_not_told_of_mig_devices_nor_utilization_of_their_parent() -> Result<(), NvmlError> {
    use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
    let driver = Driver::new(BUSY);
    let parent = driver.gpu(2);
    let mig = parent.mig_device_by_index(0)?;
    for answer in [
        mig.utilization_rates().map(drop),
        mig.temperature(TemperatureSensor::Gpu).map(drop),
        mig.power_usage().map(drop),
        mig.total_energy_consumption().map(drop),
        mig.clock_info(Clock::SM).map(drop),
        mig.process_utilization_stats(0).map(drop),
        parent.utilization_rates().map(drop),
        parent.encoder_utilization().map(drop),
        parent.process_utilization_stats(0).map(drop),
    ] {
        assert!(matches!(answer, Err(NvmlError::NotSupported)), "{answer:?}");
    }
    assert!(parent.temperature(TemperatureSensor::Gpu).is_ok());
    assert!(parent.power_usage().is_ok());
    Ok(())
}

#[test]
fn a_gpu_that_can_be_split_and_is_not_says_so() -> Result<(), NvmlError> {
    let driver = Driver::new(&BUSY.replacen("- {memory: 80gi}", "- {name: NVIDIA GeForce RTX 3090}", 1));
    assert!(matches!(driver.gpu(0).mig_mode(), Err(NvmlError::NotSupported)));
    assert_eq!(driver.gpu(1).mig_mode()?.current, 0);
    assert_eq!(driver.gpu(1).mig_device_count()?, 0);
    assert!(!driver.gpu(1).mig_is_mig_device_handle()?);
    Ok(())
}
