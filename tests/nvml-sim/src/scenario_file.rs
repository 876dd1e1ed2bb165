//! Which scenario the environment names: `GENV_SCENARIO` the file, `GENV_SCENARIO_HOST` the host in it (the first
//! unless said).

use std::env;
use std::path::Path;
use std::sync::Arc;

use genv_simulator::{Engine, Scenario};
use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED;

use crate::abi::Answer;

/// An opened scenario file.
pub(crate) struct ScenarioFile {
    engine: Engine,
    host: Option<String>,
}

impl ScenarioFile {
    /// Opens the file; without a usable one there is no driver, and stderr has the reason.
    pub(crate) fn open() -> Answer<Self> {
        Self::from_environment().map_err(|error| {
            tell(&error);
            DRIVER_NOT_LOADED
        })
    }

    fn from_environment() -> Result<Self, String> {
        let path = env::var_os("GENV_SCENARIO")
            .ok_or("no scenario was named; set GENV_SCENARIO to the path of a scenario file")?;
        let engine = Engine::open(Path::new(&path)).map_err(|error| error.to_string())?;
        let file = Self { engine, host: env::var("GENV_SCENARIO_HOST").ok() };
        match file.position(&file.engine.scenario()) {
            Some(_) => Ok(file),
            None => Err(match &file.host {
                Some(host) => format!("the scenario has no host {host}; name one that it has with GENV_SCENARIO_HOST"),
                None => "the scenario has no host; give it one".to_owned(),
            }),
        }
    }

    /// The scenario, read again if the file changed, and the position of the host in it.
    pub(crate) fn read(&self) -> Answer<(Arc<Scenario>, usize)> {
        let scenario = self.engine.refreshed();
        let position = self.position(&scenario).ok_or(DRIVER_NOT_LOADED)?;
        Ok((scenario, position))
    }

    fn position(&self, scenario: &Scenario) -> Option<usize> {
        match &self.host {
            None => (!scenario.hosts.is_empty()).then_some(0),
            Some(name) => scenario.hosts.iter().position(|host| &host.name == name),
        }
    }
}

#[expect(clippy::print_stderr, reason = "a return code says too little, and NVML has no other way to speak")]
fn tell(error: &str) {
    eprintln!("nvml-sim: cannot simulate a driver: {error}");
}
