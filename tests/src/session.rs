//! A shell into which lines are typed one after the other, as by somebody who reads a page of documentation.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::patience::{END_PATIENCE, PATIENCE};
use crate::process::{children, signal};
use crate::shell::Shell;

const POLL: Duration = Duration::from_millis(20);

/// What the shell says when a line has ended, followed by its exit code and the last program in the background.
const ENDED: &str = "\n=== a line has ended: ";

/// What programs return that end by SIGINT or SIGTERM, besides 0, and `wait` for one that was waited for.
const WAS_ENDED: [i32; 4] = [0, 127, 130, 143];

/// The shell; it ends with the value, and all that it started.
pub struct Session {
    child: Child,
    /// The shell's own pid; the child may be a program that started it in namespaces of their own.
    pid: u32,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    heard: Vec<u8>,
    /// Pids of programs in the background, as the shell numbers them, with the lines that started them.
    background: Vec<(String, String)>,
    takes_time: bool,
}

impl Session {
    pub fn start(mut command: Command, shell: Shell) -> Result<Self> {
        command.args(shell.without_start_up_files());
        let (read, background) = match shell {
            Shell::Bash | Shell::Zsh => ("while IFS= read -r -d '' __line; do", "$!"),
            Shell::Fish => ("while read --null --local __line", "$last_pid"),
        };
        let done = if shell == Shell::Fish { "end" } else { "done" };
        let says = ENDED.trim_start();
        let script = format!(
            "{read}\neval \"$__line\" </dev/null 2>&1\nprintf '\\n{says}%s %s\\n' \"{}\" \"{background}\"\n{done}",
            shell.code()
        );
        command.args(["-c", &script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
        let input = child.stdin.take().context("no stdin")?;
        let mut stdout = child.stdout.take().context("no stdout")?;
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut part = [0; 8192];
            while let Ok(length @ 1..) = stdout.read(&mut part) {
                if sender.send(part[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut session = Self {
            pid: child.id(),
            child,
            input,
            output,
            heard: Vec::new(),
            background: Vec::new(),
            takes_time: false,
        };
        session.run(":")?;
        while let [child] = *children(session.pid) {
            session.pid = child;
        }
        Ok(session)
    }

    /// Says that what its lines start takes time until it answers, even with nothing in the background of the shell.
    pub const fn taking_time(mut self) -> Self {
        self.takes_time = true;
        self
    }

    /// Types a line, and returns its exit code and what it printed. A line that serves, because one of its programs
    /// listens on a port, is ended by Ctrl-C, as somebody does who has seen it; its code is 0 if it ends by that.
    pub fn run(&mut self, line: &str) -> Result<(i32, String)> {
        let before: BTreeSet<u32> = descendants(self.pid, &BTreeSet::new());
        let mut interrupted = BTreeSet::new();
        self.input.write_all(line.as_bytes())?;
        self.input.write_all(b"\0")?;
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            match self.output.recv_timeout(POLL) {
                Ok(part) => self.heard.extend(part),
                Err(RecvTimeoutError::Timeout) => {
                    for pid in descendants(self.pid, &before) {
                        if listens(pid) && interrupted.insert(pid) {
                            // It may have ended by itself.
                            let _ = signal(pid, Signal::INT);
                        }
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the shell ended: {}", last_part(&String::from_utf8_lossy(&self.heard)))
                }
            }
            if let Some((code, pid, printed)) = self.ended()? {
                let known = self.background.iter().any(|(known, _)| *known == pid);
                if !known && !["", "0"].contains(&&*pid) {
                    self.background.push((pid, line.to_owned()));
                }
                let by_interrupt = !interrupted.is_empty() && WAS_ENDED.contains(&code);
                return Ok((if by_interrupt { 0 } else { code }, printed));
            }
            ensure!(Instant::now() < deadline, "it does not end: {}", last_part(&String::from_utf8_lossy(&self.heard)));
        }
    }

    /// As [`Session::run`]; the line must succeed. Where something was started that takes time, it is tried again.
    pub fn succeed(&mut self, line: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (code, printed) = self.run(line)?;
            if code == 0 {
                return Ok(printed);
            }
            let waits = self.takes_time || !self.background.is_empty();
            ensure!(waits && Instant::now() < deadline, "it ended with {code}: {}", last_part(&printed));
            thread::sleep(POLL * 10);
        }
    }

    /// Ends what is in the background. None of it may have failed.
    pub fn finish(mut self) -> Result<()> {
        for (pid, line) in std::mem::take(&mut self.background) {
            let (code, printed) = self.run(&format!("kill {pid} 2>/dev/null; wait {pid}"))?;
            ensure!(
                WAS_ENDED.contains(&code),
                "{line}: in the background it ended with {code}: {}",
                last_part(&printed)
            );
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<(i32, String, String)>> {
        let heard = String::from_utf8_lossy(&self.heard);
        let Some((printed, rest)) = heard.split_once(ENDED) else {
            return Ok(None);
        };
        let Some((end, rest)) = rest.split_once('\n') else {
            return Ok(None);
        };
        let (code, pid) = end.split_once(' ').context("no exit code")?;
        let ended = (code.parse()?, pid.trim().to_owned(), printed.to_owned());
        self.heard = rest.as_bytes().to_vec();
        Ok(Some(ended))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
    }
}

fn last_part(output: &str) -> &str {
    let start = output.len().saturating_sub(2000);
    let start = (start..output.len()).find(|at| output.is_char_boundary(*at));
    &output[start.unwrap_or_default()..]
}

fn descendants(pid: u32, without: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for child in children(pid).into_iter().filter(|it| !without.contains(it)) {
        found.insert(child);
        found.extend(descendants(child, without));
    }
    found
}

fn listens(pid: u32) -> bool {
    const LISTEN: &str = "0A";
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{pid}/net/{table}"));
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: BTreeSet<String> = tables
        .iter()
        .flat_map(|table| table.lines())
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&LISTEN))
        .filter_map(|fields| Some(format!("socket:[{}]", fields.get(9)?)))
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut descriptors = descriptors.into_iter().flatten().flatten();
    descriptors
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|to| sockets.contains(&*to.to_string_lossy())))
}
