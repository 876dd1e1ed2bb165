//! Passes a request to `genv-enforcer carry-out` on this host.

use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::text::{harmless, shortened};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use serde_json::Value;

use crate::protocol::LONGEST_LINE_BYTES;

/// The number of bytes of stderr that are read.
const MAX_STDERR_BYTES: u64 = 16 << 10;

/// An error quotes at most this many characters of stderr.
const MAX_QUOTED_CHARACTERS: usize = 300;

/// The remedy in most errors.
const TRY_IT: &str = "see whether 'genv-enforcer carry-out' works on this host";

/// Runs `genv-enforcer carry-out` with these intents on stdin, and returns the outcomes from its stdout.
///
/// # Errors
/// The program cannot be started, fails, prints invalid JSON, or takes longer than the timeout; a late program is killed.
pub(super) fn run_enforcer(enforcer: &Path, intents: &Value, timeout: Duration) -> Result<Value, String> {
    run(enforcer, intents, timeout)
        .and_then(|outcomes| {
            serde_json::from_slice(&outcomes)
                .map_err(|error| format!("the output of genv-enforcer is not JSON: {error}: {TRY_IT}"))
        })
        .map_err(|why| format!("cannot execute the requested steps: {why}"))
}

fn run(enforcer: &Path, intents: &Value, timeout: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + timeout;
    let intents = serde_json::to_vec(intents).map_err(|error| format!("{error}: send intents that are JSON"))?;
    let mut command = Command::new(enforcer);
    command.arg("carry-out").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| format!("{} cannot be started: {error}: {TRY_IT}", enforcer.display()))?;
    let pipes = ChildPipes::start(&mut child, intents);
    let stdout = pipes.as_ref().ok().and_then(|pipes| pipes.stdout.wait(deadline));
    let stdout = stdout.filter(|_| ends_by(&child, deadline));
    // Kills a late program. On a program that has ended this has no effect.
    let _ = child.kill();
    let status = child.wait();
    let pipes = pipes.map_err(|error| format!("{error}: {TRY_IT}"))?;
    let Some(stdout) = stdout else {
        let seconds = timeout.as_secs();
        return Err(format!(
            "genv-enforcer was not done within {seconds} s, and was killed: its audit log shows what it did"
        ));
    };
    // This is checked before the exit status: SIGPIPE can have ended the program after the last byte that is read here.
    if stdout.len() > LONGEST_LINE_BYTES {
        return Err(format!("the output of genv-enforcer is too long: {TRY_IT}"));
    }
    let status = status.map_err(|error| format!("{error}: {TRY_IT}"))?;
    if !status.success() {
        let stderr = pipes.stderr.wait(deadline).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        let last = stderr.lines().rfind(|line| !line.trim().is_empty());
        let reason = last.map_or_else(
            || "it printed no reason".to_owned(),
            |line| shortened(&harmless(line.trim()), MAX_QUOTED_CHARACTERS),
        );
        return Err(format!("genv-enforcer ended with {status}: {reason}: {TRY_IT}"));
    }
    Ok(stdout)
}

fn ends_by(child: &Child, deadline: Instant) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref()).is_ok_and(|ready| ready > 0)
}

/// The pipes of the child. Each has a thread, so that none of them blocks another.
struct ChildPipes {
    stdout: PipeContent,
    stderr: PipeContent,
}

impl ChildPipes {
    fn start(child: &mut Child, intents: Vec<u8>) -> io::Result<Self> {
        let stdin = child.stdin.take();
        thread::Builder::new().name("intents".to_owned()).spawn(move || {
            // The exit status is the reason why a program does not read its stdin.
            let _ = stdin.map(|mut stdin| stdin.write_all(&intents));
        })?;
        Ok(Self {
            stdout: PipeContent::read("stdout", child.stdout.take(), LONGEST_LINE_BYTES as u64 + 1)?,
            stderr: PipeContent::read("stderr", child.stderr.take(), MAX_STDERR_BYTES)?,
        })
    }
}

/// The first bytes of a pipe.
struct PipeContent(Receiver<Vec<u8>>);

impl PipeContent {
    fn read(name: &str, pipe: Option<impl Read + Send + 'static>, max_bytes: u64) -> io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut content = Vec::new();
            if let Some(pipe) = pipe {
                // Bytes before a read error count.
                let _ = pipe.take(max_bytes).read_to_end(&mut content);
            }
            // After the deadline there is no receiver.
            let _ = sender.send(content);
        })?;
        Ok(Self(receiver))
    }

    /// The content, if the pipe has ended before the deadline.
    fn wait(&self, deadline: Instant) -> Option<Vec<u8>> {
        self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A program in place of genv-enforcer. A child writes the file: a file that this process has open for writing cannot be
    /// executed.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("genv-enforcer");
        let mut sh = Command::new("sh");
        sh.args(["-c", r##"printf "#!/bin/sh\n%s\n" "$1" >"$2" && chmod 755 "$2""##]);
        let status = sh.arg("sh").arg(script).arg(&path).status().unwrap();
        assert!(status.success());
        path
    }

    fn outcome(script: &str, timeout: Duration) -> Result<Value, String> {
        let folder = tempfile::tempdir().unwrap();
        let intents = json!([{"pid": 7}]);
        run_enforcer(&stand_in(folder.path(), script), &intents, timeout)
    }

    #[test]
    fn intents_go_to_stdin_and_outcomes_come_from_stdout() {
        assert_eq!(
            outcome(r#"printf '{"asked":"%s","of":' "$1"; cat; echo }"#, LONG),
            Ok(json!({"asked": "carry-out", "of": [{"pid": 7}]}))
        );
        // The program does not read its stdin.
        assert_eq!(outcome("exec 0<&-; echo '[]'", LONG), Ok(json!([])));
    }

    #[test]
    fn each_failure_has_its_reason() {
        for (script, expected) in [
            (
                "echo first >&2; printf 'genv-enforcer: no\\033[2J rights\\n\\n' >&2; exit 3",
                "exit status: 3: genv-enforcer: no\\u{1b}[2J rights: see whether",
            ),
            ("kill -9 $$", "signal: 9"),
            ("exit 1", "it printed no reason"),
            ("echo '{\"a\":'", "is not JSON"),
            ("exec head -c 17000000 /dev/zero", "too long"),
        ] {
            let error = outcome(script, LONG).unwrap_err();
            assert!(error.contains(expected), "{script}: {error}");
            assert!(error.starts_with("cannot execute the requested steps: "));
        }
        let missing = run_enforcer(Path::new("/nonexistent/genv-enforcer"), &json!([]), LONG);
        assert!(missing.unwrap_err().contains("cannot be started: No such file"));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let short = Duration::from_millis(300);
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000"] {
            let error = outcome(script, short).unwrap_err();
            assert!(error.contains("not done within"), "{error}");
        }
    }
}
