//! The MIG devices that a GPU is split into: memory and processes.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;

use super::device::{self, fact};
use super::error::{CallResult, Calls, Failure};
use super::processes::ProcessReader;
use super::raw;
use crate::gpu::{DeviceSample, MOST_MIG_DEVICES};
use crate::model::{DeviceIndex, DeviceMeasurements, Withheld};

/// Facts that stay as long as the MIG device exists. Its handle does not identify it: after a reconfiguration NVML
/// gives the handle to another MIG device.
pub(super) struct MigFacts {
    index: u8,
    uuid: String,
    name: Option<String>,
    profile: Option<String>,
    /// GPU instance and compute instance.
    instances: Option<(u32, u32)>,
    /// Whether all facts could be read; otherwise all are read again.
    is_whole: bool,
}

/// Whether the GPU is in MIG mode, with or without MIG devices in it; absent if the driver gives no answer.
pub(super) fn is_enabled(device: &Device<'_>, calls: &mut Calls) -> Result<Option<bool>, Failure> {
    /// `NVML_DEVICE_MIG_ENABLE`.
    const ENABLED: u32 = 1;
    let driver = || match device.mig_mode() {
        // A driver without MIG.
        Err(NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)) => Err(NvmlError::NotSupported),
        mode => mode,
    };
    Ok(match calls.call_result(Withheld::PROCESSES, "nvmlDeviceGetMigMode", driver)? {
        CallResult::Value(mode) => Some(mode.current == ENABLED),
        CallResult::NotSupported => Some(false),
        CallResult::Failed => None,
    })
}

/// Reads all MIG devices of a GPU. Returns whether all could be found. They are enumerated each time, because they can
/// be created and destroyed while the driver runs.
pub(super) fn read(
    parent: &Device<'_>,
    gpu: u32,
    known: &mut Vec<MigFacts>,
    processes: &mut ProcessReader,
    calls: &mut Calls,
    samples: &mut Vec<DeviceSample>,
) -> Result<bool, Failure> {
    let count = calls.optional("nvmlDeviceGetMaxMigDeviceCount", || parent.mig_device_count())?;
    let mut all_found = count.is_some_and(|count| count <= MOST_MIG_DEVICES);
    let mut seen = Vec::with_capacity(known.len());
    let first = samples.len();
    let indices = (0..=u8::MAX).zip(0..count.unwrap_or(0).min(MOST_MIG_DEVICES)).map(|(index, _)| index);
    for index in indices {
        calls.device = Some(DeviceIndex::mig(gpu, index));
        let driver = || match parent.mig_device_by_index(index.into()) {
            // Nothing is there.
            Err(NvmlError::NotFound) => Ok(None),
            device => device.map(Some),
        };
        let device = match calls.optional("nvmlDeviceGetMigDeviceHandleByIndex", driver)? {
            Some(Some(device)) => device,
            Some(None) => continue,
            None => {
                all_found = false;
                continue;
            }
        };
        let Some(uuid) = calls.optional("nvmlDeviceGetUUID", || raw::uuid(&device))? else {
            all_found = false;
            continue;
        };
        let mut facts = match known.iter().position(|it| it.index == index && it.uuid == uuid && it.is_whole) {
            Some(at) => known.swap_remove(at),
            None => facts(&device, index, uuid, calls)?,
        };
        if facts.instances.is_none() {
            facts.instances = calls.optional("nvmlDeviceGetGpuInstanceId", || raw::instances(&device))?;
        }
        let processes_of_device = processes.read(&device, None, true, calls)?;
        samples.push(DeviceSample {
            index: DeviceIndex::mig(gpu, index),
            uuid: facts.uuid.clone(),
            lost: false,
            name: facts.name.clone(),
            minor: None,
            profile: facts.profile.clone(),
            gpu_instance: None,
            mig_parent: false,
            mig_unsplit: false,
            measurements: DeviceMeasurements {
                memory: device::memory(&device, calls)?,
                ..DeviceMeasurements::default()
            },
            processes: processes_of_device.listed,
            processes_incomplete: processes_of_device.incomplete,
            lists_answered: processes_of_device.answered,
        });
        seen.push(facts);
    }
    show_gpu_instances(&mut seen, &mut samples[first..], calls);
    *known = seen;
    Ok(all_found)
}

/// Shows the GPU instance of each MIG device, unless its ids cannot be or are those of another MIG device: then they are
/// asked again. The memory of an unknown GPU instance may be that of another MIG device, and is not known either.
fn show_gpu_instances(known: &mut [MigFacts], parts: &mut [DeviceSample], calls: &mut Calls) {
    let all: Vec<_> = known.iter().map(|facts| facts.instances).collect();
    for (facts, part) in known.iter_mut().zip(parts) {
        let is_only = all.iter().filter(|it| **it == facts.instances).count() == 1;
        facts.instances.take_if(|(gpu, compute)| !is_only || (*gpu).max(*compute) >= MOST_MIG_DEVICES);
        part.gpu_instance = facts.instances.map(|(gpu, _)| gpu);
        if part.measurements.memory.take_if(|_| facts.instances.is_none()).is_some() {
            calls.device = Some(part.index);
            calls.note("memory", "the driver does not tell its GPU instance, so it may be that of another".to_owned());
        }
    }
}

fn facts(device: &Device<'_>, index: u8, uuid: String, calls: &mut Calls) -> Result<MigFacts, Failure> {
    let mut is_whole = true;
    let name = fact(calls, "nvmlDeviceGetName", || raw::name(device), &mut is_whole)?;
    let profile = match name.as_deref().and_then(profile_in_name) {
        Some(profile) => Some(profile.to_owned()),
        None => fact(calls, "nvmlDeviceGetAttributes_v2", || device.attributes(), &mut is_whole)?
            .and_then(|it| profile_of_attributes(&it)),
    };
    Ok(MigFacts { index, uuid, name, profile, instances: None, is_whole })
}

/// The profile at the end of a MIG device's name, as in `NVIDIA A100-SXM4-40GB MIG 3g.20gb`.
fn profile_in_name(name: &str) -> Option<&str> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    let profile = profile.trim();
    (profile.contains("g.") && !profile.contains(' ')).then_some(profile)
}

/// The profile as NVIDIA names it: the compute slices if they are not all slices of the instance, the slices, and the
/// memory in whole GiB, rounded up since the driver keeps a part.
fn profile_of_attributes(attributes: &DeviceAttributes) -> Option<String> {
    let slices = attributes.gpu_instance_slice_count;
    let compute = attributes.compute_instance_slice_count;
    if slices == 0 || attributes.memory_size_mb == 0 {
        return None;
    }
    let memory = attributes.memory_size_mb.div_ceil(1024);
    let instance = format!("{slices}g.{memory}gb");
    if compute == 0 || compute == slices { Some(instance) } else { Some(format!("{compute}c.{instance}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeviceMemory;

    #[test]
    fn the_memory_of_a_mig_device_is_known_with_its_gpu_instance_alone() {
        const NO_INSTANCE: u32 = u32::MAX;
        let memory = DeviceMemory { total_bytes: 2, used_bytes: 1, free_bytes: 1, reserved_bytes: None };
        for (told, shown) in [
            ([Some((2, 0)), Some((2, 1)), Some((3, 0))], [Some(2), Some(2), Some(3)]),
            ([Some((2, 0)), None, Some((3, 0))], [Some(2), None, Some(3)]),
            ([Some((0, 0)), Some((0, 1)), Some((0, 0))], [None, Some(0), None]),
            ([Some((2, 0)), Some((2, NO_INSTANCE)), Some((NO_INSTANCE, 0))], [Some(2), None, None]),
        ] {
            let mut known = told.map(|instances| MigFacts {
                index: 0,
                uuid: String::new(),
                name: None,
                profile: None,
                instances,
                is_whole: true,
            });
            let mut parts = [0, 1, 2].map(|number| DeviceSample {
                measurements: DeviceMeasurements { memory: Some(memory), ..DeviceMeasurements::default() },
                ..DeviceSample::lost(DeviceIndex::mig(0, number), String::new())
            });
            let mut calls = Calls::default();
            show_gpu_instances(&mut known, &mut parts, &mut calls);
            assert_eq!(parts.each_ref().map(|part| part.gpu_instance), shown, "{told:?}");
            let is_known = parts.each_ref().map(|part| part.measurements.memory.is_some());
            assert_eq!(is_known, shown.map(|id| id.is_some()), "{told:?}");
            let is_named = parts.each_ref().map(|part| calls.withheld.iter().any(|it| it.device == Some(part.index)));
            assert_eq!(is_named, is_known.map(|is_known| !is_known), "{told:?}");
            assert_eq!(known.each_ref().map(|facts| facts.instances.is_some()), is_known, "{told:?}");
        }
    }

    #[test]
    fn a_profile_is_the_end_of_the_name() {
        for (name, profile) in [
            ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", Some("3g.20gb")),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", Some("1g.10gb+me")),
            ("NVIDIA A100 80GB PCIe MIG 1c.3g.40gb", Some("1c.3g.40gb")),
            ("MIG 7g.80gb", Some("7g.80gb")),
            ("NVIDIA A100-SXM4-40GB", None),
            ("NVIDIA MIG Device", None),
            ("MIG ", None),
            ("", None),
        ] {
            assert_eq!(profile_in_name(name), profile, "{name:?}");
        }
    }

    #[test]
    fn a_profile_is_derived_from_attributes() {
        let attributes = |slices, compute, memory_size_mb| DeviceAttributes {
            multiprocessor_count: 42,
            shared_copy_engine_count: 3,
            shared_decoder_count: 2,
            shared_encoder_count: 0,
            shared_jpeg_count: 0,
            shared_ofa_count: 0,
            gpu_instance_slice_count: slices,
            compute_instance_slice_count: compute,
            memory_size_mb,
        };
        for (slices, compute, memory, profile) in [
            (3, 3, 19_968, Some("3g.20gb")),
            (3, 1, 40_192, Some("1c.3g.40gb")),
            (1, 1, 4_864, Some("1g.5gb")),
            (0, 0, 4_864, None),
            (1, 1, 0, None),
        ] {
            let derived = profile_of_attributes(&attributes(slices, compute, memory));
            assert_eq!(derived.as_deref(), profile);
        }
    }
}
