//! XID errors as events.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, EventSet};

use crate::driver::{Driver, scenario_milliseconds};

/// Two GPUs; on each an XID error `milliseconds` after the epoch.
fn scenario(milliseconds: u128) -> String {
    format!(
        "version: 1
hosts:
- environments: []
  devices:
  - {{xid: [{{xid: 79, at: {milliseconds}ms}}]}}
  - {{xid: [{{xid: 31, at: {milliseconds}ms}}]}}
"
    )
}

fn xid(event: &EventData<'_>) -> Option<u64> {
    match event.event_data {
        Some(XidError::Value(xid)) => Some(xid),
        _ => None,
    }
}

fn watch<'nvml>(device: &Device<'nvml>, set: EventSet<'nvml>) -> Result<EventSet<'nvml>, NvmlError> {
    device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)
}

/// Longer than any wait in these tests takes.
const LONG: u32 = 60_000;

#[test]
fn an_error_on_a_watched_gpu_is_delivered_once() -> Result<(), NvmlError> {
    let driver = Driver::new(&scenario(1));
    let device = driver.gpu(0);
    assert_eq!(device.supported_event_types()?, EventTypes::CRITICAL_XID_ERROR);
    let set = watch(&device, driver.create_event_set()?)?;
    // The error of long ago is none since the set was made.
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));

    driver.rewrite(&scenario(scenario_milliseconds() + 200));
    let event = set.wait(LONG)?;
    assert_eq!(xid(&event), Some(79));
    assert_eq!(event.event_type, EventTypes::CRITICAL_XID_ERROR);
    assert_eq!(event.device.index()?, 0);
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));
    Ok(())
}

#[test]
fn each_set_gets_each_error() -> Result<(), NvmlError> {
    let driver = Driver::new(&scenario(1));
    let (first, second) = (driver.gpu(0), driver.gpu(1));
    let one = watch(&first, driver.create_event_set()?)?;
    let both = watch(&second, watch(&first, driver.create_event_set()?)?)?;
    driver.rewrite(&scenario(scenario_milliseconds() + 200));
    let mut seen = [xid(&both.wait(LONG)?), xid(&both.wait(LONG)?)];
    seen.sort_unstable();
    assert_eq!(seen, [Some(31), Some(79)]);
    assert_eq!(xid(&one.wait(LONG)?), Some(79));
    assert!(matches!(one.wait(50), Err(NvmlError::Timeout)));
    Ok(())
}

#[test]
fn events_that_the_driver_does_not_have_cannot_be_asked_for() -> Result<(), NvmlError> {
    let driver = Driver::new(&scenario(1));
    let set = driver.create_event_set()?;
    let refused = driver.gpu(0).register_events(EventTypes::PSTATE_CHANGE, set);
    assert!(matches!(refused, Err(error) if matches!(error.error, NvmlError::NotSupported)));
    Ok(())
}

#[test]
fn waiting_for_a_lost_gpu_fails() -> Result<(), NvmlError> {
    let driver = Driver::new(&scenario(1));
    let set = watch(&driver.gpu(0), driver.create_event_set()?)?;
    driver.rewrite(&scenario(1).replacen("{xid:", "{faults: [{lost: true}], xid:", 1));
    assert!(matches!(set.wait(LONG), Err(NvmlError::GpuLost)));
    Ok(())
}
