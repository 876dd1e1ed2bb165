//! `--wait`: first come, first served.

use std::fs::File;
use std::io::pipe;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::target;
use genv_tests::patience::{Lines, ended, until};
use genv_tests::process::{Running, Sleeper, signal};
use genv_tests::shell::{Account, Shell};
use genv_tests::state::{self, Environment};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::life_cycle::members::listed;
use crate::life_cycle::running::{genv, run, run_with};

/// A job that has devices until its input ends, or waits for them.
pub(crate) struct Job {
    child: Running,
    printed: Lines,
    pub(crate) stderr_lines: Lines,
}

impl Job {
    fn start(account: &Account, words: &[&str]) -> Result<Self> {
        Self::start_with(account, &[], words)
    }

    pub(crate) fn start_with(account: &Account, variables: &[(&str, &str)], words: &[&str]) -> Result<Self> {
        let mut command = genv(account, &["exec"])?;
        command
            .envs(variables.iter().copied())
            .args(words)
            .args(["--", "sh", "-c", "echo runs; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = Running::spawn(&mut command)?;
        Ok(Self {
            printed: Lines::of(child.stdout.take().context("no stdout")?),
            stderr_lines: Lines::of(child.stderr.take().context("no stderr")?),
            child,
        })
    }

    pub(crate) fn runs(&self) -> Result<()> {
        let line = self.printed.next_line();
        let line = line.with_context(|| format!("its stderr: {:?}", self.stderr_lines.next_line()))?;
        ensure!(line == "runs");
        Ok(())
    }

    pub(crate) fn ends(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(ended(&mut self.child)?.code() == Some(1));
        Ok(())
    }
}

pub(crate) const NEXT: &str = "genv: waiting for devices: next in the queue. Ctrl-C leaves the queue";
const SECOND: &str = "genv: waiting for devices: one before you. Ctrl-C leaves the queue";

/// Two of four devices are taken, one waits for all, and another one behind for one, which is free.
fn queue(account: &Account) -> Result<(Job, Job, Job)> {
    let holder = Job::start(account, &["--gpus=2"])?;
    holder.runs()?;
    let large = Job::start(account, &["--gpus=4", "--wait"])?;
    ensure!(large.stderr_lines.next_line()? == NEXT);
    let small = Job::start(account, &["--gpus=1", "--wait"])?;
    ensure!(small.stderr_lines.next_line()? == SECOND);
    Ok((holder, large, small))
}

#[test]
fn the_queue_shows_who_waits_for_what_since_when() -> Result<()> {
    let account = Account::new()?;
    let list = |words: &[&str]| -> Result<String> {
        let (code, stdout, stderr) = run(&account, words)?;
        ensure!(code == 0, "{words:?}: {stderr}");
        Ok(stdout)
    };
    ensure!(list(&["queue"])? == "No process waits for devices.\n");
    let empty: Value = serde_json::from_str(&list(&["queue", "--json"])?)?;
    ensure!(empty == json!({"waiting": []}), "{empty:#}");
    let (holder, large, small) = queue(&account)?;
    let index = Job::start(&account, &["--gpus=1", "--gpu-memory=4g", "--wait"])?;
    ensure!(index.stderr_lines.next_line()?.contains("2 before you"));
    let shown = list(&["queue"])?;
    let lines: Vec<Vec<&str>> = shown.lines().map(|it| it.split_whitespace().collect()).collect();
    ensure!(lines[0] == ["PLACE", "USER", "PROCESS", "DEVICES", "TYPE", "MEMORY", "WAITS", "EXPECTED"], "{shown}");
    let user = genv_core::proc::username(rustix::process::getuid().as_raw());
    for (place, (job, devices, memory)) in
        [(&large, "4", "all"), (&small, "1", "all"), (&index, "1", "3.7")].into_iter().enumerate()
    {
        let pid = job.child.id().to_string();
        let expected = [&(place + 1).to_string(), &user, &pid, devices, "any", memory];
        ensure!(lines[place + 1][..6] == expected, "{shown}");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let json: Value = serde_json::from_str(&list(&["queue", "--json"])?)?;
    let first = &json["waiting"][0];
    ensure!(first["pid"] == large.child.id() && first["gpus"] == 4 && first["username"] == user, "{json:#}");
    ensure!(first["gpu_memory_bytes"].is_null(), "{json:#}");
    ensure!(json["waiting"][2]["gpu_memory_bytes"] == 4_000_000_000_u64, "{json:#}");
    let snapshot: Value = serde_json::from_str(&list(&["snapshot"])?)?;
    for field in ["pid", "gpus", "username"] {
        ensure!(snapshot["queue"][0][field] == first[field], "{:#}", snapshot["queue"]);
    }
    ensure!(snapshot["queue"].as_array().is_some_and(|it| it.len() == 3), "{:#}", snapshot["queue"]);
    let since = first["since_timestamp_seconds"].as_u64().context("no time")?;
    ensure!((now - 60..=now).contains(&since), "{since} at {now}");
    holder.ends()?;
    large.runs()?;
    let environment = listed(&account, "environments")?.remove(0);
    let eid = environment["eid"].as_str().context("no id")?;
    let (_, status, _) = run_with(&account, &[("GENV_ENVIRONMENT_ID", eid)], &["status"])?;
    let first = format!("(process {}) and 1 other wait in the queue", small.child.id());
    ensure!(status.contains(&first), "{status}");
    let turn = large.stderr_lines.next_line()?;
    ensure!(turn.starts_with("genv: it is your turn, after ") && turn.ends_with(" in the queue"), "{turn}");
    Ok(())
}

fn queue_is_empty(account: &Account) -> Result<bool> {
    Ok(listed(account, "queue")?.is_empty())
}

#[test]
fn who_came_first_is_served_first() -> Result<()> {
    let account = Account::new()?;
    let (holder, large, small) = queue(&account)?;
    // Nobody passes those who wait, unless the devices are to be shared.
    let (code, _, said) = run(&account, &["exec", "--gpus=1", "--", "true"])?;
    let first = format!("(process {}) and 1 other wait", large.child.id());
    ensure!(code == 4 && said.contains(&first), "{code} {said}");
    // Nor by attaching from outside.
    let holders = listed(&account, "environments")?.remove(0);
    let attach = ["devices", "attach", "--count=3", "--eid", holders["eid"].as_str().context("no id")?];
    ensure!(run(&account, &attach)?.0 == 4);
    ensure!(run(&account, &["exec", "-o", "--gpus=1", "--", "true"])?.0 == 0);
    holder.ends()?;
    large.runs()?;
    // All devices are taken until the first ends.
    let environments = listed(&account, "environments")?;
    ensure!(environments.len() == 1, "{environments:?}");
    large.ends()?;
    small.runs()?;
    small.ends()?;
    ensure!(queue_is_empty(&account)?);
    Ok(())
}

fn refusals(account: &Account) -> Result<u64> {
    let snapshot: Value = serde_json::from_str(&run(account, &["snapshot"])?.1)?;
    snapshot["refused_requests"].as_u64().context("no number")
}

#[test]
fn a_request_passes_those_that_it_does_not_delay() -> Result<()> {
    let account = Account::new()?;
    let holder = Job::start(&account, &["--gpus=2", "--for=8h"])?;
    holder.runs()?;
    let large = Job::start(&account, &["--gpus=4", "--wait"])?;
    large.stderr_lines.next_line()?;
    ensure!(run(&account, &["exec", "--gpus=1", "--", "true"])?.0 == 4);
    ensure!(refusals(&account)? == 1);
    let passed = format!("(process {})\n", large.child.id());
    for (words, pass_queue) in [(&["--gpus=2", "--for=7h"][..], "0"), (&["--gpus=2"], "1")] {
        let words = [&["exec"], words, &["--", "true"]].concat();
        let (code, _, said) = run_with(&account, &[("GENV_PASS_QUEUE", pass_queue)], &words)?;
        ensure!(code == 0, "{words:?}: {code} {said}");
        let is_said = said.starts_with("genv: passed in the queue: ") && said.ends_with(&passed);
        ensure!(is_said, "{words:?}: {said}");
    }
    ensure!(!queue_is_empty(&account)?, "the large request waits on");
    ensure!(refusals(&account)? == 1);
    holder.ends()?;
    large.runs()
}

/// Puts a process into the queue, as every user may who can write the file.
fn forge(account: &Account, pid: u32) -> Result<()> {
    let start = target("here", pid)?.start_time_ticks;
    state::edit(&account.state(), |it| {
        it["queue"] = json!([{"pid": pid, "start_time_ticks": start}]);
        Ok(())
    })
}

#[test]
fn an_entry_of_a_process_that_does_not_wait_counts_for_nobody() -> Result<()> {
    let account = Account::new()?;
    let exec = ["exec", "--gpus=1", "--", "true"];
    ensure!(run(&account, &exec)?.0 == 0);
    let sleeper = Sleeper::start(&[])?;
    for pid in [1, sleeper.pid(), std::process::id()] {
        forge(&account, pid)?;
        let free: Value = serde_json::from_str(&run(&account, &["free", "--json"])?.1)?;
        ensure!(free["waiting"] == json!([]), "{free:#}");
        ensure!(free["devices"][0]["available"] == true, "{free:#}");
        ensure!(run(&account, &exec)?.0 == 0, "{pid}");
        ensure!(queue_is_empty(&account)?, "{pid}");
    }
    Ok(())
}

#[test]
fn lists_of_devices_name_who_waits_for_them() -> Result<()> {
    let account = Account::new()?;
    let (_holder, large, _small) = queue(&account)?;
    let first = format!("(process {}) and 1 other wait", large.child.id());
    for command in ["free", "devices"] {
        let (_, shown, said) = run(&account, &[command])?;
        ensure!(said.contains(&first), "{command}: {said}");
        ensure!(!shown.contains("free"), "{shown}");
        ensure!(command == "devices" || shown.contains("waited for"), "{shown}");
    }
    let free: Value = serde_json::from_str(&run(&account, &["free", "--json"])?.1)?;
    ensure!(free["waiting"][0]["pid"] == large.child.id(), "{free:#}");
    ensure!(free["devices"][0]["available"] == false, "{free:#}");
    Ok(())
}

/// Stops a process that asks again and again whether it is its turn, at a moment when it does not hold the state's lock:
/// the others would give up waiting for the lock.
fn stop_without_the_lock(account: &Account, pid: u32) -> Result<()> {
    let lock = File::open(account.state().join("genv.lock"))?;
    until("it has stopped without the lock", || {
        signal(pid, Signal::STOP)?;
        until("it has stopped", || Ok(std::fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") T ")))?;
        // Others hold it for a moment.
        let is_free = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(10));
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if is_free {
            flock(&lock, FlockOperation::Unlock)?;
        } else {
            signal(pid, Signal::CONT)?;
        }
        Ok(is_free)
    })
}

#[test]
fn who_dies_is_interrupted_or_stops_is_passed() -> Result<()> {
    // Who is stopped cannot leave the queue itself.
    for way in [Signal::KILL, Signal::INT, Signal::STOP] {
        let account = Account::new()?;
        let (_holder, mut large, small) = queue(&account)?;
        if way == Signal::STOP {
            stop_without_the_lock(&account, large.child.id())?;
        } else {
            signal(large.child.id(), way)?;
        }
        // Whoever ended is a zombie as long as nobody has asked how.
        small.runs().with_context(|| format!("{way:?}"))?;
        ensure!(queue_is_empty(&account)?, "{way:?}");
        if way == Signal::STOP {
            // It goes on at the end of the queue.
            signal(large.child.id(), Signal::CONT)?;
            until("it is in the queue again", || Ok(!queue_is_empty(&account)?))?;
        } else {
            let ended = ended(&mut large.child)?;
            ensure!(ended.signal() == Some(way.as_raw()), "{way:?}: {ended}");
        }
    }
    Ok(())
}

#[test]
fn nobody_waits_for_a_shell_that_was_killed() -> Result<()> {
    let account = Account::new()?;
    let holder = Job::start(&account, &["--gpus=4"])?;
    holder.runs()?;
    let devices = listed(&account, "devices")?;
    let setup = Shell::Bash.setup();
    for command in ["genv activate --gpus 1 --wait", "genv activate; genv attach --count 1 --wait"] {
        let mut shell = account.command("bash")?;
        let script = format!("{setup}; {command}");
        let shell = shell.args(["-c", &script]).stdin(Stdio::null());
        let mut shell = shell.stderr(Stdio::null()).spawn()?;
        until("it is in the queue", || Ok(!queue_is_empty(&account)?))?;
        shell.kill()?;
        shell.wait()?;
        until("it has left the queue", || queue_is_empty(&account))?;
        let now = listed(&account, "devices")?;
        ensure!(now == devices, "{command}: {now:?}");
    }
    Ok(())
}

#[test]
fn an_environment_stays_as_it_was_if_the_shell_that_joins_it_is_gone() -> Result<()> {
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let environment = Environment::new("e", rustix::process::getuid().as_raw(), member.pid(), &[0, 1]);
    state::write(&account.state(), 4, &[environment])?;
    run(&account, &["exec", "--", "true"])?;
    let before = state::read(&account.state())?;
    for flags in ["--name new --no-attach", "--gpus 1", "--gpus 3 --gpu-memory 4g"] {
        let (reader, writer) = pipe()?;
        drop(reader);
        let script = format!("exec genv activate --id e {flags} 9>&1 >/dev/null");
        let caller = format!("3 bash {} script", std::process::id());
        let mut shell = account.command("bash")?;
        shell.args(["-c", &script]).env("GENV_CALLER", caller);
        let shell = shell.stdin(Stdio::null()).stdout(writer);
        let mut shell = shell.stderr(Stdio::piped()).spawn()?;
        let said = Lines::of(shell.stderr.take().context("no stderr")?);
        let status = ended(&mut shell)?;
        ensure!(status.code() == Some(1), "{flags}: {status}");
        let said = said.next_line()?;
        ensure!(said.contains("it does not listen"), "{flags}: {said}");
        let after = state::read(&account.state())?;
        ensure!(after == before, "{flags}: {after:#}");
    }
    Ok(())
}

#[test]
fn who_waits_for_too_long_leaves_the_queue() -> Result<()> {
    let account = Account::new()?;
    let holder = Job::start(&account, &["--gpus=4"])?;
    holder.runs()?;
    let (code, _, said) = run(&account, &["exec", "--gpus=1", "--wait=1ms", "--", "true"])?;
    ensure!(code == 6 && said.contains(". This did not change in time. ") && !said.contains("--wait"), "{code} {said}");
    ensure!(queue_is_empty(&account)?);
    ensure!(refusals(&account)? == 1);
    // No waiting would help.
    ensure!(run(&account, &["exec", "--gpus=5", "--wait", "--", "true"])?.0 == 4);
    ensure!(refusals(&account)? == 1);
    Ok(())
}
