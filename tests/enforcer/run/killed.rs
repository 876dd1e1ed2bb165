//! What the next start makes of an enforcer that was killed in the middle of a cycle.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use genv_tests::enforcer::{Setup, as_victim, enforcing, is_alive};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::{self, until};
use genv_tests::process::Sleeper;
use serde_json::Value;

/// A process that does not end by SIGTERM.
fn stubborn() -> Result<Sleeper> {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; exec sleep 1000000"]);
    let process = Sleeper::spawn(as_victim(&mut command))?;
    let comm = format!("/proc/{}/comm", process.pid());
    until("it ignores SIGTERM", || Ok(fs::read_to_string(&comm)? == "sleep\n"))?;
    Ok(process)
}

/// System calls by which something lasts. Of each the enforcer is killed at the first, the second and so on.
const CALLS: [&str; 5] = ["write", "fsync", "renameat", "unlinkat", "pidfd_send_signal"];

/// One process that is told to end, and with `kill` killed, by one cycle after another.
struct Case {
    setup: Setup,
    process: Sleeper,
    action: &'static str,
    /// Runs so far.
    runs: usize,
}

impl Case {
    fn new(action: &'static str) -> Result<Self> {
        let process = stubborn()?;
        let rule = format!("- {{kind: non-env-processes, action: {action}, for: 0s, warn: [], grace: 1s}}\n");
        Ok(Self { setup: Setup::new(&used_by(&[process.pid()]), &enforcing(&rule))?, process, action, runs: 0 })
    }

    /// One cycle; it is killed as it enters a system call for the so manieth time. Returns whether it came to that.
    fn run(&mut self, killed_at: Option<(&str, usize)>) -> Result<bool> {
        let enforcer = self.setup.command(&[])?;
        let trace = self.setup.folder().join(format!("trace.{}", self.runs));
        self.runs += 1;
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e"]).arg(format!("trace={}", CALLS.join(",")));
        if let Some((call, number)) = killed_at {
            let inject = format!("inject={call}:signal=SIGKILL:when={number}");
            command.args(["-e", &inject]);
        }
        command
            .arg("-o")
            .arg(trace)
            .arg(enforcer.get_program())
            .args(["run", "--once", "--gpu.source=simulated"])
            .arg(format!("--config={}", self.setup.config().display()));
        for (name, value) in enforcer.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output =
            patience::output(&mut command).context("running the enforcer under strace: install the package strace")?;
        if output.status.signal() == Some(9) && killed_at.is_some() {
            return Ok(true);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {stderr}", output.status);
        Ok(false)
    }

    fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        until(what, || {
            self.run(None)?;
            is_so(self)
        })
    }

    /// The signals of the steps against a process that the kernel accepted, in all runs.
    fn signals(&self) -> Result<Vec<&'static str>> {
        let mut signals = Vec::new();
        for run in 0..self.runs {
            let trace = fs::read_to_string(self.setup.folder().join(format!("trace.{run}")))?;
            let calls = whole_calls(&trace);
            let sent = calls.iter().filter(|it| it.contains("pidfd_send_signal(") && it.ends_with(" = 0"));
            // SIGCONT follows SIGTERM, and is no step of its own.
            for call in sent.filter(|it| !it.contains("SIGCONT")) {
                signals.push(if call.contains("SIGTERM") { "SIGTERM" } else { "SIGKILL" });
            }
        }
        Ok(signals)
    }

    fn audit(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.setup.state_directory().join("audit.jsonl"))?;
        let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
        lines.collect()
    }

    /// Lets it come to its end, and looks whether the books balance.
    fn settle(&mut self) -> Result<()> {
        let left = self.audit().unwrap_or_default();
        let is_left = left.last().filter(|line| line["result"] == "intended");
        let left = is_left.map(|line| line["id"].as_str().unwrap_or_default().to_owned());
        self.run(None)?;
        if let Some(id) = &left {
            let status = self.setup.said(&["status", "--json"])?;
            let status: Value = serde_json::from_str(&status)?;
            ensure!(status["faults"].to_string().contains(id), "{status:#}");
        }
        if self.action == "kill" {
            self.run_until("it was killed", |case| Ok(!is_alive(case.process.pid())))?;
        }
        self.run(None)?;
        self.run(None)?;
        self.books(left.as_deref())
    }

    fn books(&self, left: Option<&str>) -> Result<()> {
        let audit = self.audit()?;
        let mut acts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in &audit {
            let text = |field: &str| line[field].as_str().unwrap_or_default();
            acts.entry(text("id")).or_default().push(text("result"));
        }
        let mut unknown = 0;
        for (id, results) in &acts {
            match results.as_slice() {
                ["intended", "done" | "refused"] | ["refused"] => {}
                ["intended", "unknown"] if left == Some(id) => unknown += 1,
                results => bail!("{id}: {results:?}"),
            }
        }
        ensure!(unknown == usize::from(left.is_some()), "{acts:?}");
        for signal in ["SIGTERM", "SIGKILL"] {
            let sent = self.signals()?.iter().filter(|it| **it == signal).count();
            let told = |result: &str| {
                let is_it = |line: &&Value| line["action"] == signal && line["result"] == result;
                audit.iter().filter(is_it).count()
            };
            let (done, unknown) = (told("done"), told("unknown"));
            ensure!(sent == done || sent == done + unknown, "{sent} {signal}: {audit:#?}");
            ensure!(sent <= 1 + unknown, "{sent} {signal}: {audit:#?}");
        }
        assert_eq!(self.signals()?.first(), Some(&"SIGTERM"));
        for entry in fs::read_dir(self.setup.state_directory())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let is_left = name == "begun.json" || name.ends_with(".damaged");
            ensure!(!is_left, "{name} is left");
        }
        Ok(())
    }
}

/// The calls of a trace, each in one line: strace splits the line of a call during which another thread makes one.
fn whole_calls(trace: &str) -> Vec<String> {
    let mut begun = BTreeMap::new();
    let mut calls = Vec::new();
    for (thread, call) in trace.lines().filter_map(|line| line.trim_start().split_once(' ')) {
        if let Some(begins) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, begins);
        } else if let Some((_, end)) = call.split_once(" resumed>") {
            calls.push(format!("{}{end}", begun.remove(thread).unwrap_or_default()));
        } else {
            calls.push(call.to_owned());
        }
    }
    calls
}

/// Kills a cycle at each of its points, and returns how many these were.
fn kill_everywhere(prepared: impl Fn() -> Result<Case>) -> Result<usize> {
    let mut points = 0;
    for call in CALLS {
        for number in 1.. {
            let mut case = prepared()?;
            if !case.run(Some((call, number)))? {
                break;
            }
            points += 1;
            case.settle().with_context(|| format!("killed at {call} {number}"))?;
        }
    }
    Ok(points)
}

#[test]
fn killed_anywhere_in_a_cycle_that_terminates_it_does_nothing_twice_unknowingly() -> Result<()> {
    let points = kill_everywhere(|| Case::new("terminate"))?;
    ensure!(points > 20, "it was killed at {points} points only");
    Ok(())
}

#[test]
fn killed_before_sigterm_it_sends_that_before_sigkill() -> Result<()> {
    let mut case = Case::new("kill")?;
    ensure!(case.run(Some(("pidfd_send_signal", 1)))?);
    case.settle()
}

#[test]
fn killed_around_sigkill_it_says_so_and_kills_once() -> Result<()> {
    // Before the signal, and once it is sent before the next cycle can know.
    for (call, is_sent) in [("pidfd_send_signal", false), ("unlinkat", true)] {
        let mut case = Case::new("kill")?;
        case.run(None)?;
        until("it came to SIGKILL", || {
            let killed = case.run(Some((call, 1)))?;
            let is_dead = !is_alive(case.process.pid());
            ensure!(killed || !is_dead, "it was not killed at {call}");
            Ok(if is_sent { is_dead } else { killed })
        })?;
        case.settle()?;
    }
    Ok(())
}
