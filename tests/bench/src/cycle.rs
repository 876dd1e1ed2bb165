//! The cost of a cycle of the enforcer's daemon on one busy host.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_core::enforcement::{ENFORCEMENT_FILE, Enforcement};
use genv_tests::enforcer::{Setup, victim};
use genv_tests::patience::until;
use genv_tests::process::Running;
use genv_tests::state::Environment;
use rustix::param::clock_ticks_per_second;
use rustix::process::{geteuid, getuid};

use crate::load::{DEVICES, ENVIRONMENTS, Load, PROCESSES, sleep_in_environment};
use crate::table::{Table, median};

const INTERVAL: Duration = Duration::from_millis(100);
const CYCLES: u64 = 50;
const ROUNDS: usize = 5;
/// Cycles until windows are full and one-time messages are logged.
const CYCLES_BEFORE: u32 = 100;
const BUDGET_SECONDS: f64 = 0.003;

/// Users of the host, where root can be all of them.
const USERS: usize = 25;
/// Processes that are in no environment.
const OUTSIDE: usize = 10;
/// Environments with idle processes.
const IDLE: usize = 5;

const RULES: &str = "
version: 1
timezone: UTC
interval: 100ms
defaults: {for: 1s}
breaker: {share_of_users: 1}
rules:
- {kind: non-env-processes, action: terminate, warn: []}
- {kind: env-devices, action: warn}
- {kind: env-memory, action: warn}
- {kind: max-devices-per-user, limit: {default: 8, users: {somebody: 4, root: 4}}, action: warn}
- {kind: max-environments-per-user, limit: 200}
- {kind: max-processes-per-environment, limit: 4}
- {kind: max-memory-per-user, limit: 400gi, match: {except_users: [somebody]}}
- {kind: max-age, limit: 365d, when: {days: mon-sun}}
- {name: idle, kind: idle, below: 0.005, over: 5s, action: detach, warn: []}
- {name: idle-by-day, kind: idle, below: 0.001, over: 5s, when: {between: \"08:00-20:00\"}}
";

pub(crate) fn table() -> Result<Table> {
    let busy = Load::with(PROCESSES, process, uses)?;
    let setup = Setup::new("version: 1\nhosts: []\n", RULES)?;
    busy.write_environments(&setup.genv_directory(), |number, pid| Environment {
        eid: format!("e{number}"),
        uid: uid(number),
        pids: vec![pid],
        // One forgot a device that its processes use.
        devices: (usize::from(number % 20 == 3)..DEVICES).collect(),
        gpu_memory: Some("512mi"),
    })?;
    let daemon = start(&setup, &busy)?;
    let (mut collecting, mut own) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (collecting_seconds, own_seconds) = measure(daemon.id(), &setup)?;
        collecting.push(collecting_seconds);
        own.push(own_seconds);
    }
    let status = Enforcement::read(&setup.state_directory()).map_err(anyhow::Error::msg)?.context("no status")?;
    drop(daemon);
    ensure!(status.faults.is_empty(), "faults: {:?}", status.faults);
    ensure!(!status.violations.is_empty(), "nothing was planned");

    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    let load = format!(
        "{DEVICES} devices, {ENVIRONMENTS} environments on all of them, {PROCESSES} processes on all of them, {} rules, {} violations",
        status.config.rules.len(),
        status.violations.len()
    );
    let what = "CPU of one cycle on a busy host without the collection, history.json not being due";
    table.cost(&format!("{what}: {load}"), median(own), Some(BUDGET_SECONDS));
    table.cost("CPU of the collection of that", median(collecting), None);
    Ok(table)
}

fn process(number: usize) -> Command {
    let mut command = sleep_in_environment(number);
    if number >= PROCESSES - OUTSIDE {
        command.env_remove("GENV_ENVIRONMENT_ID");
    }
    if geteuid().is_root() {
        command.uid(uid(number)).gid(uid(number));
    }
    command
}

/// Some use more than they reserved, some do nothing. NVML reports whole percent.
fn uses(process: usize, _device: usize) -> String {
    let works = (IDLE..ENVIRONMENTS).contains(&process);
    let utilization = if works { 0.01 } else { 0.0 };
    let memory = if process % 20 == 7 { 400 } else { 42 };
    format!("memory: {memory}mi, utilization: {utilization}")
}

fn uid(number: usize) -> u32 {
    if geteuid().is_root() { victim() + (number % ENVIRONMENTS % USERS) as u32 } else { getuid().as_raw() }
}

fn start(setup: &Setup, busy: &Load) -> Result<Running> {
    let log = fs::File::create(setup.folder().join("log"))?;
    let config = format!("--config={}", setup.config().display());
    let library = format!("--gpu.nvml-library={}", busy.simulation.library().display());
    let mut command = setup.command(&["run", "--web.listen-address=127.0.0.1:0", "--interval=100ms"])?;
    command
        .args(["--gpu.source=nvml", &config, &library])
        .env("GENV_SCENARIO", busy.simulation.scenario())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let daemon = Running::spawn(&mut command)?;
    until("the enforcer saw the whole load", || Ok(setup.state_directory().join(ENFORCEMENT_FILE).exists()))
        .with_context(|| fs::read_to_string(setup.folder().join("log")).unwrap_or_default())?;
    sleep(INTERVAL * CYCLES_BEFORE);
    Ok(daemon)
}

/// CPU of one cycle: of the threads that collect, and of all others. Each cycle replaces the status.
fn measure(pid: u32, setup: &Setup) -> Result<(f64, f64)> {
    let status = setup.state_directory().join(ENFORCEMENT_FILE);
    let written = || -> Result<_> {
        let file = fs::metadata(&status)?;
        Ok((file.ino(), file.mtime(), file.mtime_nsec()))
    };
    let before = cpu_seconds(pid)?;
    let deadline = Instant::now() + INTERVAL * CYCLES as u32 * 10;
    let (mut last, mut cycles) = (written()?, 0);
    while cycles < CYCLES {
        ensure!(Instant::now() < deadline, "only {cycles} of {CYCLES} cycles were done in time");
        sleep(INTERVAL / 20);
        let now = written()?;
        cycles += u64::from(now != last);
        last = now;
    }
    let after = cpu_seconds(pid)?;
    let part = |before: f64, after: f64| (after - before) / cycles as f64;
    Ok((part(before.0, after.0), part(before.1, after.1)))
}

/// CPU so far of the threads that collect, those that have ended included, and of all others.
fn cpu_seconds(pid: u32) -> Result<(f64, f64)> {
    let mut own = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let name = fs::read_to_string(thread.join("comm"))?;
        if ["genv-enforcer", "cycle", "groups", "serve"].contains(&name.trim_end()) {
            let used = fs::read_to_string(thread.join("schedstat"))?;
            let nanoseconds = used.split(' ').next().context("no CPU in schedstat")?;
            own += nanoseconds.parse::<f64>()? / 1e9;
        }
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    // utime and stime, fields 14 and 15 of proc_pid_stat(5).
    let fields = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    let collecting = ticks as f64 / clock_ticks_per_second() as f64 - own;
    ensure!(own > 0.0 && collecting > 0.0, "no CPU was used: does the kernel count it?");
    Ok((collecting, own))
}
