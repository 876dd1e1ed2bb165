//! What a reader and its parent send each other: a length of four bytes, and as many bytes in the format of postcard.

use std::io;

use serde::{Deserialize, Serialize};

use crate::gpu::GpuSample;
use crate::model::{DeviceIndex, Withheld};

/// The bytes of a length.
pub(super) const LENGTH: usize = 4;

/// The longest message: far more than the processes of all GPUs.
pub(super) const LONGEST: usize = 64 << 20;

/// The answer of a reader.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    sample: Result<GpuSample, String>,
    /// [`GpuSample::withheld`], whose own form leaves fields out.
    withheld: Vec<(Option<DeviceIndex>, String, String)>,
    /// The number of GPUs that the driver counts, with those that were not read.
    pub(super) counted: usize,
}

impl Answer {
    pub(super) fn new(mut sample: Result<GpuSample, String>, counted: usize) -> Self {
        let withheld = sample.as_mut().map(|sample| std::mem::take(&mut sample.withheld)).unwrap_or_default();
        Self { sample, withheld: withheld.into_iter().map(|it| (it.device, it.value, it.error)).collect(), counted }
    }

    /// The number of XID errors in it.
    pub(super) fn events(&self) -> usize {
        self.sample.as_ref().map_or(0, |sample| sample.xid_events.len())
    }

    /// The sample, or the error of the driver as a whole.
    pub(super) fn into_sample(self) -> Result<GpuSample, String> {
        let mut sample = self.sample?;
        sample.withheld =
            self.withheld.into_iter().map(|(device, value, error)| Withheld { device, value, error }).collect();
        Ok(sample)
    }
}

/// The message with its length.
///
/// # Errors
/// The message cannot be written in the format, or is too long.
pub(super) fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; LENGTH]).map_err(io::Error::other)?;
    let length = bytes.len() - LENGTH;
    if length > LONGEST {
        return Err(io::Error::other("the message is too long"));
    }
    bytes[..LENGTH].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}
