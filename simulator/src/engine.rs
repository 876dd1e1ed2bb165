//! Scenario files: opened, watched and read again when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use genv_core::hosts::machine_name;
use genv_core::yaml;
use serde::Deserialize;

use super::definition::Scenario;
use super::{check, format};

/// A scenario that follows its file. Shared by everything that plays it; it reads no clock.
#[derive(Debug)]
pub struct Engine {
    /// The file; absent for a built-in scenario.
    path: Option<PathBuf>,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    scenario: Arc<Scenario>,
    stamp: Option<Stamp>,
    error: Option<String>,
}

/// A file that was written less than this ago may be written again without a new time: kernels stamp files
/// with a clock of some milliseconds.
const SETTLED: Duration = Duration::from_millis(50);

/// The properties by which a change of a file shows without a read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// The stamp of a file; absent while it is too young to be trusted.
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(path)?;
        let modified = metadata.modified()?;
        let young = modified.elapsed().is_ok_and(|elapsed| elapsed < SETTLED);
        Ok((!young).then_some(Self { modified, length: metadata.len(), inode: metadata.ino() }))
    }
}

/// A scenario as it is written, for files that have one in them: see [`Engine::within`].
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct WrittenScenario(format::File);

/// Why a scenario cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}: {reason}; name a readable file with --gpu.scenario or GENV_SCENARIO", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// Its text is not a scenario: `FILE:LINE:COLUMN: what`, and the lines around it.
    #[error("{0}")]
    Invalid(yaml::Error),
}

impl Engine {
    /// Opens a scenario file.
    ///
    /// # Errors
    /// It cannot be read, or is not a scenario.
    pub fn open(path: &Path) -> Result<Self, ScenarioError> {
        let (scenario, stamp) = load(path)?;
        Ok(Self::new(Some(path.to_owned()), scenario, stamp))
    }

    /// Takes a scenario that is not in a file. `source_name` stands for it in errors.
    ///
    /// # Errors
    /// The text is not a scenario.
    pub fn from_text(source_name: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario = parse(source_name, text).map_err(ScenarioError::Invalid)?;
        Ok(Self::new(None, scenario, None))
    }

    /// Takes a scenario that stands within another file; `text` is all of that file.
    ///
    /// # Errors
    /// It does not hold together.
    pub fn within(source_name: &str, text: &str, written: &WrittenScenario) -> Result<Self, yaml::Error> {
        let scenario = check::scenario(source_name, text, &machine_name(), &written.0)?;
        Ok(Self::new(None, scenario, None))
    }

    /// The built-in lab of two hosts, for a machine with no GPU and no scenario.
    ///
    /// # Errors
    /// None: its text is fixed, and tested.
    pub fn demo() -> Result<Self, ScenarioError> {
        Self::from_text("demo.yaml", include_str!("demo.yaml"))
    }

    /// This machine with so many identical idle devices; its processes and environments are the real ones.
    pub(crate) fn idle_devices(count: u32) -> Result<Self, ScenarioError> {
        let text = format!("version: 1\nhosts: [{{devices: [{{count: {count}}}]}}]");
        Self::from_text("simulated devices", &text)
    }

    fn new(path: Option<PathBuf>, scenario: Scenario, stamp: Option<Stamp>) -> Self {
        Self { path, loaded: Mutex::new(Loaded { scenario: Arc::new(scenario), stamp, error: None }) }
    }

    /// The scenario as last loaded, without a look at the file.
    pub fn scenario(&self) -> Arc<Scenario> {
        Arc::clone(&self.lock().scenario)
    }

    /// The scenario, read again if its file changed. A file that is now damaged or gone leaves the last good one in
    /// force; the error is logged once, and [`Engine::error`] returns it.
    pub fn refreshed(&self) -> Arc<Scenario> {
        let mut loaded = self.lock();
        if let Some(path) = &self.path {
            loaded.refresh(path);
        }
        Arc::clone(&loaded.scenario)
    }

    /// What is wrong with the file now, while the last good scenario is in force.
    pub fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Loaded> {
        // What is behind the lock is replaced as a whole: a panic elsewhere leaves it whole.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded {
    fn refresh(&mut self, path: &Path) {
        let stamp = Stamp::of(path).ok().flatten();
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        match load(path) {
            Ok((scenario, stamp)) => {
                self.scenario = Arc::new(scenario);
                self.stamp = stamp;
                self.error = None;
            }
            Err(error) => {
                let error = error.to_string();
                if self.error.as_ref() != Some(&error) {
                    tracing::warn!(%error, "the scenario cannot be read again: the last good one stays in force");
                }
                self.stamp = stamp;
                self.error = Some(error);
            }
        }
    }
}

fn load(path: &Path) -> Result<(Scenario, Option<Stamp>), ScenarioError> {
    let unreadable =
        |error: std::io::Error| ScenarioError::Unreadable { path: path.to_owned(), reason: error.to_string() };
    // The stamp is taken before the text, so that a change in between is seen the next time.
    let stamp = Stamp::of(path).map_err(unreadable)?;
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let scenario = parse(&path.display().to_string(), &text).map_err(ScenarioError::Invalid)?;
    Ok((scenario, stamp))
}

fn parse(source_name: &str, text: &str) -> Result<Scenario, yaml::Error> {
    let file = yaml::parse(source_name, text)?;
    check::scenario(source_name, text, &machine_name(), &file)
}
