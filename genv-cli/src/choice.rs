//! Flags that choose devices.

use clap::Args;
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::DeviceKind;

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
