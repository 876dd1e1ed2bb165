//! MIG: the devices that a GPU is split into.

use std::ffi::c_uint;

use genv_core::model::DeviceIndex;
use nvml_wrapper_sys::bindings::{
    nvmlDeviceAttributes_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use crate::abi::{Answer, Out, calls, numbers, put};
use crate::device::{Device, Handle};

/// How many MIG devices a GPU can be split into: 7 slices on every product so far.
const MAX_DEVICES: c_uint = 7;

/// Streaming multiprocessors of one slice, as on an A100.
const MULTIPROCESSORS_PER_SLICE: c_uint = 14;

const PRODUCTS: [&str; 8] = ["A30", "A100", "H20", "H100", "H200", "H800", "B200", "GH200"];

fn is_capable(device: &Device) -> bool {
    device.is_split() || device.name().split([' ', '-']).any(|word| PRODUCTS.contains(&word))
}

fn attributes(device: &Device) -> Answer<nvmlDeviceAttributes_t> {
    let mig = device.mig().ok_or(NOT_SUPPORTED)?;
    // A profile is `3g.20gb`, or `1c.3g.20gb` where the compute instance is smaller than its GPU instance.
    let number = |suffix| {
        let mut parts = mig.profile.split('.').filter_map(|part| part.strip_suffix(suffix));
        parts.next().and_then(|number| number.parse::<c_uint>().ok())
    };
    let slices = number('g').unwrap_or(1);
    let compute_slices = number('c').unwrap_or(slices);
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: compute_slices * MULTIPROCESSORS_PER_SLICE,
        sharedCopyEngineCount: slices,
        sharedDecoderCount: slices / 2,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: slices,
        computeInstanceSliceCount: compute_slices,
        memorySizeMB: mig.memory_bytes >> 20,
    })
}

numbers! {
    nvmlDeviceGetMaxMigDeviceCount(device, c_uint) => if device.is_split() { MAX_DEVICES } else { 0 };
}

calls! { gpu:
    fn nvmlDeviceGetMigMode(device, current: Out<'_, c_uint>, pending: Out<'_, c_uint>) {
        if !is_capable(device) {
            return Err(NOT_SUPPORTED);
        }
        put(current, device.is_split().into())?;
        put(pending, device.is_split().into())
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device, mig: c_uint, out: Out<'_, Handle>) {
        let mig = u8::try_from(mig).ok().filter(|mig| usize::from(*mig) < device.gpu().device().mig.len());
        put(out, Handle::of(DeviceIndex::mig(device.index().gpu, mig.ok_or(NOT_FOUND)?)))
    }
}

calls! { device:
    fn nvmlDeviceIsMigDeviceHandle(device, out: Out<'_, c_uint>) {
        put(out, device.mig().is_some().into())
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, out: Out<'_, Handle>) {
        device.mig().ok_or(INVALID_ARGUMENT)?;
        put(out, Handle::of(device.index().whole()))
    }

    fn nvmlDeviceGetGpuInstanceId(device, out: Out<'_, c_uint>) {
        device.mig().ok_or(NOT_SUPPORTED)?;
        device.put(out, device.instances(device.index()).0)
    }

    fn nvmlDeviceGetComputeInstanceId(device, out: Out<'_, c_uint>) {
        device.mig().ok_or(NOT_SUPPORTED)?;
        device.put(out, device.instances(device.index()).1)
    }

    fn nvmlDeviceGetAttributes(device, out: Out<'_, nvmlDeviceAttributes_t>) also nvmlDeviceGetAttributes_v2 {
        put(out, attributes(device)?)
    }
}
