//! Devices as NVML's functions see them: a handle, and the scenario's device at this moment.

use std::ffi::c_uint;
use std::sync::Arc;

use genv_core::model::{DeviceIndex, DeviceMemory};
use genv_simulator::{DeviceAt, DeviceProcess, Measured, Measurement, MigDevice, WrongAnswer};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED};

use crate::abi::{Answer, Out, put};
use crate::driver::Moment;

/// A device handle as C passes it: never a pointer to anything, but a device's index, marked.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(usize);

/// Marks a handle, in its upper half: no pointer of a user's program lies there.
const MARK: usize = 0xDEF1_CE00 << 32;

impl Handle {
    pub(crate) fn of(index: DeviceIndex) -> Self {
        let mig = index.mig.map_or(0, |mig| usize::from(mig) + 1);
        Self(MARK | mig << 16 | index.gpu as usize)
    }

    pub(crate) const fn from_word(word: usize) -> Self {
        Self(word)
    }

    /// The device of the handle; `None` for an invalid handle.
    pub(crate) fn index(self) -> Option<DeviceIndex> {
        let gpu = (self.0 & 0xFFFF) as u32;
        let mig = (self.0 >> 16 & 0xFFFF).checked_sub(1);
        let index = DeviceIndex { gpu, mig: mig.map(u8::try_from).transpose().ok()? };
        (Self::of(index) == self).then_some(index)
    }

    pub(crate) fn as_nvml(self) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// A whole GPU or MIG device at one moment.
pub(crate) struct Device {
    moment: Arc<Moment>,
    index: DeviceIndex,
    wrong: Option<WrongAnswer>,
}

impl Device {
    /// The device with this index, if there is one, for this call about it.
    pub(crate) fn new(moment: Arc<Moment>, index: DeviceIndex, call: &str) -> Option<Self> {
        let gpu = moment.at().device(index.gpu)?;
        let wrong = gpu.wrong(call);
        let exists = index.mig.is_none_or(|mig| usize::from(mig) < gpu.device().mig.len());
        exists.then_some(Self { moment, index, wrong })
    }

    pub(crate) const fn wrong(&self) -> Option<WrongAnswer> {
        self.wrong
    }

    /// A measured number, or as much of the one that the scenario puts in its place as there is room for.
    pub(crate) fn number<T: TryFrom<u64>>(&self, truth: T) -> T {
        match self.wrong {
            Some(WrongAnswer::Number(number)) => {
                T::try_from(number).or(T::try_from(number & u64::from(u32::MAX))).unwrap_or(truth)
            }
            _ => truth,
        }
    }

    pub(crate) fn put<T: TryFrom<u64>>(&self, out: Out<'_, T>, truth: T) -> Answer {
        put(out, self.number(truth))
    }

    pub(crate) const fn index(&self) -> DeviceIndex {
        self.index
    }

    pub(crate) fn moment(&self) -> &Moment {
        &self.moment
    }

    /// The GPU, or the parent of the MIG device.
    pub(crate) fn gpu(&self) -> DeviceAt<'_> {
        // The one place that could have no answer: `new` has checked that there is one.
        self.moment.at().device(self.index.gpu).expect("a device exists as long as its moment")
    }

    pub(crate) fn mig(&self) -> Option<&MigDevice> {
        self.index.mig.and_then(|mig| self.gpu().device().mig.get(usize::from(mig)))
    }

    pub(crate) fn is_split(&self) -> bool {
        self.index.mig.is_none() && !self.gpu().device().mig.is_empty()
    }

    pub(crate) fn uuid(&self) -> &str {
        match self.mig() {
            Some(mig) => &mig.uuid,
            None => &self.gpu().device().uuid,
        }
    }

    /// The product's name; of a MIG device with its profile, as drivers do.
    pub(crate) fn name(&self) -> String {
        let product = &self.gpu().device().name;
        match self.mig() {
            Some(mig) => format!("{product} MIG {}", mig.profile),
            None => product.clone(),
        }
    }

    /// Refuses measurements that the device does not support, or that the scenario refuses.
    pub(crate) fn require(&self, measurement: Measurement) -> Answer {
        if self.supports(measurement) { Ok(()) } else { Err(NOT_SUPPORTED) }
    }

    pub(crate) fn supports(&self, measurement: Measurement) -> bool {
        self.gpu().supports(measurement, self.index.mig.is_some())
    }

    /// The values of its GPU, if the GPU reports this measurement.
    pub(crate) fn measured(&self, measurement: Measurement) -> Answer<&Measured> {
        self.require(measurement)?;
        Ok(self.moment.measured(self.gpu()))
    }

    /// Its memory: a MIG device's is that of its GPU instance.
    pub(crate) fn memory(&self) -> Answer<DeviceMemory> {
        let measured = self.measured(Measurement::Memory)?;
        match self.index.mig {
            None => Ok(measured.memory),
            Some(mig) => self.gpu().mig_memory(mig).map(|(_, memory)| memory).ok_or(NOT_SUPPORTED),
        }
    }

    /// Its processes; of a GPU that is split, those of all its parts.
    pub(crate) fn processes(&self) -> Answer<impl Iterator<Item = &DeviceProcess>> {
        let processes = &self.measured(Measurement::Processes)?.processes;
        Ok(processes.iter().filter(|process| self.index.mig.is_none() || process.index == self.index))
    }

    /// GPU and compute instance of one of the MIG devices of its GPU.
    pub(crate) fn instances(&self, index: DeviceIndex) -> (c_uint, c_uint) {
        let mig = index.mig.and_then(|mig| self.gpu().device().mig.get(usize::from(mig)));
        mig.map_or((NO_INSTANCE, NO_INSTANCE), |mig| (mig.gpu_instance, mig.compute_instance))
    }
}

/// NVML's id for "no MIG instance".
pub(crate) const NO_INSTANCE: c_uint = c_uint::MAX;
