//! Which sources a program reads, as its flags and environment variables choose them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use genv_core::collect::{Clock, HostSources};
use genv_core::gpu::GpuSource;
use genv_core::gpu::nvml::NvmlSource;
use genv_core::gpu::reader::ReaderSource;
use genv_core::hosts::machine_name;
use genv_core::proc::ProcReader;
use genv_core::state::{StateDirectory, directory_path};

use crate::{Engine, RealSources, sources};

/// Where GPUs are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuSourceKind {
    /// NVML if a library is named; else the simulated source if a scenario or a number of simulated
    /// devices is given; else NVML. Where its library does not load there are no devices, the
    /// collector reports why, and it is tried again each interval.
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
            _ => Err(SourceError::Usage(format!("'{text}' is not a GPU source: choose auto, nvml or simulated"))),
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
    /// Whether a process of its own calls NVML, for programs that go on: see [`ReaderSource`].
    pub in_reader: bool,
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
    /// Fills the absent options from the environment variables `GENV_NVML_LIBRARY`,
    /// `GENV_SCENARIO`, `GENV_DEVICES` and `GENV_TMPDIR`; empty ones count as unset. Of a
    /// library and a scenario, given options win over variables.
    ///
    /// # Errors
    /// `GENV_DEVICES` is not a number of devices, or the options contradict each other.
    pub fn or_from_environment(self) -> Result<Self, SourceError> {
        self.or_from(|name| std::env::var_os(name))
    }

    fn or_from(mut self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SourceError> {
        let contrary = match (self.gpu, &self.nvml_library, &self.scenario) {
            (GpuSourceKind::Auto, Some(_), Some(_)) => {
                Some("--gpu.nvml-library and --gpu.scenario exclude each other: leave one out")
            }
            (GpuSourceKind::Nvml, _, Some(_)) => Some(
                "--gpu.scenario means nothing to --gpu.source=nvml: leave one out, or choose --gpu.source=simulated",
            ),
            (GpuSourceKind::Simulated, Some(_), _) => Some(
                "--gpu.nvml-library means nothing to --gpu.source=simulated: leave one out, or choose --gpu.source=nvml",
            ),
            _ => None,
        };
        if let Some(contrary) = contrary {
            return Err(SourceError::Usage(contrary.to_owned()));
        }
        if self.gpu == GpuSourceKind::Auto {
            if self.nvml_library.is_some() {
                self.gpu = GpuSourceKind::Nvml;
            } else if self.scenario.is_some() || self.simulated_devices.is_some() {
                self.gpu = GpuSourceKind::Simulated;
            }
        }
        let variable = |name| variable(name).filter(|value| !value.is_empty());
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

    /// The same sources, where a process of its own calls NVML: see [`ReaderSource`].
    #[must_use]
    pub fn in_reader(self) -> Self {
        Self { in_reader: true, ..self }
    }

    /// What this machine is called in snapshots.
    pub fn own_hostname(&self) -> String {
        self.hostname.clone().unwrap_or_else(machine_name)
    }

    /// Whether the devices are simulated: by a scenario, or by the number in `GENV_DEVICES`.
    pub fn are_simulated(&self) -> bool {
        match self.gpu {
            GpuSourceKind::Nvml => false,
            GpuSourceKind::Auto => {
                self.nvml_library.is_none() && (self.scenario.is_some() || self.simulated_devices.is_some())
            }
            GpuSourceKind::Simulated => true,
        }
    }

    /// Opens the sources of every host that the options name: this one, or those of a scenario.
    ///
    /// # Errors
    /// A scenario cannot be read, or the hostname cannot be one.
    pub fn open(&self) -> Result<Vec<HostSources>, SourceError> {
        if self.are_simulated() {
            return self.simulated();
        }
        let library = self.nvml_library.clone();
        let gpu: Box<dyn GpuSource> = match self.in_reader {
            true => Box::new(ReaderSource::new(library)),
            false => Box::new(NvmlSource::new(library)),
        };
        let RealSources { processes, state } = self.real();
        Ok(vec![HostSources { hostname: self.own_hostname(), gpu, processes, state }])
    }

    /// Opens the sources of this host. Of the hosts of a scenario, the host with this hostname is opened, or else the first.
    ///
    /// # Errors
    /// As [`SourceOptions::open`].
    pub fn open_own(&self) -> Result<HostSources, SourceError> {
        let mut hosts = self.open()?;
        let hostname = self.own_hostname();
        let own = hosts.iter().position(|host| host.hostname == hostname);
        Ok(hosts.swap_remove(own.unwrap_or(0)))
    }

    fn simulated(&self) -> Result<Vec<HostSources>, SourceError> {
        let engine = match (&self.scenario, self.simulated_devices) {
            (Some(path), _) => Engine::open(path),
            (None, Some(devices)) => Engine::idle_devices(devices),
            (None, None) => Engine::demo(),
        };
        let engine = engine.map_err(|error| SourceError::Failed(error.to_string()))?;
        let scenario = engine.scenario();
        if scenario.hosts.is_empty() {
            return Err(SourceError::Failed(
                "the scenario has no host, so that there is nothing to tell: add one under hosts".to_owned(),
            ));
        }
        if self.hostname.is_some() && scenario.hosts.iter().all(|host| host.named) {
            return Err(SourceError::Usage(
                "--hostname names a host that the scenario does not name, and this one names all of \
                 its hosts: change their names there, or leave out --hostname"
                    .to_owned(),
            ));
        }
        let hostname = self.hostname.as_deref();
        if scenario.hosts.iter().any(|host| host.named && Some(&*host.name) == hostname) {
            return Err(SourceError::Usage(
                "--hostname is the name of another host of the scenario: take another name, or change it there"
                    .to_owned(),
            ));
        }
        let clock: Clock = Arc::new(SystemTime::now);
        Ok(sources(&Arc::new(engine), &clock, hostname, || self.real()))
    }

    fn real(&self) -> RealSources {
        let directory = self.state_directory.clone();
        RealSources {
            processes: Box::new(ProcReader::new()),
            state: Box::new(StateDirectory::new(directory.unwrap_or_else(|| directory_path(None)))),
        }
    }
}

/// More simulated devices than this are a typing error.
const MAX_SIMULATED_DEVICES: u32 = 1024;

fn parse_simulated_devices(text: &str) -> Result<u32, SourceError> {
    text.parse().ok().filter(|devices| *devices <= MAX_SIMULATED_DEVICES).ok_or_else(|| {
        SourceError::Usage(format!(
            "GENV_DEVICES is '{text}', which is not a number of devices: \
                 set it to a number from 0 to {MAX_SIMULATED_DEVICES}, or unset it"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated() -> SourceOptions {
        SourceOptions { gpu: GpuSourceKind::Simulated, ..SourceOptions::default() }
    }

    fn hostnames(options: &SourceOptions) -> Vec<String> {
        let hosts = options.open().unwrap_or_else(|error| panic!("{error}"));
        hosts.into_iter().map(|host| host.hostname).collect()
    }

    #[test]
    fn the_built_in_lab_is_simulated_when_nothing_else_is_given() {
        assert_eq!(hostnames(&simulated()), ["gpu01", "gpu02"]);
        let hosts = simulated().open();
        let hosts = hosts.unwrap_or_else(|error| panic!("{error}"));
        assert!(hosts.iter().all(|host| host.gpu.is_simulated()));
    }

    #[test]
    fn a_number_of_simulated_devices_is_this_machine() {
        let options =
            SourceOptions { simulated_devices: Some(3), hostname: Some("lab7".to_owned()), ..SourceOptions::default() };
        assert_eq!(hostnames(&options), ["lab7"]);
        let mut hosts = options.open().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(hosts[0].gpu.sample().unwrap().devices.len(), 3);
        let state = hosts[0].state.read();
        assert!(state.is_ok(), "{state:?}");
        let unnamed = SourceOptions { hostname: None, ..options };
        assert_eq!(hostnames(&unnamed), [machine_name()]);
    }

    /// What is chosen with these variables set.
    fn chosen(options: SourceOptions, variables: &[(&str, &str)]) -> SourceOptions {
        let variable = |name: &str| {
            let mut variables = variables.iter();
            variables.find(|(set, _)| *set == name).map(|(_, value)| value.into())
        };
        options.or_from(variable).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn flags_win_over_variables_and_a_named_library_over_a_scenario() {
        let library = ("GENV_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1");
        let (scenario, devices) = (("GENV_SCENARIO", "/nonexistent/lab.yaml"), ("GENV_DEVICES", "2"));
        let asks_nvml = |options: SourceOptions| match options.open() {
            Ok(mut hosts) => hosts[0].gpu.sample().is_err(),
            Err(_) => false,
        };
        let auto = SourceOptions::default;
        assert!(asks_nvml(chosen(auto(), &[library])));
        // The simulated library reads the scenario too.
        assert!(asks_nvml(chosen(auto(), &[library, scenario, devices])));
        assert!(!asks_nvml(chosen(auto(), &[scenario])));
        assert!(!asks_nvml(chosen(auto(), &[devices, ("GENV_NVML_LIBRARY", "")])));
        let scenario_flag = SourceOptions { scenario: Some("/nonexistent/lab.yaml".into()), ..auto() };
        assert!(!asks_nvml(chosen(scenario_flag.clone(), &[library])));
        let both = SourceOptions { nvml_library: Some(library.1.into()), ..scenario_flag };
        let error = both.or_from(|_| None).unwrap_err();
        assert!(matches!(error, SourceError::Usage(_)), "{error}");
    }

    #[test]
    fn a_variable_that_is_no_number_of_devices_is_wrong_usage() {
        for text in ["two", "-1", "1025", "1.5"] {
            let variable = |name: &str| (name == "GENV_DEVICES").then(|| text.into());
            let error = simulated().or_from(variable).unwrap_err();
            assert!(matches!(&error, SourceError::Usage(message) if message.contains(text)), "{error}");
        }
    }

    #[test]
    fn a_scenario_that_cannot_be_used_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab.yaml");
        let open = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let options = SourceOptions {
                scenario: Some(path.clone()),
                hostname: Some("a".to_owned()),
                ..SourceOptions::default()
            };
            options.open().err().unwrap()
        };
        let failed = |error: SourceError, part: &str| {
            assert!(matches!(&error, SourceError::Failed(text) if text.contains(part)), "{error}");
        };
        failed(open("version: 1\nhots: []\n"), "lab.yaml:2:1: unknown field `hots`");
        failed(open("version: 1\n"), "add one under hosts");
        for (hosts, what) in [("[{name: b}]", "names all"), ("[{}, {name: a}]", "another host")] {
            let error = open(&format!("version: 1\nhosts: {hosts}\n"));
            assert!(matches!(&error, SourceError::Usage(text) if text.contains(what)), "{error}");
        }
    }
}
