//! Flags that choose devices.

use clap::Args;
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{DeviceKind, Selection};

use crate::values;

/// Flags for the kind of devices.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KindFlags {
    /// Attach only devices with these words in the model's name, such as a100 or 'rtx 4090'. Separate several types by commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = values::gpu_type)]
    gpu_type: Vec<String>,

    /// Attach only devices with at least this total memory, such as 40g.
    #[arg(long, value_name = "MEMORY", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory_at_least: Option<MemoryAmount>,
}

impl KindFlags {
    pub(crate) fn kind(&self) -> DeviceKind {
        DeviceKind { types: self.gpu_type.clone(), memory_at_least: self.gpu_memory_at_least }
    }
}

/// Selects the devices with these indices, or else this number of devices. With a kind and without a number: as many devices
/// as are attached, and at least one.
pub(crate) fn selection(
    indices: &[u32],
    number: Option<u32>,
    kind: &DeviceKind,
    attached: &[u32],
) -> Option<Selection> {
    if !indices.is_empty() {
        return Some(Selection::Indices(indices.iter().copied().collect()));
    }
    let of_kind = || u32::try_from(attached.len().max(1)).unwrap_or(u32::MAX);
    let number = number.or_else(|| (!kind.is_any()).then(of_kind));
    number.map(Selection::Count)
}
