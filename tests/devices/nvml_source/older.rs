//! Libraries of older drivers, which lack functions and have other layouts.

use std::path::{Path, PathBuf};
use std::process::Command;

use genv_core::gpu::nvml::NvmlSource;
use genv_core::gpu::{GpuProcess, GpuSource as _};
use genv_core::model::{DeviceMeasurements, DeviceMemory, ProcessType};

/// Compiles `fixtures/older_nvml.c`, whose process lists are of the kind `entry`.
fn older_library(folder: &Path, entry: u8) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/older_nvml.c");
    let library = folder.join(format!("older{entry}.so"));
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(format!("-DENTRY={entry}"))
        .arg(source)
        .output()
        .expect("cannot start cc: install the package gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

#[test]
fn libraries_of_older_drivers_tell_what_they_know() {
    let folder = tempfile::tempdir().unwrap();
    for entry in [1, 2, 3] {
        let mut source = NvmlSource::new(Some(older_library(folder.path(), entry)));
        let sample = source.sample().unwrap();
        let [device] = &sample.devices[..] else {
            panic!("{sample:?}");
        };
        assert_eq!(device.uuid, "GPU-older");
        let memory = DeviceMemory {
            total_bytes: 16_384 << 20,
            used_bytes: 1_000 << 20,
            free_bytes: 15_384 << 20,
            reserved_bytes: None,
        };
        let told = DeviceMeasurements { memory: Some(memory), ..DeviceMeasurements::default() };
        assert_eq!(device.measurements, told);
        let processes: Vec<_> = (0..300)
            .map(|i| GpuProcess {
                pid: 1_000 + i,
                process_type: ProcessType::Compute,
                memory_used_bytes: (i > 0).then_some(u64::from(i) << 20),
                utilization_ratio: None,
            })
            .collect();
        assert_eq!(device.processes.as_deref(), Some(&processes[..]), "entries of kind {entry}");
    }
}
