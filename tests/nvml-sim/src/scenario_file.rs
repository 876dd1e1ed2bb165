//! The scenario file that `GENV_SCENARIO` names, and its first host.

use std::env;
use std::path::Path;
use std::sync::Arc;

use genv_simulator::{Engine, Scenario};
use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED;

use crate::abi::Answer;

pub(crate) struct ScenarioFile(Engine);

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
        if engine.scenario().hosts.is_empty() {
            return Err("the scenario has no host; give it one".to_owned());
        }
        Ok(Self(engine))
    }

    /// The scenario, read again if the file changed, while it has a host.
    pub(crate) fn read(&self) -> Answer<Arc<Scenario>> {
        let scenario = self.0.refreshed();
        if scenario.hosts.is_empty() { Err(DRIVER_NOT_LOADED) } else { Ok(scenario) }
    }
}

#[expect(clippy::print_stderr, reason = "a return code says too little, and NVML has no other way to speak")]
fn tell(error: &str) {
    eprintln!("nvml-sim: cannot simulate a driver: {error}");
}
