//! What an enforcer elsewhere decided, handed to the enforcer of this machine.

use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::text::{harmless, shortened};
use genv_remote::protocol::LONGEST_LINE_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use serde_json::Value;

/// How much of what a program complains about is read, and then told.
const MOST_COMPLAINT_BYTES: u64 = 16 << 10;
const MOST_COMPLAINT_CHARACTERS: usize = 300;

/// Runs `genv-enforcer carry-out` with these intents on its stdin, and returns the outcomes from its stdout.
///
/// # Errors
/// It cannot be run, fails, says something else than JSON, or is not done by then; it is ended in that case. The text
/// tells what failed, why, and what to do.
pub(crate) fn carry_out(enforcer: &Path, intents: &Value, patience: Duration) -> Result<Value, String> {
    let deadline = Instant::now() + patience;
    let failed = |why: &str, remedy: &str| format!("cannot carry out what the enforcer decided: {why}: {remedy}");
    let intents =
        serde_json::to_vec(intents).map_err(|error| failed(&error.to_string(), "send intents that are JSON"))?;
    let mut command = Command::new(enforcer);
    command.arg("carry-out");
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let spawned = piped.stderr(Stdio::piped()).spawn();
    let see = "see whether 'genv-enforcer carry-out' works on this host";
    let mut child = spawned.map_err(|error| {
        let program = enforcer.display();
        failed(&format!("{program} cannot be run: {error}"), see)
    })?;
    let threads = Threads::start(&mut child, intents);
    let ended = threads.map(|threads| {
        let outcomes = threads.outcomes.by(deadline);
        let ended = outcomes.is_some() && ends(&child, deadline);
        (outcomes.filter(|_| ended), threads.complaint)
    });
    // What is still there is too late. Of one that ended this only takes notice.
    let _ = child.kill();
    let status = child.wait();
    let (outcomes, complaint) = ended.map_err(|error| failed(&error.to_string(), see))?;
    let Some(outcomes) = outcomes else {
        let seconds = patience.as_secs();
        return Err(failed(
            &format!("genv-enforcer was not done within {seconds} s, and was ended"),
            "its audit log tells what it did",
        ));
    };
    // It may have ended by that nobody read on.
    if outcomes.len() > LONGEST_LINE_BYTES {
        return Err(failed("what genv-enforcer said is too long", see));
    }
    let status = status.map_err(|error| failed(&error.to_string(), see))?;
    if !status.success() {
        let complaint = complaint.by(deadline).unwrap_or_default();
        let complaint = String::from_utf8_lossy(&complaint);
        let complaint = complaint.lines().rfind(|line| !line.trim().is_empty());
        let complaint = complaint.map_or_else(
            || "it did not say why".to_owned(),
            |line| shortened(&harmless(line.trim()), MOST_COMPLAINT_CHARACTERS),
        );
        return Err(failed(&format!("genv-enforcer ended with {status}: {complaint}"), see));
    }
    serde_json::from_slice(&outcomes)
        .map_err(|error| failed(&format!("what genv-enforcer said is not JSON: {error}"), see))
}

/// Whether a child ends in time.
fn ends(child: &Child, deadline: Instant) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut polled, left.as_ref()).is_ok_and(|ready| ready > 0)
}

/// The ends of a child's pipes, each served by a thread: none waits for another.
struct Threads {
    outcomes: Bounded,
    complaint: Bounded,
}

impl Threads {
    fn start(child: &mut Child, intents: Vec<u8>) -> std::io::Result<Self> {
        let stdin = child.stdin.take();
        thread::Builder::new().name("intents".to_owned()).spawn(move || {
            // One that does not read them tells why by its end.
            let _ = stdin.map(|mut stdin| stdin.write_all(&intents));
        })?;
        Ok(Self {
            outcomes: Bounded::start("outcomes", child.stdout.take(), LONGEST_LINE_BYTES as u64 + 1)?,
            complaint: Bounded::start("complaint", child.stderr.take(), MOST_COMPLAINT_BYTES)?,
        })
    }
}

/// What a pipe gives, up to a bound.
struct Bounded(Receiver<Vec<u8>>);

impl Bounded {
    fn start(name: &str, pipe: Option<impl Read + Send + 'static>, most_bytes: u64) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut content = Vec::new();
            if let Some(pipe) = pipe {
                // What was read before an error counts.
                let _ = pipe.take(most_bytes).read_to_end(&mut content);
            }
            // Nobody may want it any more.
            let _ = sender.send(content);
        })?;
        Ok(Self(receiver))
    }

    /// All of it, if it comes in time.
    fn by(&self, deadline: Instant) -> Option<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A program in the enforcer's place. Another process writes it: one that this process had open would be busy.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("genv-enforcer");
        let mut sh = Command::new("sh");
        sh.args(["-c", r##"printf "#!/bin/sh\n%s\n" "$1" >"$2" && chmod 755 "$2""##]);
        let status = sh.arg("sh").arg(script).arg(&path).status().unwrap();
        assert!(status.success());
        path
    }

    fn outcome(script: &str, patience: Duration) -> Result<Value, String> {
        let folder = tempfile::tempdir().unwrap();
        let intents = json!([{"pid": 7}]);
        carry_out(&stand_in(folder.path(), script), &intents, patience)
    }

    #[test]
    fn intents_come_in_and_outcomes_go_out() {
        assert_eq!(
            outcome(r#"printf '{"asked":"%s","of":' "$1"; cat; echo }"#, LONG),
            Ok(json!({"asked": "carry-out", "of": [{"pid": 7}]}))
        );
        // Without a look at the intents.
        assert_eq!(outcome("exec 0<&-; echo '[]'", LONG), Ok(json!([])));
    }

    #[test]
    fn whatever_fails_is_told_with_the_reason() {
        for (script, expected) in [
            (
                "echo first >&2; printf 'genv-enforcer: no\\033[2J rights\\n\\n' >&2; exit 3",
                "exit status: 3: genv-enforcer: no\\u{1b}[2J rights: see whether",
            ),
            ("kill -9 $$", "signal: 9"),
            ("exit 1", "it did not say why"),
            ("echo '{\"a\":'", "is not JSON"),
            ("exec head -c 17000000 /dev/zero", "too long"),
        ] {
            let error = outcome(script, LONG).unwrap_err();
            assert!(error.contains(expected), "{script}: {error}");
            assert!(error.starts_with("cannot carry out what the enforcer decided: "));
        }
        let missing = carry_out(Path::new("/nonexistent/genv-enforcer"), &json!([]), LONG);
        assert!(missing.unwrap_err().contains("cannot be run: No such file"));
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        let short = Duration::from_millis(300);
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000"] {
            let error = outcome(script, short).unwrap_err();
            assert!(error.contains("not done within"), "{error}");
        }
    }
}
