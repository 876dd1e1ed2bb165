//! Jobs: commands that `genv exec --detach` started and that continue after logout.
//!
//! Each job has its own folder in `~/.local/state/genv/jobs/HOSTNAME/` (XDG_STATE_HOME), with its output and its
//! record. The `genv exec` that waits for the command writes the record. A number is not reused while its folder
//! exists.

mod logout;
mod start;

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use genv_core::proc::{ProcReader, ProcessRequest, ProcessSource as _};
use genv_core::state::ProcessId;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

pub(crate) use start::{DetachedJob, JobStart};

use crate::ago::now_seconds;
use crate::output::print_note;

/// The next start of a job removes the folder of a job that ended this long ago.
const KEPT_SECONDS: f64 = 30.0 * 86_400.0;

const RECORD_FILE: &str = "job.json";
const OUTPUT_FILE: &str = "output";

/// The identity of a process, also after a restart of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobProcess {
    #[serde(flatten)]
    pub(crate) id: ProcessId,
    boot_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) number: u32,
    pub(crate) name: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) directory: String,
    pub(crate) eid: String,
    pub(crate) devices: Vec<u32>,
    pub(crate) started_timestamp_seconds: f64,
    /// The `genv exec` that waits for the command.
    waiting: JobProcess,
    /// The command.
    running: JobProcess,
    pub(crate) ended_timestamp_seconds: Option<f64>,
    /// 128+n if signal n ended the command.
    pub(crate) exit_code: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Running,
    Ended(u8),
    /// The job ended without a witness: the machine was restarted, or `genv exec` was killed.
    Lost,
}

/// A job of this user on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    folder: PathBuf,
    pub(crate) record: JobRecord,
}

impl JobProcess {
    /// The process with this pid; none if it has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let start_time_ticks = start_of(pid)?;
        let id = ProcessId { pid, start_time_ticks };
        Some(Self { id, boot_id: boot_id() })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.boot_id == boot_id() && start_of(self.id.pid) == Some(self.id.start_time_ticks)
    }

    /// Opens a living process. A signal through the result reaches no other process.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let pid = i32::try_from(self.id.pid).ok().and_then(Pid::from_raw)?;
        let opened = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The pid may have changed its process before the open.
        self.is_alive().then_some(opened)
    }
}

/// The start of a living process; a zombie does not count.
fn start_of(pid: u32) -> Option<u64> {
    let table = ProcReader::new().read(&ProcessRequest { members: vec![pid], ..ProcessRequest::default() });
    Some(table.living(pid)?.start_time_ticks)
}

fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.unwrap_or_default().trim().to_owned()
}

impl Job {
    /// Reads a job. None: the folder has no record, as after a failed start.
    fn read(folder: PathBuf) -> anyhow::Result<Option<Self>> {
        let path = folder.join(RECORD_FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot_read(&path, &error)),
        };
        let record = serde_json::from_slice(&content).map_err(|error| cannot_read(&path, &error))?;
        Ok(Some(Self { folder, record }))
    }

    /// Reads the job again.
    pub(crate) fn again(&self) -> anyhow::Result<Self> {
        let read = Self::read(self.folder.clone())?;
        read.with_context(|| no_job(Some(&self.record.number.to_string())))
    }

    pub(crate) fn state(&self) -> JobState {
        match self.record.exit_code {
            Some(code) => JobState::Ended(code),
            None if self.record.running.is_alive() || self.record.waiting.is_alive() => JobState::Running,
            // The end may have been recorded after this record was read.
            None => match Self::read(self.folder.clone()) {
                Ok(Some(Self { record: JobRecord { exit_code: Some(code), .. }, .. })) => JobState::Ended(code),
                _ => JobState::Lost,
            },
        }
    }

    /// The file of its output.
    pub(crate) fn output(&self) -> PathBuf {
        self.folder.join(OUTPUT_FILE)
    }

    /// The processes to signal, in order: the one that hands signals on to its command, then the command. The first
    /// living one gets the signal.
    pub(crate) fn processes(&self) -> [&JobProcess; 2] {
        [&self.record.waiting, &self.record.running]
    }

    /// Number and name, for messages.
    pub(crate) fn title(&self) -> String {
        title(self.record.number, self.record.name.as_deref())
    }
}

fn title(number: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{number} ({})", name.escape_debug()),
        None => number.to_string(),
    }
}

fn cannot_read(path: &Path, why: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot read {}: {why}: remove its folder if you do not need the job any more", path.display())
}

/// The user's jobs on this machine, the oldest first. A job whose record cannot be read is left out, and named on stderr.
pub(crate) fn all() -> anyhow::Result<Vec<Job>> {
    let (jobs, damaged) = read_all()?;
    for error in damaged {
        print_note(&error.to_string());
    }
    Ok(jobs)
}

/// The user's jobs on this machine, the oldest first, and why others cannot be read.
fn read_all() -> anyhow::Result<(Vec<Job>, Vec<anyhow::Error>)> {
    let folder = folder()?;
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        Err(error) => bail!("cannot read {}: {error}", folder.display()),
    };
    let (mut jobs, mut damaged) = (Vec::new(), Vec::new());
    for entry in entries.flatten() {
        match Job::read(entry.path()) {
            Ok(job) => jobs.extend(job),
            Err(error) => damaged.push(error),
        }
    }
    jobs.sort_by_key(|job| job.record.number);
    Ok((jobs, damaged))
}

/// The job with this number, or else the newest job with this name; without an argument, the newest job.
pub(crate) fn find(named: Option<&str>) -> anyhow::Result<Job> {
    matching(named)?.pop().with_context(|| no_job(named))
}

/// As [`find`], but of several jobs with this name the newest that runs, if one runs.
pub(crate) fn find_running(named: &str) -> anyhow::Result<Job> {
    let mut jobs = matching(Some(named))?;
    let running = jobs.iter().rposition(|job| job.state() == JobState::Running);
    let matching = match running {
        Some(position) => Some(jobs.swap_remove(position)),
        None => jobs.pop(),
    };
    matching.with_context(|| no_job(Some(named)))
}

/// The job with this number, or else the jobs with this name, the oldest first; without an argument, all.
fn matching(named: Option<&str>) -> anyhow::Result<Vec<Job>> {
    let mut jobs = all()?;
    let Some(named) = named else {
        return Ok(jobs);
    };
    let has_number = |job: &Job| job.record.number.to_string() == named;
    if jobs.iter().any(has_number) {
        jobs.retain(has_number);
    } else {
        jobs.retain(|job| job.record.name.as_deref() == Some(named));
    }
    Ok(jobs)
}

fn no_job(named: Option<&str>) -> String {
    match named {
        Some(named) => format!("there is no job {}: 'genv jobs' lists yours", named.escape_debug()),
        None => "there is no job: 'genv exec --detach -- COMMAND' starts one".to_owned(),
    }
}

/// The folder of this machine's jobs: other machines may share the home directory.
fn folder() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let state = state.context("cannot find the folder of jobs: HOME is not set. Set it to your home directory")?;
    let hostname = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
    Ok(state.join("genv/jobs").join(hostname))
}

fn new_folder() -> anyhow::Result<(u32, PathBuf)> {
    let parent = folder()?;
    let make = |path: &Path, parents: bool| DirBuilder::new().mode(0o700).recursive(parents).create(path);
    let cannot = |path: &Path, error: io::Error| anyhow!("cannot make {}: {error}: see whose it is", path.display());
    make(&parent, true).map_err(|error| cannot(&parent, error))?;
    remove_old();
    let numbers = fs::read_dir(&parent)?.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut number = numbers.max().unwrap_or(0) + 1;
    loop {
        let path = parent.join(number.to_string());
        match make(&path, false) {
            Ok(()) => return Ok((number, path)),
            // Another start took the number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(cannot(&path, error)),
        }
    }
}

/// Removes jobs that ended long ago.
fn remove_old() {
    let before = now_seconds() - KEPT_SECONDS;
    for job in read_all().unwrap_or_default().0 {
        if job.record.ended_timestamp_seconds.is_some_and(|ended| ended < before) {
            // A later start tries again.
            let _ = fs::remove_dir_all(&job.folder);
        }
    }
}
