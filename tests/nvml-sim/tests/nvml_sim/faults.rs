//! What goes wrong with drivers.

use std::time::{Duration, Instant};

use genv_tests::patience::PATIENCE;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;

use crate::driver::{Driver, Scenario, open};

const HEALTHY: &str = "version: 1
hosts:
- environments: []
  devices:
  - {temperature: 40}
  - {temperature: 50}
";

fn with_device_fault(fault: &str) -> String {
    HEALTHY.replace("{temperature: 40}", &format!("{{temperature: 40, faults: [{fault}]}}"))
}

fn with_host_fault(fault: &str) -> String {
    format!("{HEALTHY}  faults: [{fault}]\n")
}

/// Asks until the answer is the wanted one.
fn until(wanted: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !wanted() {
        assert!(Instant::now() < deadline, "the library does not follow the scenario");
        std::thread::yield_now();
    }
}

#[test]
fn a_lost_gpu_answers_nothing_while_others_do_and_comes_back() {
    let driver = Driver::new(HEALTHY);
    let (lost, other) = (driver.gpu(0), driver.gpu(1));
    driver.rewrite(&with_device_fault("{lost: true}"));
    until(|| matches!(lost.temperature(TemperatureSensor::Gpu), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.running_compute_processes(), Err(NvmlError::GpuLost)));
    assert!(matches!(other.temperature(TemperatureSensor::Gpu), Ok(50)));
    assert!(matches!(driver.device_count(), Ok(2)));
    driver.rewrite(HEALTHY);
    until(|| matches!(lost.temperature(TemperatureSensor::Gpu), Ok(40)));
}

#[test]
fn a_call_that_hangs_returns_when_the_fault_goes() {
    let driver = Driver::new(&with_device_fault("{hang: nvmlDeviceGetTemperature}"));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| driver.gpu(0).temperature(TemperatureSensor::Gpu));
        // Neither the device's other calls nor other devices wait for it.
        assert!(driver.gpu(0).power_usage().is_ok());
        assert!(matches!(driver.gpu(1).temperature(TemperatureSensor::Gpu), Ok(50)));
        assert!(!hanging.is_finished());
        driver.rewrite(HEALTHY);
        assert!(matches!(hanging.join(), Ok(Ok(40))));
    });
}

#[test]
fn a_host_that_hangs_holds_each_device_and_the_library_itself() {
    let driver = Driver::new(HEALTHY);
    let fault = "{hang: [nvmlDeviceGetTemperature, nvmlDeviceGetCount_v2]}";
    driver.rewrite(&with_host_fault(fault).replace("{temperature: 50}", "{temperature: 50, pcie_replays: 9}"));
    until(|| matches!(driver.gpu(1).pcie_replay_counter(), Ok(9)));
    std::thread::scope(|scope| {
        let hanging = [0, 1].map(|gpu| {
            let driver = &driver;
            scope.spawn(move || driver.gpu(gpu).temperature(TemperatureSensor::Gpu))
        });
        let counting = scope.spawn(|| driver.device_count());
        assert!(driver.gpu(1).power_usage().is_ok());
        assert!(!counting.is_finished() && hanging.iter().all(|thread| !thread.is_finished()));
        driver.rewrite(HEALTHY);
        assert!(matches!(counting.join(), Ok(Ok(2))));
        assert!(hanging.into_iter().all(|thread| matches!(thread.join(), Ok(Ok(40 | 50)))));
    });
}

#[test]
fn a_driver_that_hangs_from_the_start_holds_initialisation() {
    let scenario = Scenario::new(&with_host_fault("{hang: all}"));
    // The lock within is this thread's; the other needs the files alone.
    std::thread::scope(|scope| {
        let simulation = &scenario.simulation;
        let opening = scope.spawn(|| open(simulation)?.device_count());
        assert!(!opening.is_finished());
        simulation.rewrite(HEALTHY);
        assert!(matches!(opening.join(), Ok(Ok(2))));
    });
}

#[test]
fn initialisation_fails_as_the_scenario_says() {
    for (fault, expected) in [
        ("driver_not_loaded", "DriverNotLoaded"),
        ("no_permission", "NoPermission"),
        ("lib_rm_version_mismatch", "LibRmVersionMismatch"),
    ] {
        let scenario = Scenario::new(&with_host_fault(&format!("{{init: {fault}}}")));
        let error = scenario.open().expect_err("the driver is not there");
        assert_eq!(format!("{error:?}"), expected);
        scenario.simulation.rewrite(HEALTHY);
        assert!(scenario.open().is_ok());
    }
}

#[test]
fn after_a_reload_everything_is_uninitialised_until_it_is_opened_again() {
    let driver = Driver::new(HEALTHY);
    let device = driver.gpu(0);
    assert!(device.uuid().is_ok());
    driver.rewrite(&with_host_fault("{reload: 1}"));
    until(|| matches!(device.uuid(), Err(NvmlError::Uninitialized)));
    assert!(matches!(driver.device_count(), Err(NvmlError::Uninitialized)));
    let again = driver.scenario.open().expect("the reloaded driver initialises");
    assert!(matches!(again.device_count(), Ok(2)));
}

#[test]
fn a_damaged_scenario_leaves_the_last_good_one_in_force() {
    let driver = Driver::new(HEALTHY);
    driver.rewrite("version: [");
    std::thread::sleep(Duration::from_millis(50));
    assert!(matches!(driver.gpu(0).temperature(TemperatureSensor::Gpu), Ok(40)));
    driver.rewrite(&HEALTHY.replace("40", "41"));
    until(|| matches!(driver.gpu(0).temperature(TemperatureSensor::Gpu), Ok(41)));
}

#[test]
fn without_a_usable_scenario_there_is_no_driver() {
    let scenario = Scenario::new("version: 1\nhosts: []\n");
    assert!(matches!(scenario.open(), Err(NvmlError::DriverNotLoaded)));
    scenario.simulation.rewrite("colour: red\n");
    assert!(matches!(scenario.open(), Err(NvmlError::DriverNotLoaded)));
    scenario.simulation.rewrite(HEALTHY);
    assert!(scenario.open().is_ok());
}
