//! Which sources a program reads, as its flags and environment variables choose them.

use std::path::PathBuf;
use std::str::FromStr;

use crate::collect::HostSources;

/// Where GPUs are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuSourceKind {
    /// The simulated source if a scenario or a number of simulated devices is given, else NVML. Where
    /// the library does not load there are no devices, the collector reports why, and it is tried
    /// again each interval.
    #[default]
    Auto,
    /// NVML.
    Nvml,
    /// A scenario: the given one, else idle devices in the number given, else the built-in one.
    Simulated,
}

impl FromStr for GpuSourceKind {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "nvml" => Ok(Self::Nvml),
            "simulated" => Ok(Self::Simulated),
            _ => Err(SourceError::Usage(format!(
                "'{text}' is not a GPU source: choose auto, nvml or simulated"
            ))),
        }
    }
}

/// What chooses the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// Where GPUs are looked for.
    pub gpu: GpuSourceKind,
    /// NVML library to load instead of the system's.
    pub nvml_library: Option<PathBuf>,
    /// Scenario file of the simulated source.
    pub scenario: Option<PathBuf>,
    /// Number of simulated devices on this machine, with its real processes and environments.
    pub simulated_devices: Option<u32>,
    /// State directory instead of `/var/tmp/genv`.
    pub state_directory: Option<PathBuf>,
    /// Name of this host instead of the machine's. A scenario names its hosts itself.
    pub hostname: Option<String>,
}

/// Why no source could be chosen or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A flag or an environment variable has a wrong value.
    #[error("{0}")]
    Usage(String),
    /// What was chosen cannot be used.
    #[error("{0}")]
    Failed(String),
}

impl SourceOptions {
    /// Fills what is still absent from the environment variables `GENV_NVML_LIBRARY`,
    /// `GENV_SCENARIO`, `GENV_DEVICES` and `GENV_TMPDIR`; empty ones count as unset.
    ///
    /// # Errors
    /// `GENV_DEVICES` is not a number of devices.
    pub fn or_from_environment(mut self) -> Result<Self, SourceError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = |name| variable(name).map(PathBuf::from);
        self.nvml_library = self.nvml_library.or_else(|| path("GENV_NVML_LIBRARY"));
        self.scenario = self.scenario.or_else(|| path("GENV_SCENARIO"));
        self.state_directory = self.state_directory.or_else(|| path("GENV_TMPDIR"));
        if self.simulated_devices.is_none()
            && let Some(value) = variable("GENV_DEVICES")
        {
            self.simulated_devices = Some(parse_simulated_devices(&value.to_string_lossy())?);
        }
        Ok(self)
    }

    /// Opens the sources of every host that the options name: this one, or those of a scenario.
    ///
    /// # Errors
    /// A scenario cannot be read, or the hostname cannot be one.
    pub fn open(&self) -> Result<Vec<HostSources>, SourceError> {
        Err(SourceError::Failed("no GPU source is built in".to_owned()))
    }
}

/// More simulated devices than this are a typing error.
const MAX_SIMULATED_DEVICES: u32 = 1024;

fn parse_simulated_devices(text: &str) -> Result<u32, SourceError> {
    text.parse()
        .ok()
        .filter(|devices| *devices <= MAX_SIMULATED_DEVICES)
        .ok_or_else(|| {
            SourceError::Usage(format!(
                "GENV_DEVICES is '{text}', which is not a number of devices: \
                 set it to a number from 0 to {MAX_SIMULATED_DEVICES}, or unset it"
            ))
        })
}
