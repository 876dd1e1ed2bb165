//! The simulated `libnvidia-ml.so`, and the scenario files that it answers from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::patience::DRIVER_PATIENCE;
use crate::tools::build_folder;

/// The simulated library. It is a dependency of this package, so cargo has built it before any test runs.
pub fn library() -> PathBuf {
    let library = build_folder().join("deps/libnvml_sim.so");
    assert!(
        library.exists(),
        "cannot find the simulated NVML library: there is no {}. Run 'cargo build -p genv-tests'",
        library.display()
    );
    library
}

/// A scenario file, and a folder with a simulated `libnvidia-ml.so.1`; both vanish with it.
#[derive(Debug)]
pub struct Simulation {
    folder: TempDir,
}

impl Simulation {
    pub fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let libraries = folder.path().join("lib");
        fs::create_dir(&libraries).expect("the temporary folder is writable");
        let simulation = Self { folder };
        std::os::unix::fs::symlink(library(), simulation.library()).expect("the temporary folder is writable");
        simulation.rewrite(scenario);
        simulation
    }

    /// Replaces the scenario at once, as an editor that writes a new file and renames it: nobody reads half of it.
    pub fn rewrite(&self, scenario: &str) {
        let next = self.folder.path().join("next.yaml");
        fs::write(&next, scenario).expect("the temporary folder is writable");
        fs::rename(&next, self.scenario()).expect("the temporary folder is writable");
    }

    pub fn scenario(&self) -> PathBuf {
        self.folder.path().join("scenario.yaml")
    }

    /// Folder with the simulated `libnvidia-ml.so.1`, for `LD_LIBRARY_PATH`.
    pub fn library_folder(&self) -> PathBuf {
        self.folder.path().join("lib")
    }

    pub fn library(&self) -> PathBuf {
        self.library_folder().join("libnvidia-ml.so.1")
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.library_folder())
            .env("GENV_SCENARIO", self.scenario())
            .envs([DRIVER_PATIENCE]);
        command
    }
}

/// A scenario of a host with two devices, of which processes use the first one.
pub fn used_by(pids: &[u32]) -> String {
    let uses = on_device_0(pids);
    format!("version: 1\nhosts:\n- devices: [{{}}, {{}}]\n  processes: [{uses}]\n")
}

/// Processes as the list `processes` of a scenario's host has them, each with 1 GiB of device 0.
pub fn on_device_0(pids: &[u32]) -> String {
    let uses = pids.iter().map(|pid| format!("{{pid: {pid}, devices: [{{index: 0, memory: 1gi}}]}}"));
    uses.collect::<Vec<_>>().join(", ")
}
