//! A simulated driver, loaded into this process.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use genv_simulator::Engine;
use genv_tests::nvml_sim::Simulation;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlDevice_t;

/// A process has one library, which reads its environment: one simulation at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A scenario that the simulated library answers from while this lives.
pub(crate) struct Scenario {
    pub(crate) simulation: Simulation,
    _alone: MutexGuard<'static, ()>,
}

impl Scenario {
    pub(crate) fn new(text: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let simulation = Simulation::new(text);
        // SAFETY: only tests that hold the lock above read or write this process's environment.
        unsafe { std::env::set_var("GENV_SCENARIO", simulation.scenario()) };
        Self { simulation, _alone: alone }
    }

    /// Loads and initialises the library.
    pub(crate) fn open(&self) -> Result<Nvml, NvmlError> {
        open(&self.simulation)
    }
}

/// Loads and initialises the library of a simulation.
pub(crate) fn open(simulation: &Simulation) -> Result<Nvml, NvmlError> {
    let library = simulation.library();
    Nvml::builder().lib_path(library.as_os_str()).init()
}

/// An initialised library.
pub(crate) struct Driver {
    nvml: Nvml,
    pub(crate) scenario: Scenario,
}

impl Deref for Driver {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        &self.nvml
    }
}

impl Driver {
    pub(crate) fn new(text: &str) -> Self {
        let scenario = Scenario::new(text);
        let nvml = scenario.open().expect("the simulated library initialises");
        Self { nvml, scenario }
    }

    /// The GPU with this index.
    pub(crate) fn gpu(&self, index: u32) -> Device<'_> {
        self.device_by_index(index).expect("the GPU is there")
    }

    pub(crate) fn rewrite(&self, text: &str) {
        self.scenario.simulation.rewrite(text);
    }
}

/// A device's handle, for calls that the wrapper does not have.
pub(crate) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the callers use the handle only while the library that gave it is loaded.
    unsafe { device.handle() }
}

/// A number from a function that has a device and an output, or NVML's error.
pub(crate) fn number<T: Default>(
    call: unsafe extern "C" fn(nvmlDevice_t, *mut T) -> u32,
    device: &Device<'_>,
) -> Result<T, u32> {
    let mut value = T::default();
    // SAFETY: the function is NVML's and writes one value.
    match unsafe { call(handle(device), &raw mut value) } {
        0 => Ok(value),
        error => Err(error),
    }
}

/// The engine on the same scenario.
pub(crate) fn engine(text: &str) -> Engine {
    Engine::from_text("test", text).expect("the scenario is valid")
}

/// Milliseconds since the epoch of scenarios that give none.
pub(crate) fn scenario_milliseconds() -> u128 {
    const EPOCH_SECONDS: u128 = 1_767_225_600;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    now.as_millis() - EPOCH_SECONDS * 1000
}
