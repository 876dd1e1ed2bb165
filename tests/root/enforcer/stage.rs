//! Processes of other users, and an executor that may end them.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use genv_core::proc::ProcReader;
use genv_core::state::StateDirectory;
use genv_enforcer::config::{BreakerLimits, Mode, Never};
use genv_enforcer::execute::{EvidenceSources, Executor, ExecutorHost, GpuUse, Policy, ReadGpuUse};
use genv_enforcer::plan::ProcessTarget;
use genv_tests::enforcer;
use serde_json::Value;
use tempfile::TempDir;

/// How the executor's host is called.
const HOSTNAME: &str = "here";

/// A process outside of all environments, as it is now.
pub(crate) fn target(pid: u32) -> Result<ProcessTarget> {
    enforcer::target(HOSTNAME, pid)
}

/// Acts, and is not easily stopped.
pub(crate) fn policy() -> Policy {
    Policy {
        mode: Mode::Enforce,
        never: Never::default(),
        breaker: BreakerLimits { signals_per_minute: 1000, share_of_users: 1.0, at_least_users: 3 },
    }
}

/// The directories of an executor, and who uses GPU 0.
pub(crate) struct Stage {
    folder: TempDir,
    pub(crate) own: PathBuf,
    gpu_use: Arc<Mutex<GpuUse>>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { own: folder.path().join("own"), folder, gpu_use: Arc::default() }
    }

    fn genv(&self) -> PathBuf {
        self.folder.path().join("genv")
    }

    pub(crate) fn uses_gpu(&self, pid: u32) {
        self.gpu_use.lock().unwrap().insert(pid, [0].into());
    }

    pub(crate) fn executor(&self) -> Executor {
        let shared = Arc::clone(&self.gpu_use);
        self.asking(Box::new(move || Ok(shared.lock().unwrap().clone())))
    }

    pub(crate) fn asking(&self, gpu_use: ReadGpuUse) -> Executor {
        let place = ExecutorHost {
            hostname: HOSTNAME.to_owned(),
            genv_directory: self.genv(),
            state_directory: self.own.clone(),
        };
        let evidence = EvidenceSources {
            gpu_use,
            gpu_uuid: Box::new(|_| None),
            processes: Box::new(ProcReader::new()),
            state: Box::new(StateDirectory::new(self.genv())),
        };
        Executor::open(place, policy(), evidence).unwrap()
    }

    /// The results in the audit, in order.
    pub(crate) fn results(&self) -> Vec<String> {
        let text = fs::read_to_string(self.own.join("audit.jsonl")).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["result"].as_str().unwrap().to_owned()).collect()
    }
}
