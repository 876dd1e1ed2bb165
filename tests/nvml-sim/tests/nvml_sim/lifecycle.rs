//! Beginning and end of the library's use, and callers that make mistakes.

use std::ffi::{CStr, c_char, c_uint};
use std::ptr;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlMemory_v2_t};

use crate::driver::{Driver, Scenario, handle};

const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const INSUFFICIENT_SIZE: u32 = 7;
const FUNCTION_NOT_FOUND: u32 = 13;

const TWO: &str = "version: 1\nhosts: [{environments: [], devices: [{count: 2}]}]\n";

/// The library as it is loaded, before anyone initialises it.
fn load(scenario: &Scenario) -> NvmlLib {
    let library = scenario.simulation.library();
    // SAFETY: loading the simulated library runs no code that others must not see.
    unsafe { NvmlLib::new(library) }.expect("the simulated library loads")
}

fn count(library: &NvmlLib) -> Result<u32, u32> {
    let mut count = 0;
    // SAFETY: the call writes one number.
    match unsafe { library.nvmlDeviceGetCount_v2(&raw mut count) } {
        0 => Ok(count),
        error => Err(error),
    }
}

#[test]
fn nothing_is_answered_before_the_first_and_after_the_last_use() {
    let scenario = Scenario::new(TWO);
    let library = load(&scenario);
    assert_eq!(count(&library), Err(UNINITIALIZED));
    // SAFETY: initialising and shutting down has no condition.
    unsafe {
        assert_eq!(library.nvmlShutdown(), UNINITIALIZED);
        assert_eq!(library.nvmlInit_v2(), 0);
        assert_eq!(library.nvmlInitWithFlags(0), 0);
        assert_eq!(count(&library), Ok(2));
        assert_eq!(library.nvmlShutdown(), 0);
        assert_eq!(count(&library), Ok(2));
        assert_eq!(library.nvmlShutdown(), 0);
        assert_eq!(count(&library), Err(UNINITIALIZED));
        assert_eq!(library.nvmlShutdown(), UNINITIALIZED);
    }
}

#[test]
fn a_host_of_several_is_chosen_by_name() {
    let scenario = Scenario::new(
        "version: 1
hosts:
- {name: gpu01, environments: [], devices: [{count: 2}]}
- {name: gpu02, environments: [], devices: [{count: 3}]}
",
    );
    for (name, expected) in [(None, Some(2)), (Some("gpu02"), Some(3)), (Some("gpu03"), None)] {
        match name {
            // SAFETY: only tests that hold the scenario's lock read or write this process's environment.
            Some(name) => unsafe { std::env::set_var("GENV_SCENARIO_HOST", name) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var("GENV_SCENARIO_HOST") },
        }
        let devices = scenario.open().ok().and_then(|nvml| nvml.device_count().ok());
        assert_eq!(devices, expected, "{name:?}");
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("GENV_SCENARIO_HOST") };
}

#[test]
fn what_is_no_device_is_refused() {
    let driver = Driver::new(TWO);
    let library = driver.lib();
    let mut index = 0;
    let real = handle(&driver.gpu(1));
    for wrong in
        [ptr::null_mut(), ptr::without_provenance_mut(1), real.wrapping_byte_add(1), real.wrapping_byte_add(1 << 16)]
    {
        // SAFETY: a handle is a number to the library; the call writes one number.
        let code = unsafe { library.nvmlDeviceGetIndex(wrong, &raw mut index) };
        assert_eq!(code, INVALID_ARGUMENT, "{wrong:?}");
    }
    // SAFETY: as above.
    let code = unsafe { library.nvmlDeviceGetIndex(real, &raw mut index) };
    assert_eq!((code, index), (0, 1));
}

#[test]
fn missing_outputs_short_buffers_and_unknown_versions_are_refused() {
    let driver = Driver::new(TWO);
    let library = driver.lib();
    let device = handle(&driver.gpu(0));
    let mut short: [c_char; 4] = [1; 4];
    let mut memory = nvmlMemory_v2_t { version: 1, total: 0, reserved: 0, free: 0, used: 0 };
    // SAFETY: every pointer is null or points to memory of the declared type and length.
    unsafe {
        assert_eq!(library.nvmlDeviceGetCount_v2(ptr::null_mut()), INVALID_ARGUMENT);
        assert_eq!(library.nvmlDeviceGetName(device, ptr::null_mut(), 96), INVALID_ARGUMENT);
        assert_eq!(library.nvmlDeviceGetName(device, short.as_mut_ptr(), short.len() as c_uint), INSUFFICIENT_SIZE);
        assert_eq!(library.nvmlDeviceGetHandleByUUID(ptr::null(), ptr::null_mut()), INVALID_ARGUMENT);
        assert_eq!(library.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), FUNCTION_NOT_FOUND);
        assert_eq!(
            library.nvmlDeviceGetProcessUtilization(device, ptr::null_mut(), ptr::null_mut(), 0),
            INVALID_ARGUMENT
        );
    }
    assert_eq!(short, [1; 4]);
}

#[test]
fn every_code_has_a_text() {
    let driver = Driver::new(TWO);
    let text = |code| {
        // SAFETY: the call returns a text that lives as long as the library.
        unsafe { CStr::from_ptr(driver.lib().nvmlErrorString(code)) }.to_str().expect("the text is ASCII").to_owned()
    };
    assert_eq!(text(0), "Success");
    assert_eq!(text(15), "GPU is lost");
    assert_eq!(text(12345), "Unknown Error");
}

#[test]
fn the_undocumented_table_is_given_to_who_knows_its_id() {
    type GetTable = unsafe extern "C" fn(*mut *const usize, *const [u8; 16]) -> u32;
    const ID: [u8; 16] = 0xc4fe_3e6c_c98f_6c4e_a327_ee69_6e12_f7c4_u128.to_be_bytes();
    const NOT_SUPPORTED: u32 = 3;
    let driver = Driver::new(TWO);
    let library = driver.scenario.simulation.library();
    // SAFETY: loading the simulated library, which is loaded already, runs no code.
    let library = unsafe { libloading::os::unix::Library::new(library) }.expect("the simulated library loads");
    // SAFETY: the function has this type.
    let get = unsafe { library.get::<GetTable>(b"nvmlInternalGetExportTable") }.expect("the library has the call");
    let mut table = ptr::null();
    // SAFETY: the pointers are valid or null; word 0 of a table that is given can be read.
    unsafe {
        assert_eq!(get(&raw mut table, &[0; 16]), NOT_SUPPORTED);
        assert_eq!(get(&raw mut table, ptr::null()), INVALID_ARGUMENT);
        assert!(table.is_null());
        assert_eq!(get(&raw mut table, &ID), 0);
        assert!(*table > 648, "the size in bytes is {}", *table);
    }
}
