//! Who a device is and how it is configured. What a scenario does not describe is answered as a server's driver does
//! on an idle machine: persistence on, no display, default compute mode, the highest performance state.

use std::ffi::{c_char, c_uint};

use genv_core::model::DeviceIndex;
use genv_simulator::Measurement;
use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::{
    nvmlPciInfo_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use crate::abi::{Answer, Out, calls, fixed_text, numbers, put, put_text_or};
use crate::device::{Device, Handle};

const ENABLED: c_uint = nvml::nvmlEnableState_enum_NVML_FEATURE_ENABLED;
const DISABLED: c_uint = nvml::nvmlEnableState_enum_NVML_FEATURE_DISABLED;

/// NVIDIA's PCI vendor id, as the low half of a device id.
const VENDOR: c_uint = 0x10de;

/// The part of `nvmlPciInfo_t` that was there from the beginning; the two older calls write no more than this.
#[derive(Clone, Copy)]
#[repr(C)]
struct OldPciInfo {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
}

/// The PCI address of a device; its function is always 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PciAddress {
    domain: u32,
    bus: u32,
    device: u32,
}

impl PciAddress {
    /// Reads `DOMAIN:BUS:DEVICE.FUNCTION`, hexadecimal; NVML's callers may leave the domain or the function out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        let address = text.split_once('.').map_or(text, |(address, _function)| address);
        let mut parts = address.rsplit(':');
        let device = number(parts.next()?)?;
        let bus = number(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), number)?;
        parts.next().is_none().then_some(Self { domain, bus, device })
    }
}

fn old_pci_info(device: &Device) -> Answer<OldPciInfo> {
    let pci = PciAddress::parse(&device.gpu().device().pci_bus_id).ok_or(NOT_SUPPORTED)?;
    Ok(OldPciInfo {
        bus_id: fixed_text(&format!("{:04X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device)),
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
        pci_device_id: VENDOR,
        pci_subsystem_id: VENDOR,
    })
}

fn pci_info(device: &Device) -> Answer<nvmlPciInfo_t> {
    let old = old_pci_info(device)?;
    Ok(nvmlPciInfo_t {
        busIdLegacy: old.bus_id,
        domain: old.domain,
        bus: old.bus,
        device: old.device,
        pciDeviceId: old.pci_device_id,
        pciSubSystemId: old.pci_subsystem_id,
        busId: fixed_text(&format!("{:08X}:{:02X}:{:02X}.0", old.domain, old.bus, old.device)),
    })
}

calls! { device:
    fn nvmlDeviceGetName(device, buffer: *mut c_char, length: c_uint) {
        device.require(Measurement::Name)?;
        put_text_or(device.wrong(), buffer, length, &device.name())
    }

    fn nvmlDeviceGetUUID(device, buffer: *mut c_char, length: c_uint) {
        put_text_or(device.wrong(), buffer, length, device.uuid())
    }

    fn nvmlDeviceGetIndex(device, out: Out<'_, c_uint>) {
        let DeviceIndex { gpu, mig } = device.index();
        put(out, mig.map_or(gpu, u32::from))
    }
}

numbers! {
    nvmlDeviceGetMinorNumber(device, c_uint) =>
        device.require(Measurement::Minor).map(|()| device.gpu().device().minor)?;
    nvmlDeviceGetPersistenceMode(device, c_uint) => ENABLED;
    nvmlDeviceGetDisplayActive(device, c_uint) => DISABLED;
    nvmlDeviceGetDisplayMode(device, c_uint) => DISABLED;
    nvmlDeviceGetPerformanceState(device, c_uint) => nvml::nvmlPStates_enum_NVML_PSTATE_0;
    nvmlDeviceGetPowerState(device, c_uint) => nvml::nvmlPStates_enum_NVML_PSTATE_0;
    nvmlDeviceGetComputeMode(device, c_uint) => nvml::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT;
    nvmlDeviceGetVirtualizationMode(device, c_uint) =>
        nvml::nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_NONE;
}

calls! { gpu:
    fn nvmlDeviceGetSerial(_device, _buffer: *mut c_char, _length: c_uint) {
        Err(NOT_SUPPORTED)
    }

    fn nvmlDeviceGetPciInfo(device, out: Out<'_, OldPciInfo>) also nvmlDeviceGetPciInfo_v2 {
        put(out, old_pci_info(device)?)
    }

    fn nvmlDeviceGetPciInfo_v3(device, out: Out<'_, nvmlPciInfo_t>) {
        put(out, pci_info(device)?)
    }

    fn nvmlDeviceGetEccMode(device, current: Out<'_, c_uint>, pending: Out<'_, c_uint>) {
        device.require(Measurement::Ecc)?;
        put(current, ENABLED)?;
        put(pending, ENABLED)
    }

    fn nvmlDeviceValidateInforom(_device) {
        Ok(())
    }

    fn nvmlDeviceGetTopologyCommonAncestor(device, other: Handle, out: Out<'_, c_uint>) {
        let other = crate::driver::gpu("nvmlDeviceGetTopologyCommonAncestor", other)?;
        if other.index() == device.index() {
            return Err(INVALID_ARGUMENT);
        }
        put(out, nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM)
    }
}
