//! One initialization of NVML, from the load of the library to its unload, and the devices seen in it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::device::{self, DeviceFacts};
use super::error::{Calls, Failure, driver_error, init_error, is_driver_gone};
use super::mig::{self, MigFacts};
use super::processes::ProcessReader;
use super::raw::{self, DeviceHandle};
use crate::gpu::current_call::{self, CallOf};
use crate::gpu::{DeviceSample, GpuError, GpuProcess, Gpus, UNUSED_RATIO};
use crate::model::{DeviceIndex, Withheld};

/// The call that opens the driver, after the load of its library.
pub(in crate::gpu) const INIT: &str = "nvmlInit_v2";

const COUNT: &str = "nvmlDeviceGetCount_v2";

/// The call that opens a device.
const HANDLE: &str = "nvmlDeviceGetHandleByIndex_v2";

/// The most GPUs of a machine: far more than any machine has, so that a wrong count costs little.
const MOST_DEVICES: u32 = 1024;

/// NVML, initialized. When it is dropped, together with all [`DeviceHandle`]s, NVML is shut down and the
/// library unloaded.
pub(super) struct Session {
    nvml: Arc<Nvml>,
    driver_version: Option<String>,
    slots: Vec<Slot>,
    processes: ProcessReader,
    handles_changed: bool,
}

/// The place of one GPU in NVML's order; absent as long as the device does not answer.
#[derive(Default)]
struct Slot(Option<OpenDevice>);

struct OpenDevice {
    handle: DeviceHandle,
    facts: DeviceFacts,
    mig: Vec<MigFacts>,
    utilization_last_seen_timestamp: u64,
}

impl Session {
    /// Loads the library and initializes it. That of the driver is not called without the kernel module.
    pub(super) fn open(library: &Path, is_of_driver: bool) -> Result<Self, GpuError> {
        let failed = |error: NvmlError| init_error(&library.to_string_lossy(), &error);
        if is_of_driver && !has_driver(Path::new("/")) {
            raw::load(library).map_err(failed)?;
            return Err(GpuError::NoModule);
        }
        let init = || Nvml::builder().lib_path(library.as_os_str()).init();
        let nvml = current_call::during(CallOf::Sweep, INIT, None, init).map_err(failed)?;
        let driver_version = driver_version(&nvml, &mut Calls::default())?;
        Ok(Self {
            nvml: Arc::new(nvml),
            processes: ProcessReader::new(driver_version.as_deref().unwrap_or_default()),
            driver_version,
            slots: Vec::new(),
            handles_changed: false,
        })
    }

    pub(super) const fn nvml(&self) -> &Arc<Nvml> {
        &self.nvml
    }

    /// `nvmlSystemGetDriverVersion`.
    pub(super) fn driver_version(&self) -> Option<String> {
        self.driver_version.clone()
    }

    /// Reads these devices. `uuids` are the last known UUIDs of the devices, from this session or an earlier one: a lost
    /// device does not report its UUID.
    ///
    /// # Errors
    /// The driver does not answer: the session is of no more use.
    pub(super) fn devices(
        &mut self,
        which: &Gpus,
        uuids: &mut Vec<String>,
        calls: &mut Calls,
    ) -> Result<Vec<DeviceSample>, GpuError> {
        self.learn_driver_version(calls)?;
        let count = calls.ask(COUNT, || self.nvml.device_count()).map_err(|error| driver_error(COUNT, &error))?;
        if count > MOST_DEVICES {
            return Err(GpuError::Driver {
                call: COUNT,
                reason: format!("it counts {count} devices, which no machine has; see 'nvidia-smi' and the kernel log"),
            });
        }
        // Indices are positions in PCI order: with one more or less, each may mean another device.
        if count as usize != self.slots.len() {
            self.slots.clear();
            self.slots.resize_with(count as usize, Slot::default);
            self.handles_changed = true;
        }
        if count as usize != uuids.len() {
            uuids.clear();
            uuids.resize(count as usize, String::new());
        }
        let mut samples = Vec::with_capacity(self.slots.len());
        for ((index, slot), uuid) in (0..count).zip(&mut self.slots).zip(uuids) {
            if !which.include(index) {
                self.handles_changed |= slot.0.take().is_some();
                continue;
            }
            let (before, noted) = (samples.len(), calls.withheld.len());
            calls.device = Some(DeviceIndex::gpu(index));
            let read = slot.open(&self.nvml, index, uuid, calls).and_then(|opened| {
                self.handles_changed |= opened;
                slot.read(index, &mut self.processes, calls, &mut samples)
            });
            match read {
                Ok(()) => {}
                Err(Failure::Driver(error)) => return Err(error),
                Err(Failure::Lost(why)) => {
                    slot.0 = None;
                    samples.truncate(before);
                    calls.withheld.truncate(noted);
                    calls.device = Some(DeviceIndex::gpu(index));
                    calls.note(Withheld::ALL, why);
                    samples.push(DeviceSample::lost(DeviceIndex::gpu(index), uuid.clone()));
                }
            }
        }
        Ok(samples)
    }

    /// Reads the version of the driver again, if it is not known yet. The layout of process lists depends on the
    /// version.
    fn learn_driver_version(&mut self, calls: &mut Calls) -> Result<(), GpuError> {
        if self.driver_version.is_some() {
            return Ok(());
        }
        self.driver_version = driver_version(&self.nvml, calls)?;
        if let Some(version) = &self.driver_version {
            self.processes = ProcessReader::new(version);
        }
        Ok(())
    }

    /// Whether the answering devices changed since the last call.
    pub(super) const fn take_handles_changed(&mut self) -> bool {
        std::mem::replace(&mut self.handles_changed, false)
    }

    /// Whether every device that answers tells that no other machine can use it.
    pub(super) fn serves_one_machine(&self) -> bool {
        self.slots.iter().filter_map(|slot| slot.0.as_ref()).all(|open| open.facts.serves_one_machine)
    }

    /// The devices that answer, with their indices.
    pub(super) fn handles(&self) -> Vec<(u32, DeviceHandle)> {
        let handle = |(index, slot): (u32, &Slot)| Some((index, slot.0.as_ref()?.handle.clone()));
        (0..).zip(&self.slots).filter_map(handle).collect()
    }
}

/// The device of WSL, through which Windows shares its GPUs, from the root.
pub(super) const WSL_DEVICE: &str = "dev/dxg";

/// Whether the machine with this root has NVIDIA's kernel module, or is WSL, which reaches the driver of Windows by
/// `/dev/dxg`. Without either, `nvmlInit_v2` of root creates `/dev/nvidiactl` and fails: so the node is no evidence.
fn has_driver(root: &Path) -> bool {
    ["proc/driver/nvidia/version", WSL_DEVICE].iter().any(|path| root.join(path).exists())
}

fn driver_version(nvml: &Nvml, calls: &mut Calls) -> Result<Option<String>, GpuError> {
    match calls.optional("nvmlSystemGetDriverVersion", || raw::driver_version(nvml)) {
        Ok(version) => Ok(version),
        Err(Failure::Driver(error)) => Err(error),
        Err(Failure::Lost(_)) => Ok(None),
    }
}

impl Slot {
    /// Opens the device, unless the same device is open. Returns whether a device was opened.
    fn open(&mut self, nvml: &Arc<Nvml>, index: u32, uuid: &mut String, calls: &mut Calls) -> Result<bool, Failure> {
        if let Some(open) = &mut self.0 {
            let device = open.handle.device();
            let now = calls.optional("nvmlDeviceGetUUID", || raw::uuid(&device))?;
            if now.is_none_or(|it| it == open.facts.uuid) {
                if !open.facts.is_whole {
                    let facts = device::facts(&device, open.facts.uuid.clone(), calls)?;
                    open.facts = facts;
                }
                return Ok(false);
            }
            self.0 = None;
        }
        let handle = match calls.ask(HANDLE, || DeviceHandle::by_index(nvml, index)) {
            Ok(handle) => handle,
            Err(error) if is_driver_gone(&error) => {
                return Err(Failure::Driver(driver_error(HANDLE, &error)));
            }
            // A device that this user may not see, as by a device cgroup, is left out, and so is a counted device that
            // has just been removed. A device with any other error is lost.
            Err(NvmlError::NoPermission) => return Ok(false),
            Err(error @ (NvmlError::NotFound | NvmlError::InvalidArg)) => {
                calls.note(Withheld::ALL, format!("{HANDLE}: {error}"));
                return Ok(false);
            }
            Err(error) => return Err(Failure::lost(HANDLE, &error)),
        };
        let device = handle.device();
        *uuid = calls.optional("nvmlDeviceGetUUID", || raw::uuid(&device))?.unwrap_or_default();
        let facts = device::facts(&device, uuid.clone(), calls)?;
        self.0 = Some(OpenDevice { handle, facts, mig: Vec::new(), utilization_last_seen_timestamp: 0 });
        Ok(true)
    }

    /// Reads the device and its MIG devices; reads nothing if the device is not open.
    fn read(
        &mut self,
        index: u32,
        processes: &mut ProcessReader,
        calls: &mut Calls,
        samples: &mut Vec<DeviceSample>,
    ) -> Result<(), Failure> {
        let Some(open) = &mut self.0 else {
            return Ok(());
        };
        let device = open.handle.device();
        let mig_parent = mig::is_enabled(&device, calls)?;
        let measurements = device::measure(&device, &open.facts, calls)?;
        let is_whole = mig_parent == Some(false);
        let used = measurements.utilization_ratio;
        let last_seen = &mut open.utilization_last_seen_timestamp;
        let processes_of_device = processes.read(
            &device,
            is_whole.then_some(last_seen),
            used.is_some_and(|ratio| ratio <= UNUSED_RATIO),
            calls,
        )?;
        let position = samples.len();
        samples.push(DeviceSample {
            index: DeviceIndex::gpu(index),
            uuid: open.facts.uuid.clone(),
            lost: false,
            name: open.facts.name.clone(),
            minor: open.facts.minor,
            profile: None,
            gpu_instance: None,
            mig_parent: false,
            mig_unsplit: false,
            measurements,
            processes: processes_of_device.listed,
            // The MIG devices may have processes that the whole GPU does not list.
            processes_incomplete: processes_of_device.incomplete || mig_parent.is_none(),
            lists_answered: processes_of_device.answered,
        });
        if mig_parent == Some(true) {
            let all_found = mig::read(&device, index, &mut open.mig, processes, calls, samples)?;
            let (whole, parts) = samples[position..].split_at_mut(1);
            split(&mut whole[0], parts, all_found, calls);
            if whole[0].mig_parent {
                // The lists of the parts have all processes.
                let index = whole[0].index;
                calls.withheld.retain(|it| it.device != Some(index) || it.value != Withheld::PROCESSES);
            }
        }
        Ok(())
    }
}

/// Makes a GPU in MIG mode, with its own list of processes, the parent of its MIG devices. The listed processes of a GPU
/// without MIG devices are on the GPU itself.
fn split(whole: &mut DeviceSample, parts: &[DeviceSample], all_found: bool, calls: &mut Calls) {
    let on_parts = parts.iter().flat_map(|part| part.processes.iter().flatten());
    let on_parts: BTreeSet<u32> = on_parts.map(|process| process.pid).collect();
    // This list is not kept, so that no later check sees an amount that the GPU does not have.
    let most_bytes = whole.measurements.memory.map_or(u64::MAX, |memory| memory.total_bytes);
    let holds = |process: &GpuProcess| process.memory_used_bytes.is_none_or(|bytes| bytes <= most_bytes);
    let mut listed = whole.processes.iter().flatten();
    if parts.is_empty() {
        whole.mig_unsplit = all_found;
        whole.processes_incomplete |= !all_found;
    } else if all_found && listed.all(|process| on_parts.contains(&process.pid) && holds(process)) {
        whole.mig_parent = true;
        whole.processes = Some(Vec::new());
        whole.processes_incomplete = false;
    } else {
        // The users and the memory of the missing parts are not known.
        let why = "a MIG device of the GPU does not answer, or the GPU lists a process that none of them lists";
        calls.device = Some(whole.index);
        if whole.measurements.memory.take().is_some() {
            calls.note("memory", why.to_owned());
        }
        calls.note(Withheld::PROCESSES, why.to_owned());
        whole.processes = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DeviceMeasurements, DeviceMemory, ProcessType};

    fn listing(index: DeviceIndex, processes: &[(u32, u64)]) -> DeviceSample {
        let processes = processes.iter().map(|(pid, bytes)| GpuProcess {
            pid: *pid,
            process_type: ProcessType::Compute,
            memory_used_bytes: Some(*bytes),
            utilization_ratio: None,
        });
        let memory = DeviceMemory { total_bytes: 80, used_bytes: 30, free_bytes: 50, reserved_bytes: None };
        DeviceSample {
            lost: false,
            measurements: DeviceMeasurements { memory: Some(memory), ..DeviceMeasurements::default() },
            processes: Some(processes.collect()),
            ..DeviceSample::lost(index, String::new())
        }
    }

    #[test]
    fn a_driver_is_its_kernel_module_or_that_of_windows_and_no_device_node() {
        for (path, expected) in [
            ("proc/driver/nvidia/version", true),
            ("dev/dxg", true),
            ("dev/nvidiactl", false),
            ("dev/nvidia0", false),
            ("proc/driver/nvidia-caps", false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            assert_eq!(has_driver(root.path()), expected, "{}", path.display());
        }
    }

    #[test]
    fn a_split_gpu_whose_own_list_contradicts_its_parts_is_unknown() {
        for (listed, agrees) in
            [(&[][..], true), (&[(7, 80)], true), (&[(7, 81)], false), (&[(7, 1), (8, 1)], false), (&[(0, 1)], false)]
        {
            let mut whole = listing(DeviceIndex::gpu(0), listed);
            let part = listing(DeviceIndex::mig(0, 0), &[(7, 1)]);
            let mut calls = Calls::default();
            split(&mut whole, &[part], true, &mut calls);
            let noted: Vec<&str> = calls.withheld.iter().map(|it| it.value.as_str()).collect();
            let expected: &[&str] = if agrees { &[] } else { &["memory", Withheld::PROCESSES] };
            assert_eq!(noted, expected, "{listed:?}");
            assert_eq!((whole.mig_parent, whole.processes_known()), (agrees, agrees), "{listed:?}");
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_without_parts_is_not_split_if_all_answers_say_so() {
        for all_found in [true, false] {
            let mut whole = listing(DeviceIndex::gpu(0), &[]);
            split(&mut whole, &[], all_found, &mut Calls::default());
            assert_eq!((whole.mig_unsplit, whole.processes_known()), (all_found, all_found));
            assert!(!whole.mig_parent);
        }
    }
}
