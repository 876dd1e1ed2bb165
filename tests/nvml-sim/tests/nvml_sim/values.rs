//! What a scenario says is what NVML answers.

use std::time::SystemTime;

use genv_simulator::{Measurement, ThrottleReason, percent};
use genv_tests::nvml_sim::name_of;
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PerformanceState, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlMemory_t;

use crate::driver::{Driver, engine, handle};

/// Nothing here changes but energy.
const STEADY: &str = "version: 1
users: {alice: 1001}
hosts:
- name: gpu01
  driver_version: 570.86.10
  cuda_version: \"12.8\"
  environments: []
  devices:
  - name: NVIDIA A100-SXM4-40GB
    uuid: GPU-12345678-1234-1234-1234-123456780000
    minor: 3
    pci_bus_id: 00000000:0F:00.0
    memory: 40gi
    memory_reserved: 600mi
    memory_controller: 0.21
    encoder: 0.12
    decoder: 0.34
    temperature: {idle: 30, max: 79}
    temperature_limits: {shutdown: 96, slowdown: 93, memory_max: 94, gpu_max: 85}
    power: {idle: 55.5, max: 400}
    power_limit: 350.25
    clocks: {graphics: 1410, sm: 1400, memory: 1215, video: 1275}
    fans: [0.31, 0.62]
    throttled: [sw_power_cap, hw_thermal_slowdown]
    ecc: {corrected: 3, uncorrected: 1}
    pcie_replays: 7
  processes:
  - {pid: 77, user: alice, comm: train.py, devices: [{index: 0, memory: 3gi, utilization: 0.37}]}
";

#[test]
fn the_host_tells_its_versions_and_devices() -> Result<(), NvmlError> {
    let driver = Driver::new(STEADY);
    assert_eq!(driver.sys_driver_version()?, "570.86.10");
    assert_eq!(driver.sys_nvml_version()?, "12.570.86.10");
    assert_eq!(driver.sys_cuda_driver_version()?, 12080);
    assert_eq!(driver.device_count()?, 1);
    assert_eq!(driver.sys_process_name(77, 64)?, "train.py");
    assert!(matches!(driver.device_by_index(1), Err(NvmlError::InvalidArg)));
    Ok(())
}

#[test]
fn a_process_that_the_scenario_does_not_describe_is_named_by_the_machine() -> Result<(), NvmlError> {
    let driver = Driver::new(STEADY);
    let name = driver.sys_process_name(std::process::id(), 4096)?;
    assert!(name.contains("nvml_sim"), "{name}");
    assert!(matches!(driver.sys_process_name(u32::MAX, 64), Err(NvmlError::NotFound)));
    Ok(())
}

#[test]
fn a_device_is_found_by_each_of_its_names() -> Result<(), NvmlError> {
    let driver = Driver::new(STEADY);
    let uuid = "GPU-12345678-1234-1234-1234-123456780000";
    for device in [
        driver.device_by_index(0)?,
        driver.device_by_uuid(uuid)?,
        driver.device_by_pci_bus_id("00000000:0F:00.0")?,
        driver.device_by_pci_bus_id("0000:0f:00.0")?,
    ] {
        assert_eq!(device.uuid()?, uuid);
        assert_eq!(device.index()?, 0);
        assert_eq!(device.minor_number()?, 3);
        assert_eq!(device.name()?, "NVIDIA A100-SXM4-40GB");
        let pci = device.pci_info()?;
        assert_eq!((pci.bus_id.as_str(), pci.domain, pci.bus, pci.device), ("00000000:0F:00.0", 0, 15, 0));
    }
    assert!(matches!(driver.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    assert!(matches!(driver.device_by_pci_bus_id("00000000:10:00.0"), Err(NvmlError::NotFound)));
    assert!(matches!(driver.device_by_pci_bus_id("elsewhere"), Err(NvmlError::InvalidArg)));
    Ok(())
}

#[test]
fn every_value_of_a_device_is_the_engines() -> Result<(), NvmlError> {
    let driver = Driver::new(STEADY);
    let scenario = engine(STEADY).scenario();
    let host = scenario.hosts[0].at(SystemTime::now());
    let expected = host.device(0).expect("the scenario has a device");
    let facts = expected.device();
    let expected = expected.measured();
    let device = driver.gpu(0);

    let utilization = device.utilization_rates()?;
    assert_eq!(utilization.gpu, percent(expected.utilization_ratio));
    assert_eq!((utilization.gpu, utilization.memory), (37, 21));
    assert_eq!(device.encoder_utilization()?.utilization, 12);
    assert_eq!(device.decoder_utilization()?.utilization, 34);

    let memory = device.memory_info()?;
    let expected_memory = expected.memory;
    assert_eq!(
        (memory.total, memory.used, memory.free, Some(memory.reserved)),
        (
            expected_memory.total_bytes,
            expected_memory.used_bytes,
            expected_memory.free_bytes,
            expected_memory.reserved_bytes
        )
    );
    assert_eq!((memory.used, memory.reserved), (3 << 30, 600 << 20));

    let celsius = device.temperature(TemperatureSensor::Gpu)?;
    assert_eq!(celsius, expected.temperature_celsius as u32);
    for (threshold, limit) in [
        (TemperatureThreshold::Shutdown, 96),
        (TemperatureThreshold::Slowdown, 93),
        (TemperatureThreshold::MemoryMax, 94),
        (TemperatureThreshold::GpuMax, 85),
    ] {
        assert_eq!(device.temperature_threshold(threshold)?, limit);
    }

    assert_eq!(u64::from(device.power_usage()?), expected.power_milliwatts);
    assert_eq!(device.enforced_power_limit()?, 350_250);

    for (clock, megahertz) in [(Clock::Graphics, 1410), (Clock::SM, 1400), (Clock::Memory, 1215), (Clock::Video, 1275)]
    {
        assert_eq!(device.clock_info(clock)?, megahertz);
    }

    assert_eq!(device.num_fans()?, 2);
    assert_eq!((device.fan_speed(0)?, device.fan_speed(1)?), (31, 62));
    assert!(matches!(device.fan_speed(2), Err(NvmlError::InvalidArg)));

    assert_eq!(device.current_throttle_reasons()?.bits(), expected.throttle_reasons);
    assert_eq!(
        device.current_throttle_reasons()?,
        ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN
    );
    let known = ThrottleReason::ALL.iter().fold(0, |bits, reason| bits | reason.bit());
    assert_eq!(device.supported_throttle_reasons()?.bits() & known, known);

    assert_eq!(Some(ecc(&device)?), facts.ecc_errors);
    assert_eq!(ecc(&device)?, (3, 1));
    assert!(device.is_ecc_enabled()?.currently_enabled);
    assert_eq!(device.pcie_replay_counter()?, facts.pcie_replays);
    assert_eq!(device.performance_state()?, PerformanceState::Zero);
    Ok(())
}

fn ecc(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    Ok((
        device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile)?,
        device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)?,
    ))
}

#[test]
fn energy_rises_with_the_engines_clock() -> Result<(), NvmlError> {
    let driver = Driver::new(STEADY);
    let scenario = engine(STEADY).scenario();
    let engine_millijoules = |time| {
        let host = scenario.hosts[0].at(time);
        host.device(0).expect("the scenario has a device").measured().energy_millijoules
    };
    // The library's clock stands still for some milliseconds at a time.
    let before = engine_millijoules(SystemTime::now() - std::time::Duration::from_millis(100));
    let told = driver.gpu(0).total_energy_consumption()?;
    let after = engine_millijoules(SystemTime::now());
    assert!((before..=after).contains(&told), "{before} {told} {after}");
    Ok(())
}

/// `nvmlDeviceGetMemoryInfo`, which the wrapper does not have.
fn older_memory(device: &Device<'_>) -> Result<nvmlMemory_t, u32> {
    let lib = device.nvml().lib();
    let call = lib.nvmlDeviceGetMemoryInfo.as_ref().expect("the library has the call");
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the call writes to the struct, whose type it has.
    match unsafe { call(handle(device), &raw mut memory) } {
        0 => Ok(memory),
        error => Err(error),
    }
}

#[test]
fn the_older_memory_call_counts_what_the_driver_holds_as_used() -> Result<(), u32> {
    let driver = Driver::new(STEADY);
    let memory = older_memory(&driver.gpu(0))?;
    assert_eq!((memory.total, memory.used), (40 << 30, (3 << 30) + (600 << 20)));
    assert_eq!(memory.free, memory.total - memory.used);
    Ok(())
}

/// Whether the device answers what `measurement` is about.
fn answers(device: &Device<'_>, measurement: Measurement) -> bool {
    use Measurement as M;
    let answer = match measurement {
        M::Name => device.name().map(drop),
        M::Minor => device.minor_number().map(drop),
        M::Utilization => device.utilization_rates().map(drop),
        M::Encoder => device.encoder_utilization().map(drop),
        M::Decoder => device.decoder_utilization().map(drop),
        M::Memory => return older_memory(device).is_ok(),
        M::MemoryReserved => device.memory_info().map(drop),
        M::Temperature => device.temperature(TemperatureSensor::Gpu).map(drop),
        M::TemperatureLimits => device.temperature_threshold(TemperatureThreshold::GpuMax).map(drop),
        M::Power => device.power_usage().map(drop),
        M::PowerLimit => device.enforced_power_limit().map(drop),
        M::Energy => device.total_energy_consumption().map(drop),
        M::Clocks => device.clock_info(Clock::SM).map(drop),
        M::Fans => device.fan_speed(0).map(drop),
        M::Throttled => device.current_throttle_reasons().map(drop),
        M::Ecc => ecc(device).map(drop),
        M::PcieReplays => device.pcie_replay_counter().map(drop),
        M::Processes => device.running_compute_processes().map(drop),
        M::ProcessMemory => {
            use nvml_wrapper::enums::device::UsedGpuMemory;
            let processes = device.running_compute_processes().unwrap_or_default();
            return processes.iter().any(|process| matches!(process.used_gpu_memory, UsedGpuMemory::Used(_)));
        }
        M::ProcessUtilization => device.process_utilization_stats(0).map(drop),
        M::XidEvents => device
            .supported_event_types()
            .and_then(|types| if types.is_empty() { Err(NvmlError::NotSupported) } else { Ok(()) }),
    };
    match answer {
        Ok(()) => true,
        Err(NvmlError::NotSupported | NvmlError::FunctionNotFound) => false,
        Err(error) => panic!("{measurement:?}: {error}"),
    }
}

#[test]
fn each_refusal_concerns_its_own_calls_alone() {
    for refused in Measurement::ALL {
        let name = name_of(refused);
        let fault = format!("    pcie_replays: 7\n    faults: [{{not_supported: [{name}]}}]\n");
        let scenario = STEADY.replace("    pcie_replays: 7\n", &fault);
        let driver = Driver::new(&scenario);
        let engine = engine(&scenario).scenario();
        let host = engine.hosts[0].at(SystemTime::now());
        let expected = host.device(0).expect("the scenario has a device");
        for measurement in Measurement::ALL {
            let told = answers(&driver.gpu(0), measurement);
            // Without processes there is nothing whose memory or utilization could be told.
            let hidden = refused == Measurement::Processes
                && matches!(measurement, Measurement::ProcessMemory | Measurement::ProcessUtilization);
            let supported = expected.supports(measurement, false) && !hidden;
            assert_eq!(told, supported, "{measurement:?} while {name} is refused");
        }
    }
}
