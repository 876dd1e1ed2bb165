//! Starting a job: `genv exec --detach` runs itself once more, which enters the environment, starts the command in a session
//! of its own, and waits for its end.
//!
//! Until the command runs, that program works in the place of the first: it prints to the same terminal, and its exit code
//! is handed on. Then it closes the pipe that it has as its stdout, and the first program ends.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow};
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::logout::Outlives;
use super::{Job, OUTPUT_FILE, Process, RECORD_FILE, Record, new_folder, title};
use crate::ago::now_seconds;
use crate::child::{exit_code, handed_on};
use crate::machine::tell;
use crate::output::print;
use crate::own_environment::Shown;

/// What the second program prints where it has started the job.
const STARTED: &[u8] = b"started\n";

/// A job that is being started.
#[derive(Debug)]
pub(crate) struct Detached;

impl Detached {
    /// Starts a job with the words of this program.
    ///
    /// # Errors
    /// It cannot be started; the exit code is that of `genv exec`.
    pub(crate) fn start(name: Option<&str>) -> anyhow::Result<()> {
        let outlives = Outlives::here()?;
        let (number, folder) = new_folder()?;
        let started = Self::run(outlives, &folder, name, number);
        if started.is_err() {
            // Nothing is in it but what the failure left.
            let _ = fs::remove_dir_all(&folder);
        }
        started
    }

    fn run(
        outlives: Outlives,
        folder: &Path,
        name: Option<&str>,
        number: u32,
    ) -> anyhow::Result<()> {
        let program = env::current_exe().context("cannot start a job")?;
        let mut child = outlives
            .command(&program)
            .args(job_words(env::args_os().skip(1), folder))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a job: cannot run genv once more")?;
        let mut said = Vec::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout
                .read_to_end(&mut said)
                .context("cannot start a job")?;
        }
        if said != STARTED {
            let status = child.wait().context("cannot start a job")?;
            handed_on(exit_code(status))?;
            return Err(anyhow!(
                "cannot start a job: genv ended before it started. Try again"
            ));
        }
        if io::stderr().is_terminal() {
            let (title, output) = (title(number, name), folder.join(OUTPUT_FILE));
            tell(&format!(
                "job {title} runs, and goes on after logout. It prints to {}: 'genv logs --follow {number}' shows it",
                output.display()
            ));
        }
        Ok(print(format!("{number}\n").as_bytes())?)
    }
}

/// The words of `genv exec` for the second program: the first `--detach` becomes `--job=FOLDER`.
fn job_words(words: impl Iterator<Item = OsString>, folder: &Path) -> Vec<OsString> {
    let mut job = OsString::from("--job=");
    job.push(folder);
    let mut job = Some(job);
    words
        .map(|word| match word == OsStr::new("--detach") {
            true => job.take().unwrap_or(word),
            false => word,
        })
        .collect()
}

/// What the second program knows of its job.
#[derive(Clone, Debug)]
pub(crate) struct Starting {
    folder: PathBuf,
    name: Option<String>,
    command: Vec<OsString>,
}

impl Starting {
    pub(crate) fn new(folder: PathBuf, name: Option<String>, command: Vec<OsString>) -> Self {
        Self {
            folder,
            name,
            command,
        }
    }

    /// Leaves the terminal, and has the command print to the job's file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn prepare(&self, command: &mut Command) -> anyhow::Result<()> {
        let path = self.folder.join(OUTPUT_FILE);
        let output = File::create(&path);
        let output = output.with_context(|| {
            format!(
                "cannot make {}: see whether its disk is full",
                path.display()
            )
        })?;
        // It fails only for the leader of a session, which needs no other.
        let _ = setsid();
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        Ok(())
    }

    /// Writes that the command runs. From now on this program prints to the job's file.
    ///
    /// # Errors
    /// It cannot be written, or the command has ended already and was not seen.
    pub(crate) fn runs(&self, pid: u32, shown: &Shown) -> anyhow::Result<Job> {
        let waiting =
            Process::of(std::process::id()).context("cannot find this process in /proc")?;
        let number = self
            .folder
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let directory = env::current_dir().unwrap_or_default();
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let job = Job {
            folder: self.folder.clone(),
            record: Record {
                number: number.context("the folder of the job has no number")?,
                name: self.name.clone(),
                command: self.command.iter().map(text).collect(),
                directory: directory.to_string_lossy().into_owned(),
                eid: shown.eid().to_owned(),
                devices: shown.devices.clone(),
                started_timestamp_seconds: now_seconds(),
                // One that has ended is waited for all the same.
                running: Process::of(pid).unwrap_or_else(|| waiting.clone()),
                waiting,
                ended_timestamp_seconds: None,
                exit_code: None,
            },
        };
        job.write()?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(STARTED).and_then(|()| stdout.flush())?;
        drop(stdout);
        let output = File::options().append(true).open(job.output())?;
        dup2_stdin(File::open("/dev/null")?)?;
        dup2_stdout(&output)?;
        dup2_stderr(&output)?;
        Ok(job)
    }
}

impl Job {
    /// Writes how it ended.
    pub(crate) fn ended(mut self, exit_code: u8) {
        self.record.ended_timestamp_seconds = Some(now_seconds());
        self.record.exit_code = Some(exit_code);
        if let Err(error) = self.write() {
            tell(&error.to_string());
        }
    }

    /// Writes the record: the old one or the new one is there, whatever happens.
    fn write(&self) -> anyhow::Result<()> {
        let path = self.folder.join(RECORD_FILE);
        let new = self.folder.join("job.json.new");
        let content = serde_json::to_vec_pretty(&self.record)?;
        let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| {
            format!(
                "cannot write {}: see whether its disk is full",
                path.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_detach_alone_is_replaced() {
        let words = [
            "exec", "--detach", "--gpus", "1", "--", "docker", "--detach",
        ];
        let words = job_words(words.into_iter().map(Into::into), Path::new("/jobs/3"));
        let expected = [
            "exec",
            "--job=/jobs/3",
            "--gpus",
            "1",
            "--",
            "docker",
            "--detach",
        ];
        assert_eq!(words, expected);
    }
}
