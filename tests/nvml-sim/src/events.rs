//! Event sets: XID errors of the scenario, each delivered once to each set that registered for it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use genv_core::model::DeviceIndex;
use genv_simulator::{Measurement, WrongAnswer};
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventTypeXidCriticalError, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
};

use crate::abi::{Answer, Out, calls, numbers, put};
use crate::device::{Handle, NO_INSTANCE};
use crate::driver::{self, Moment};

const XID: u64 = nvmlEventTypeXidCriticalError as u64;

/// How often a waiting call looks for news: seldom, since a real one costs nothing while it waits.
const POLL: Duration = Duration::from_millis(300);

/// The registrations of one set, and its events that were not fetched yet.
struct Set {
    /// Event types by GPU.
    asked: BTreeMap<u32, u64>,
    /// Until when errors were looked for.
    seen_until: SystemTime,
    pending: VecDeque<(u32, u64)>,
}

/// Sets by handle; a handle is never used twice.
struct Sets {
    last: usize,
    open: BTreeMap<usize, Set>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { last: 0, open: BTreeMap::new() });

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets every set, as the end of the library's use does.
pub(crate) fn forget() {
    sets().open.clear();
}

/// The next event of a set, if there is one.
fn next(handle: usize, moment: &Moment) -> Answer<Option<(u32, u64)>> {
    let mut sets = sets();
    let Set { asked, seen_until, pending } = sets.open.get_mut(&handle).ok_or(INVALID_ARGUMENT)?;
    let watched = || asked.keys().filter_map(|gpu| moment.at().device(*gpu));
    if moment.time() > *seen_until {
        for gpu in watched().filter(|gpu| asked[&gpu.device().index] & XID != 0) {
            let events = gpu.xid_events_since(*seen_until);
            pending.extend(events.into_iter().map(|(xid, _)| (gpu.device().index, xid)));
        }
        *seen_until = moment.time();
    }
    if let Some(event) = pending.pop_front() {
        return Ok(Some(event));
    }
    if watched().any(|gpu| gpu.lost()) {
        return Err(GPU_IS_LOST);
    }
    Ok(None)
}

fn wait(set: usize, out: Out<'_, nvmlEventData_t>, timeout_milliseconds: c_uint) -> Answer {
    let call = "nvmlEventSetWait_v2";
    let deadline = Instant::now() + Duration::from_millis(timeout_milliseconds.into());
    loop {
        let moment = driver::host(call)?;
        let garbage = match moment.at().wrong(call) {
            Some(WrongAnswer::Number(number)) => {
                sets().open.get(&set).and_then(|set| Some((*set.asked.keys().next()?, number)))
            }
            _ => None,
        };
        if garbage.is_some() {
            sleep(POLL);
        }
        if let Some((gpu, xid)) = garbage.map_or_else(|| next(set, &moment), |it| Ok(Some(it)))? {
            return put(
                out,
                nvmlEventData_t {
                    device: Handle::of(DeviceIndex::gpu(gpu)).as_nvml(),
                    eventType: XID,
                    eventData: xid,
                    gpuInstanceId: NO_INSTANCE,
                    computeInstanceId: NO_INSTANCE,
                },
            );
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(TIMEOUT);
        }
        sleep(rest.min(POLL));
    }
}

calls! { host:
    fn nvmlEventSetCreate(host, out: Out<'_, usize>) {
        let mut sets = sets();
        sets.last += 1;
        let handle = sets.last;
        sets.open.insert(handle, Set { asked: BTreeMap::new(), seen_until: host.time(), pending: VecDeque::new() });
        put(out, handle)
    }

    fn nvmlEventSetFree(_host, set: usize) {
        sets().open.remove(&set).map(|_| ()).ok_or(INVALID_ARGUMENT)
    }

    fn nvmlEventSetWait(_host, set: usize, out: Out<'_, nvmlEventData_t>, timeout_milliseconds: c_uint)
        also nvmlEventSetWait_v2
    {
        wait(set, out, timeout_milliseconds)
    }
}

numbers! {
    nvmlDeviceGetSupportedEventTypes(device, u64) => if device.supports(Measurement::XidEvents) { XID } else { 0 };
}

calls! { gpu:
    fn nvmlDeviceRegisterEvents(device, types: u64, set: usize) {
        device.require(Measurement::XidEvents)?;
        if types & !XID != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut sets = sets();
        let set = sets.open.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
        *set.asked.entry(device.index().gpu).or_default() |= types;
        Ok(())
    }
}
