//! The simulated driver: the scenario file at this moment, and whether the library is in use.
//!
//! Most calls of a real driver take microseconds. So time stands still for [`QUANTUM`], during which the file is not looked at
//! again and every answer is computed once.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use genv_simulator::{DeviceAt, Engine, Host, HostAt, Measured, Scenario, WrongAnswer};
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
};

use crate::abi::Answer;
use crate::device::{Device, Handle};
use crate::events;

const QUANTUM: Duration = Duration::from_millis(5);

/// How often a call that hangs looks whether it still does.
const HANG_POLL: Duration = Duration::from_millis(20);

/// The host at one moment, shared by the calls of that moment.
pub(crate) struct Moment {
    scenario: Arc<Scenario>,
    now: SystemTime,
    measured: Box<[OnceLock<Measured>]>,
}

impl Moment {
    fn new(scenario: Arc<Scenario>) -> Self {
        let devices = scenario.hosts[0].devices.len();
        let measured = std::iter::repeat_with(OnceLock::new).take(devices).collect();
        Self { scenario, now: SystemTime::now(), measured }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.scenario.hosts[0]
    }

    pub(crate) fn at(&self) -> HostAt<'_> {
        self.host().at(self.now)
    }

    /// The values of an existing whole GPU at this moment.
    pub(crate) fn measured(&self, device: DeviceAt<'_>) -> &Measured {
        self.measured[device.device().index as usize].get_or_init(|| device.measured())
    }

    pub(crate) fn time(&self) -> SystemTime {
        self.now
    }

    pub(crate) fn unix_microseconds(&self) -> u64 {
        self.now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
    }
}

struct Driver {
    /// How often it was initialised without being shut down.
    users: u32,
    /// Generation of the driver at the initialisation.
    generation: u64,
    engine: Option<Engine>,
    moment: Option<(Instant, Arc<Moment>)>,
}

static DRIVER: Mutex<Driver> = Mutex::new(Driver { users: 0, generation: 0, engine: None, moment: None });

fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    fn moment(&mut self) -> Answer<Arc<Moment>> {
        if let Some((since, moment)) = &self.moment
            && since.elapsed() < QUANTUM
        {
            return Ok(Arc::clone(moment));
        }
        let scenario = self.engine.as_ref().ok_or(UNINITIALIZED)?.refreshed();
        if scenario.hosts.is_empty() {
            return Err(DRIVER_NOT_LOADED);
        }
        let moment = Arc::new(Moment::new(scenario));
        self.moment = Some((Instant::now(), Arc::clone(&moment)));
        Ok(moment)
    }
}

/// The scenario that `GENV_SCENARIO` names; without a usable one there is no driver, and stderr has the reason.
#[expect(clippy::print_stderr, reason = "a return code says too little, and NVML has no other way to speak")]
fn open() -> Answer<Engine> {
    let path = std::env::var_os("GENV_SCENARIO").unwrap_or_default();
    Engine::open(Path::new(&path)).map_err(|error| {
        eprintln!("nvml-sim: cannot simulate a driver: {error}");
        DRIVER_NOT_LOADED
    })
}

/// Waits until a call returns: `hangs` returns whether it hangs at a moment.
fn present(hangs: impl Fn(&Moment) -> bool) -> Answer<Arc<Moment>> {
    loop {
        let moment = driver().moment()?;
        if !hangs(&moment) {
            return Ok(moment);
        }
        std::thread::sleep(HANG_POLL);
    }
}

pub(crate) fn initialise(call: &str) -> Answer {
    {
        let mut driver = driver();
        if driver.users == 0 {
            driver.engine = Some(open()?);
            driver.moment = None;
        }
    }
    let moment = present(|moment| moment.at().hangs(call))?;
    if let Some(error) = moment.at().init_error() {
        return Err(error.code());
    }
    let generation = moment.at().driver_generation();
    let mut driver = driver();
    if driver.users > 0 && driver.generation != generation {
        driver.users = 0;
        events::forget();
    }
    driver.users += 1;
    driver.generation = generation;
    Ok(())
}

pub(crate) fn shut_down() -> Answer {
    let mut driver = driver();
    driver.users = driver.users.checked_sub(1).ok_or(UNINITIALIZED)?;
    if driver.users == 0 {
        events::forget();
    }
    Ok(())
}

fn check_initialised(moment: &Moment) -> Answer {
    let driver = driver();
    let initialised = driver.users > 0 && driver.generation == moment.at().driver_generation();
    if initialised { Ok(()) } else { Err(UNINITIALIZED) }
}

/// The host, for a call that concerns all of it.
pub(crate) fn host(call: &str) -> Answer<Arc<Moment>> {
    let moment = present(|moment| moment.at().hangs(call))?;
    check_initialised(&moment)?;
    match moment.at().wrong(call) {
        Some(WrongAnswer::Error(error)) => Err(error.code()),
        _ => Ok(moment),
    }
}

/// The device behind a handle, for a call about it.
pub(crate) fn device(call: &str, handle: Handle) -> Answer<Device> {
    let index = handle.index().ok_or(INVALID_ARGUMENT)?;
    let hangs = |moment: &Moment| moment.at().device(index.gpu).is_some_and(|device| device.hangs(call));
    let moment = present(hangs)?;
    check_initialised(&moment)?;
    let device = Device::new(moment, index, call).ok_or(INVALID_ARGUMENT)?;
    if device.gpu().lost() {
        return Err(GPU_IS_LOST);
    }
    match device.wrong() {
        Some(WrongAnswer::Error(error)) => Err(error.code()),
        _ => Ok(device),
    }
}

/// The whole GPU behind a handle, for a call that MIG devices do not support.
pub(crate) fn gpu(call: &str, handle: Handle) -> Answer<Device> {
    let device = device(call, handle)?;
    if device.index().mig.is_some() { Err(NOT_SUPPORTED) } else { Ok(device) }
}
