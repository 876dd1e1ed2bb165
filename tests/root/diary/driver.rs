//! The simulated driver of the machine: a process of the program `train` computes on the devices that its
//! `CUDA_VISIBLE_DEVICES` names, as a CUDA program does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The devices: two models, two devices each.
const DEVICES: &str = "version: 1\nhosts:\n- devices:\n  \
    - {name: NVIDIA A100-SXM4-40GB, memory: 40gi, count: 2}\n  \
    - {name: NVIDIA H100 80GB HBM3, memory: 80gi, count: 2}\n";

/// How often the driver looks for processes.
const POLL: Duration = Duration::from_millis(20);

/// A thread that keeps the scenario up to date; the thread ends with the value.
#[derive(Debug)]
pub(crate) struct Driver {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Writes the scenario, and rewrites it whenever a process of `train` starts or ends.
    pub(crate) fn start(train: &Path, scenario: PathBuf) -> Result<Self> {
        let train = train.canonicalize()?;
        let mut written = described(&train);
        write(&scenario, &written).context("writing the scenario")?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let now = described(&train);
                // The folder may be gone at the end of the test.
                if now != written && write(&scenario, &now).is_ok() {
                    written = now;
                }
                thread::sleep(POLL);
            }
        });
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn write(scenario: &Path, text: &str) -> std::io::Result<()> {
    let new = scenario.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, scenario)
}

/// All processes.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The scenario of this moment.
fn described(train: &Path) -> String {
    let mut pids: Vec<u32> = processes().collect();
    pids.sort_unstable();
    let lines: String = pids.into_iter().filter_map(|pid| line_of(pid, train)).collect();
    if lines.is_empty() {
        return DEVICES.to_owned();
    }
    format!("{DEVICES}  processes:\n{lines}")
}

/// A process of the scenario, if this is a living process of the program.
fn line_of(pid: u32, train: &Path) -> Option<String> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if program != train {
        return None;
    }
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ = String::from_utf8_lossy(&environ).into_owned();
    // Empty while the program is being started.
    let variable = |name: &str| {
        let mut entries = environ.split('\0').filter_map(|entry| entry.split_once('='));
        entries.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    variable("PATH")?;
    let gibibytes: u32 = variable("GIB").map_or(Some(2), |value| value.parse().ok())?;
    // Without the variable CUDA takes the first device.
    let visible = variable("CUDA_VISIBLE_DEVICES").unwrap_or("0");
    let devices: Vec<String> = visible
        .split(',')
        .filter_map(|index| index.parse::<u32>().ok())
        .map(|index| format!("{{index: {index}, memory: {gibibytes}gi, utilization: 0.9}}"))
        .collect();
    if devices.is_empty() {
        return None;
    }
    Some(format!("  - {{pid: {pid}, devices: [{}]}}\n", devices.join(", ")))
}
