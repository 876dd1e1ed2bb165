//! The start of a job: `genv exec --detach` runs itself a second time. The second program enters the environment,
//! starts the command in its own session, and waits for its end.
//!
//! Until the command runs, the second program prints to the terminal of the first, which returns the second program's
//! exit code. Then the second program closes its stdout, which is a pipe, and the first program ends.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow};
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::logout::LogoutSurvival;
use super::{Job, JobProcess, JobRecord, OUTPUT_FILE, RECORD_FILE, new_folder, title};
use crate::ago::now_seconds;
use crate::announce::Announcer;
use crate::child::{exit_code, exit_code_result};
use crate::failure::Failure;
use crate::output::{print, print_note};
use crate::own_environment::EnvironmentView;

/// The output of the second program after the start of the job. A text about the devices and the lease follows.
const STARTED: &[u8] = b"started\n";

/// A job during its start.
#[derive(Debug)]
pub(crate) struct DetachedJob;

impl DetachedJob {
    /// Starts a job with the arguments of this program.
    ///
    /// # Errors
    /// The job cannot be started, and the exit code is that of `genv exec`; or its name could be taken for a number.
    pub(crate) fn start(name: Option<&str>, announcer: Announcer) -> anyhow::Result<()> {
        if let Some(name) = name.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(Failure::Usage(format!(
                "cannot name a job {name}: a number would be the number of a job, as 'genv jobs' shows it. Choose a name with a letter"
            ))
            .into());
        }
        let outlives = LogoutSurvival::here()?;
        let (number, folder) = new_folder()?;
        let started = Self::run(outlives, &folder, name, number, announcer);
        if started.is_err() {
            // The folder holds nothing but leftovers of the failed start.
            let _ = fs::remove_dir_all(&folder);
        }
        started
    }

    fn run(
        outlives: LogoutSurvival,
        folder: &Path,
        name: Option<&str>,
        number: u32,
        announcer: Announcer,
    ) -> anyhow::Result<()> {
        let program = env::current_exe().context("cannot start a job")?;
        let mut child = outlives
            .command(&program)
            .args(job_words(env::args_os().skip(1), folder))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a job: genv cannot start itself")?;
        let mut answer = Vec::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_end(&mut answer).context("cannot start a job")?;
        }
        let Some(given) = answer.strip_prefix(STARTED) else {
            let status = child.wait().context("cannot start a job")?;
            exit_code_result(exit_code(status))?;
            return Err(anyhow!("cannot start a job: genv ended before it started. Try again"));
        };
        let (title, output) = (title(number, name), folder.join(OUTPUT_FILE));
        announcer.announce(&format!(
            "job {title} runs {}. It continues after logout, and prints to {}: 'genv logs --follow {number}' shows the output",
            String::from_utf8_lossy(given),
            output.display()
        ));
        Ok(print(format!("{number}\n").as_bytes())?)
    }
}

/// The arguments of `genv exec` for the second program: the first `--detach` becomes `--job=FOLDER`.
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

/// The job in the second program.
#[derive(Clone, Debug)]
pub(crate) struct JobStart {
    folder: PathBuf,
    name: Option<String>,
    command: Vec<OsString>,
}

impl JobStart {
    pub(crate) fn new(folder: PathBuf, name: Option<String>, command: Vec<OsString>) -> Self {
        Self { folder, name, command }
    }

    /// Leaves the terminal, and redirects the command's output to the job's file.
    pub(crate) fn prepare(&self, command: &mut Command) -> anyhow::Result<()> {
        let path = self.folder.join(OUTPUT_FILE);
        let output = File::create(&path);
        let output = output.with_context(|| format!("cannot make {}: see whether its disk is full", path.display()))?;
        // This fails only for the leader of a session, which needs no new session.
        let _ = setsid();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(())
    }

    /// Records that the command runs, with these devices in words. From now on this program prints to the job's file.
    pub(crate) fn runs(&self, pid: u32, shown: &EnvironmentView, given: &str) -> anyhow::Result<Job> {
        let waiting = JobProcess::of(std::process::id()).context("cannot find this process in /proc")?;
        let number = self.folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        let directory = env::current_dir().unwrap_or_default();
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let job = Job {
            folder: self.folder.clone(),
            record: JobRecord {
                number: number.context("the folder of the job has no number")?,
                name: self.name.clone(),
                command: self.command.iter().map(text).collect(),
                directory: directory.to_string_lossy().into_owned(),
                eid: shown.eid().to_owned(),
                devices: shown.devices.clone(),
                started_timestamp_seconds: now_seconds(),
                // The command may have ended already. Its end is recorded too.
                running: JobProcess::of(pid).unwrap_or_else(|| waiting.clone()),
                waiting,
                ended_timestamp_seconds: None,
                exit_code: None,
            },
        };
        job.write()?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&[STARTED, given.as_bytes()].concat())?;
        stdout.flush()?;
        drop(stdout);
        let output = File::options().append(true).open(job.output())?;
        dup2_stdin(File::open("/dev/null")?)?;
        dup2_stdout(&output)?;
        dup2_stderr(&output)?;
        Ok(job)
    }
}

impl Job {
    /// Records the end of the job.
    pub(crate) fn ended(mut self, exit_code: u8) {
        self.record.ended_timestamp_seconds = Some(now_seconds());
        self.record.exit_code = Some(exit_code);
        if let Err(error) = self.write() {
            print_note(&error.to_string());
        }
    }

    /// Writes the record. A crash leaves the old record or the new one.
    fn write(&self) -> anyhow::Result<()> {
        let path = self.folder.join(RECORD_FILE);
        let new = self.folder.join("job.json.new");
        let content = serde_json::to_vec_pretty(&self.record)?;
        let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}: see whether its disk is full", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_detach_alone_is_replaced() {
        let words = ["exec", "--detach", "--gpus", "1", "--", "docker", "--detach"];
        let words = job_words(words.into_iter().map(Into::into), Path::new("/jobs/3"));
        let expected = ["exec", "--job=/jobs/3", "--gpus", "1", "--", "docker", "--detach"];
        assert_eq!(words, expected);
    }
}
