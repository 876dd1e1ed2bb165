//! Where a test takes place: a scenario that the simulated library plays, in a process of the test's own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use genv_core::gpu::nvml::NvmlSource;
use genv_core::gpu::{GpuError, GpuSample, GpuSource as _};
use genv_tests::nvml_sim::{self, Simulation};
use genv_tests::patience::until;

/// Long enough for whatever is awaited on a busy machine.
pub(crate) const PATIENCE: Duration = genv_tests::patience::PATIENCE;

/// Set in the process that a test runs in.
const INSIDE: &str = "GENV_TEST_NVML_SOURCE";

/// Runs `body` in a process of its own whose simulated library plays `scenario`.
pub(crate) fn alone<F: FnOnce(&Stage)>(scenario: &str, body: F) {
    if std::env::var_os(INSIDE).is_some() {
        let scenario = std::env::var_os("GENV_SCENARIO").expect("set below");
        return body(&Stage(PathBuf::from(scenario)));
    }
    let simulation = Simulation::new(scenario);
    // The type of a closure is named after the function that holds it.
    let (_, test) = std::any::type_name::<F>()
        .strip_suffix("::{{closure}}")
        .and_then(|function| function.split_once("::"))
        .expect("a closure in a function of this crate");
    let output = simulation
        .command(&std::env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        // For `fixtures/faulty_nvml.c`, of a test that has it stand before the simulated library.
        .env("GENV_TEST_REAL_NVML", nvml_sim::library())
        .env("GENV_TEST_FAULT", simulation.scenario().with_file_name("fault"))
        .output()
        .expect("this program can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test}, in a process of its own: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) struct Stage(pub(crate) PathBuf);

impl Stage {
    /// Replaces the scenario; the simulated driver looks at its file every few milliseconds.
    pub(crate) fn rewrite(&self, scenario: &str) {
        let next = self.0.with_extension("next");
        std::fs::write(&next, scenario).expect("the temporary folder is writable");
        std::fs::rename(&next, &self.0).expect("the temporary folder is writable");
    }
}

pub(crate) fn source() -> NvmlSource {
    NvmlSource::new(Some(nvml_sim::library()))
}

/// Samples until the answer is as wanted: the simulated driver looks at its file every few milliseconds.
#[track_caller]
pub(crate) fn eventually<T: std::fmt::Debug>(
    source: &mut NvmlSource,
    wanted: impl Fn(&Result<GpuSample, GpuError>) -> Option<T>,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let sample = source.sample();
        if let Some(found) = wanted(&sample) {
            return found;
        }
        assert!(Instant::now() < end, "in vain, at last: {sample:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until this process has so many threads: one that was waited for is still listed for a moment.
#[track_caller]
pub(crate) fn until_threads(expected: usize) {
    let what = format!("there are {expected} threads");
    until(&what, || Ok(count("task") == expected)).expect("each is waited for");
}

/// Three GPUs that answer every question, with values that do not change; `first` adds keys to GPU 0, and
/// `host` to the host.
pub(crate) fn scenario(first: &str, host: &str) -> String {
    format!(
        r#"
version: 1
epoch: 1970-01-01T00:00:00Z
users: {{alice: 1000, bob: 1001}}
hosts:
  - name: here
    driver_version: 550.163.01
    {host}
    devices:
      - name: NVIDIA H100 80GB HBM3
        uuid: GPU-00000000-0000-0000-0000-000000000001
        minor: 4
        memory: 80gi
        memory_reserved: 600mi
        utilization: 0.37
        memory_controller: 0.21
        encoder: 0.05
        decoder: 0.11
        temperature: 61
        temperature_limits: {{shutdown: 95, slowdown: 90, memory_max: 105, gpu_max: 87}}
        power: 412.5
        power_limit: 700
        clocks: {{graphics: 1980, sm: 1975, memory: 2619, video: 1545}}
        fans: [0.3, 0.42]
        throttled: [sw_power_cap, hw_thermal_slowdown]
        ecc: {{corrected: 7, uncorrected: 1}}
        pcie_replays: 3
        {first}
      - name: NVIDIA RTX A4000
        uuid: GPU-00000000-0000-0000-0000-000000000002
        memory: 16gi
      - name: NVIDIA H100 80GB HBM3
        uuid: GPU-00000000-0000-0000-0000-000000000003
        memory: 80gi
        mig:
          - {{profile: 3g.40gb, memory: 40gi, uuid: MIG-00000000-0000-0000-0000-000000000031}}
          - {{profile: 1g.10gb, memory: 10gi, uuid: MIG-00000000-0000-0000-0000-000000000032}}
    processes:
      - {{pid: 4001, user: alice, comm: train, devices: [{{index: 0, memory: 30gi, utilization: 0.25}}, {{index: 1, memory: 2gi, utilization: 0}}]}}
      - {{pid: 4002, user: bob, comm: Xorg, type: graphics, devices: [{{index: 0, memory: 100mi, utilization: 0.01}}]}}
      - {{pid: 4003, user: bob, comm: blender, type: compute_and_graphics, devices: [{{index: 1, memory: 4gi, utilization: 0.6}}]}}
      - {{pid: 4004, user: alice, comm: serve, devices: [{{index: "2:1", memory: 5gi, utilization: 0.5}}]}}
"#
    )
}

/// XID errors of GPU 0, each so many milliseconds from now; scenario time is Unix time.
pub(crate) fn xids(errors: &[(u64, u64)], faults: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
    let entries: Vec<_> =
        errors.iter().map(|(xid, after)| format!("{{xid: {xid}, at: {}ms}}", now.as_millis() as u64 + after)).collect();
    format!("xid: [{}]\n        {faults}", entries.join(", "))
}

/// Entries of a folder of this process in `/proc`.
pub(crate) fn count(folder: &str) -> usize {
    std::fs::read_dir(Path::new("/proc/self").join(folder)).expect("/proc is mounted").count()
}

/// Whether the simulated library is part of this process.
pub(crate) fn is_loaded() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    maps.contains("libnvml_sim")
}
