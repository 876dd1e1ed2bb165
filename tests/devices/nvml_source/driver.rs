//! The driver and its library: missing, failing, reloaded, let go of.

use std::path::PathBuf;

use genv_core::gpu::nvml::NvmlSource;
use genv_core::gpu::{GpuError, GpuSource as _};

use crate::nvml_source::stage::{alone, count, eventually, is_loaded, scenario, source, until_threads};

#[test]
fn a_missing_or_wrong_library_is_named() {
    let error = |library: &str| {
        let mut source = NvmlSource::new(Some(PathBuf::from(library)));
        let error = source.sample().unwrap_err();
        assert!(matches!(error, GpuError::LibraryNotLoaded { .. }), "{error:?}");
        error.to_string()
    };
    let missing = error("/nonexistent/libnvidia-ml.so.1");
    assert!(missing.starts_with("cannot load the NVML library /nonexistent/libnvidia-ml.so.1: "));
    assert!(missing.contains("No such file or directory"), "{missing}");
    assert!(missing.ends_with("or name the library with GENV_NVML_LIBRARY"), "{missing}");
    let wrong = error("libc.so.6");
    assert!(wrong.contains("libc.so.6: it is not an NVML library"), "{wrong}");
}

#[test]
fn every_failure_to_initialize_is_told_and_survived() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        for error in [
            "uninitialized",
            "driver_not_loaded",
            "no_permission",
            "lib_rm_version_mismatch",
            "library_not_found",
            "insufficient_power",
            "irq_issue",
            "operating_system",
            "memory",
            "unknown",
        ] {
            // Another generation, so that what is open now fails.
            stage.rewrite(&scenario("", &format!("faults: [{{init: {error}}}, {{reload: 1}}]")));
            let reason = eventually(&mut source, |sample| match sample {
                Err(GpuError::Driver { call: "nvmlInit_v2", reason }) => Some(reason.clone()),
                Err(GpuError::Driver { .. }) | Ok(_) => None,
                Err(other) => panic!("{other}"),
            });
            assert!(reason.contains("; "), "says what to do: {reason}");
            stage.rewrite(&scenario("", ""));
            let devices = eventually(&mut source, |sample| Some(sample.as_ref().ok()?.devices.len()));
            assert_eq!(devices, 5);
        }
    });
}

#[test]
fn a_reloaded_driver_is_read_again_by_itself() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        source.sample().unwrap();
        for generation in 1..=3 {
            // Most drivers are loaded anew because they were updated.
            let version = format!("550.163.1{generation}");
            let reloaded = scenario("", &format!("faults: [{{reload: {generation}}}]"));
            stage.rewrite(&reloaded.replace("550.163.01", &version));
            let error = eventually(&mut source, |sample| sample.as_ref().err().cloned());
            assert!(matches!(error, GpuError::Driver { .. }), "{error:?}");
            for _ in 0..2 {
                let sample = source.sample().unwrap();
                assert_eq!(sample.devices.len(), 5);
                assert_eq!(sample.driver_version.as_ref(), Some(&version));
            }
        }
    });
}

#[test]
fn a_driver_that_is_gone_is_let_go_of_while_the_source_lives() {
    alone(&scenario("", ""), |stage| {
        let before = (count("fd"), count("task"));
        let mut source = source();
        source.sample().unwrap();
        stage.rewrite(&scenario("", "faults: [{init: driver_not_loaded}, {reload: 1}]"));
        let mut source = std::thread::spawn(move || {
            eventually(&mut source, |it| it.is_err().then_some(()));
            source
        })
        .join()
        .unwrap();
        until_threads(before.1);
        assert_eq!(count("fd"), before.0);
        assert!(source.sample().is_err());
    });
}

#[test]
fn nothing_is_left_behind_by_a_source_that_is_dropped() {
    alone(&scenario("", ""), |_| {
        let before = (count("fd"), count("task"));
        for _ in 0..5 {
            let mut source = source();
            // Asked by a thread that ends, since a library written in Rust stays for as long as a thread
            // that called it.
            let source = std::thread::spawn(move || {
                source.sample().unwrap();
                source.sample().unwrap();
                source
            });
            let source = source.join().unwrap();
            assert!(is_loaded());
            // One waits for XID errors.
            until_threads(before.1 + 1);
            drop(source);
            until_threads(before.1);
            assert_eq!(count("fd"), before.0);
            assert!(!is_loaded());
        }
    });
}
