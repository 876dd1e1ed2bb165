//! A driver of three whole GPUs and one that is split, of whose calls one goes wrong: `fixtures/faulty_nvml.c` before the
//! simulated library.

use std::path::{Path, PathBuf};
use std::process::Command;

use genv_core::gpu::reader::{Pace, ReaderSource};
use genv_tests::nvml_sim;
use genv_tests::process::program;

pub(super) const SCENARIO: &str = r#"
version: 1
epoch: 1970-01-01T00:00:00Z
hosts:
  - driver_version: 550.163.01
    devices:
      - count: 3
        name: NVIDIA H100 80GB HBM3
        memory: 80gi
        memory_reserved: 600mi
        utilization: 0.37
        temperature: 61
        power: 412.5
        fans: [0.3, 0.42]
        ecc: {corrected: 7, uncorrected: 1}
      - {name: NVIDIA H100 80GB HBM3, memory: 80gi, mig: [{profile: 3g.40gb, memory: 40gi}]}
    processes:
      - {pid: 4001, devices: [{index: 0, memory: 30gi, utilization: 0.25}, {index: 1, memory: 2gi, utilization: 0.3}]}
      - {pid: 4002, type: graphics, devices: [{index: 2, memory: 1gi, utilization: 0.12}]}
      - {pid: 4003, devices: [{index: 2, memory: 4gi, utilization: 0.25}, {index: "3:0", memory: 5gi}]}
"#;

/// Whole GPUs and MIG devices.
pub(super) const DEVICES: usize = 5;

/// The GPUs for which calls go wrong.
pub(super) const WHOLE: u32 = 2;
const SPLIT: u32 = 3;

/// The calls of each sample.
pub(super) const OF_EACH_SAMPLE: &str = "nvmlDeviceGetUUID nvmlDeviceGetMigMode nvmlDeviceGetUtilizationRates \
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage \
    nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetCurrentClocksThrottleReasons \
    nvmlDeviceGetPcieReplayCounter nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetClockInfo nvmlDeviceGetFanSpeed_v2 \
    nvmlDeviceGetTotalEccErrors nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3 \
    nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetProcessUtilization nvmlDeviceGetMaxMigDeviceCount \
    nvmlDeviceGetMigDeviceHandleByIndex";

/// The calls that a reader makes once for each GPU.
pub(super) const ONCE: &str = "nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetName nvmlDeviceGetMinorNumber \
    nvmlDeviceGetVirtualizationMode nvmlDeviceGetNumFans nvmlDeviceGetTemperatureThreshold nvmlDeviceGetGpuInstanceId \
    nvmlDeviceGetComputeInstanceId nvmlDeviceGetSupportedEventTypes nvmlDeviceRegisterEvents";

const OF_MIG_DEVICES: [&str; 4] = [
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
];

pub(super) fn all_calls() -> impl Iterator<Item = &'static str> {
    OF_EACH_SAMPLE.split(' ').chain(ONCE.split(' '))
}

/// The GPU for which a call is to go wrong.
pub(super) fn gpu_of(call: &str) -> u32 {
    if OF_MIG_DEVICES.contains(&call) { SPLIT } else { WHOLE }
}

pub(super) struct FaultyDriver {
    library: PathBuf,
    /// The file with the fault.
    fault: PathBuf,
}

impl FaultyDriver {
    /// Compiles the library into the folder of the scenario.
    pub(super) fn beside(scenario: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/faulty_nvml.c");
        let library = scenario.with_file_name("faulty.so");
        // Functions that the source lacks are those of the simulated library.
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
            .args([&library, &source, &nvml_sim::library()])
            .arg("-ldl")
            .output()
            .expect("cannot start cc: install the package gcc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let driver = Self { library, fault: scenario.with_file_name("fault") };
        driver.works();
        driver
    }

    /// From now on this call goes wrong for this GPU, and no other call.
    pub(super) fn fails(&self, call: &str, gpu: u32, kind: &str) {
        self.fails_for(call, &[(gpu, kind)]);
    }

    /// As [`FaultyDriver::fails`], for several GPUs.
    pub(super) fn fails_for(&self, call: &str, gpus: &[(u32, &str)]) {
        self.put(&gpus.iter().map(|(gpu, kind)| format!("{call} {gpu} {kind}\n")).collect::<String>());
    }

    /// As [`FaultyDriver::fails`], for a call that has no GPU.
    pub(super) fn fails_as_a_whole(&self, call: &str, kind: &str) {
        self.put(&format!("{call} -1 {kind}\n"));
    }

    pub(super) fn works(&self) {
        self.put("");
    }

    /// Replaces the file at once: no call reads half of it.
    fn put(&self, fault: &str) {
        let next = self.fault.with_extension("next");
        std::fs::write(&next, fault).expect("the temporary folder is writable");
        std::fs::rename(&next, &self.fault).expect("the temporary folder is writable");
    }

    /// A source in a process that `alone` has started.
    pub(super) fn source(&self, pace: Pace) -> ReaderSource {
        let exporter = program("genv-exporter").expect("it is built");
        ReaderSource::with(exporter, Some(self.library.clone()), pace)
    }

    /// The variables of a program that reads GPUs by this driver.
    pub(super) fn variables(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("GENV_NVML_LIBRARY", self.library.clone()),
            ("GENV_TEST_REAL_NVML", nvml_sim::library()),
            ("GENV_TEST_FAULT", self.fault.clone()),
        ]
    }
}
