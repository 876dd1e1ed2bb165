//! Flags that choose the source of GPU facts, as those of `genv-exporter`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use genv_simulator::{GpuSourceKind, SourceOptions};

#[derive(Debug, Args)]
pub(crate) struct SourceFlags {
    /// Source of GPU facts. auto: NVML if it can be loaded, or else no devices.
    #[arg(long = "gpu.source", value_name = "SOURCE", default_value = "auto", value_parser = gpu_source())]
    gpu_source: GpuSourceKind,

    /// Load this NVML library instead of libnvidia-ml.so.1.
    #[arg(long = "gpu.nvml-library", value_name = "FILE")]
    nvml_library: Option<PathBuf>,

    /// Simulate this scenario instead of the built-in one.
    #[arg(long = "gpu.scenario", value_name = "FILE")]
    scenario: Option<PathBuf>,
}

impl SourceFlags {
    pub(crate) fn options(self) -> SourceOptions {
        SourceOptions {
            gpu: self.gpu_source,
            nvml_library: self.nvml_library,
            scenario: self.scenario,
            ..SourceOptions::default()
        }
    }
}

fn gpu_source() -> impl TypedValueParser<Value = GpuSourceKind> {
    PossibleValuesParser::new(["auto", "nvml", "simulated"]).try_map(|text| text.parse::<GpuSourceKind>())
}
