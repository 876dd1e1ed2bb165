//! What the enforcer costs on one busy host: the daemon as a whole, and its parts.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_core::enforcement::{ENFORCEMENT_FILE, Enforcement};
use genv_core::model::{HostSnapshot, Snapshot};
use genv_core::proc::ProcReader;
use genv_core::state::StateDirectory;
use genv_enforcer::config::Config;
use genv_enforcer::directory::{Audience, RuntimeDirectory};
use genv_enforcer::execute::{Evidence, Executor, GpuUse, Place, Policy};
use genv_enforcer::history_file;
use genv_enforcer::metrics::{self, Counters, Measured};
use genv_enforcer::plan::{History, Input, Outcome, Plan, plan};
use genv_enforcer::status::held;
use genv_tests::enforcer::{self, Setup};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use rustix::process::{geteuid, getuid};

use crate::enforcer::published;
use crate::load::{DEVICES, ENVIRONMENTS, PROCESSES};
use crate::table::{Table, median, milliseconds, thread_cpu_seconds, verdict};

/// Users of the host, where root can be all of them.
const USERS: usize = 25;
/// Processes that are in no environment.
const OUTSIDE: usize = 10;
/// Environments of which the processes do nothing.
const IDLE: usize = 5;
const INTERVAL: Duration = Duration::from_millis(100);
const INTERVAL_SECONDS: f64 = 0.1;
const CYCLES: u64 = 50;
const ROUNDS: usize = 5;
/// Windows are full after these, and all that is said once was said.
const CYCLES_BEFORE: usize = 100;
const BUDGET_SECONDS: f64 = 0.003;
const DEEDS: usize = 15;

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

/// The host; it ends with the value.
struct Busy {
    simulation: Simulation,
    processes: Vec<Sleeper>,
}

impl Busy {
    /// Each environment has two processes and is attached to all devices; some use more than they reserved, some do nothing.
    fn start() -> Result<Self> {
        let processes = (0..PROCESSES).map(Self::process);
        let processes = processes.collect::<Result<Vec<_>>>()?;
        let mut scenario = format!(
            "version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi}}]\n  processes:\n"
        );
        for (number, process) in processes.iter().enumerate() {
            let environment = number % ENVIRONMENTS;
            // NVML tells whole hundredths.
            let works = number < ENVIRONMENTS && environment >= IDLE;
            let utilization = if works { 0.01 } else { 0.0 };
            let memory = if environment % 20 == 7 { 400 } else { 42 };
            let uses = (0..DEVICES).map(|index| {
                format!("{{index: {index}, memory: {memory}mi, utilization: {utilization}}}")
            });
            let uses: Vec<_> = uses.collect();
            scenario += &format!(
                "  - {{pid: {}, devices: [{}]}}\n",
                process.pid(),
                uses.join(", ")
            );
        }
        Ok(Self {
            simulation: Simulation::new(&scenario),
            processes,
        })
    }

    fn process(number: usize) -> Result<Sleeper> {
        let environment = number % ENVIRONMENTS;
        let mut command = Command::new("sleep");
        command
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("HOME", "/home/somebody")])
            .arg("1000000");
        if number < PROCESSES - OUTSIDE {
            command.env("GENV_ENVIRONMENT_ID", format!("e{environment}"));
        }
        if geteuid().is_root() {
            command.uid(uid(environment)).gid(uid(environment));
        }
        Sleeper::spawn(&mut command)
    }

    fn write_state(&self, folder: &Path) -> Result<()> {
        let environments: Vec<_> = (0..ENVIRONMENTS)
            .map(|number| Environment {
                eid: format!("e{number}"),
                uid: uid(number),
                pids: vec![self.processes[number].pid()],
                // One forgot a device that its processes use.
                devices: (usize::from(number % 20 == 3)..DEVICES).collect(),
                gpu_memory: Some("512mi"),
            })
            .collect();
        state::write(folder, DEVICES, &environments)
    }
}

fn uid(environment: usize) -> u32 {
    if geteuid().is_root() {
        enforcer::victim() + (environment % USERS) as u32
    } else {
        getuid().as_raw()
    }
}

/// Measures the daemon, and then its parts with the same facts.
pub(crate) fn table() -> Result<Table> {
    let busy = Busy::start()?;
    let setup = Setup::new("version: 1\nhosts: []\n", RULES)?;
    busy.write_state(&setup.genv_directory())?;

    let mut daemon = Daemon::start(&setup, &busy)?;
    let (mut collecting, mut own) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let cycle = daemon.measure(&setup)?;
        collecting.push(cycle.collecting_seconds);
        own.push(cycle.own_seconds);
    }
    let status = daemon.status(&setup)?;
    drop(daemon);
    ensure!(status.faults.is_empty(), "faults: {:?}", status.faults);
    let snapshot = snapshot(&setup, &busy)?;
    ensure!(
        (snapshot.devices.len(), snapshot.processes.len()) == (DEVICES, PROCESSES),
        "not all is seen"
    );

    let (collecting, own) = (median(collecting), median(own));
    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    let load = format!(
        "{DEVICES} devices, {ENVIRONMENTS} environments on all of them, {PROCESSES} processes on all of them, {} rules, {} violations",
        status.config.rules.len(),
        status.violations.len()
    );
    table.row(&[
        &format!("CPU of one cycle on a busy host without the collection, history.json not being due: {load}"),
        &milliseconds(own),
        &milliseconds(BUDGET_SECONDS),
        &verdict(own <= BUDGET_SECONDS),
    ]);
    table.row(&[
        &"CPU of the collection of that",
        &milliseconds(collecting),
        &"",
        &"",
    ]);
    let parts = Parts::measure(&snapshot)?;
    for (part, seconds) in parts.0 {
        table.row(&[
            &format!("of the cycle: {part}"),
            &milliseconds(seconds),
            &"",
            &"",
        ]);
    }
    let deed = milliseconds(deed()?);
    table.row(&[
        &"CPU of one deed: verification, two lines of audit, SIGTERM",
        &deed,
        &"",
        &"",
    ]);
    Ok(table)
}

/// What is true on the host now, as the daemon sees it.
fn snapshot(setup: &Setup, busy: &Busy) -> Result<Snapshot> {
    let mut command = setup.program("genv", &["snapshot"])?;
    let output = command
        .env("GENV_NVML_LIBRARY", busy.library())
        .env("GENV_SCENARIO", busy.simulation.scenario())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "genv snapshot failed: {said}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl Busy {
    fn library(&self) -> std::path::PathBuf {
        self.simulation.library_folder().join("libnvidia-ml.so.1")
    }
}

/// A running `genv-enforcer run`; it ends with the value.
struct Daemon(Sleeper);

/// CPU of one cycle.
struct CycleCpu {
    collecting_seconds: f64,
    own_seconds: f64,
}

impl Daemon {
    fn start(setup: &Setup, busy: &Busy) -> Result<Self> {
        let log = fs::File::create(setup.folder().join("log"))?;
        let config = format!("--config={}", setup.config().display());
        let library = format!("--gpu.nvml-library={}", busy.library().display());
        let words = [
            "run",
            "--web.listen-address=127.0.0.1:0",
            "--interval=100ms",
            "--gpu.source=nvml",
            &config,
            &library,
        ];
        let mut command = setup.command(&words)?;
        command
            .env("GENV_SCENARIO", busy.simulation.scenario())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let daemon = Self(Sleeper::spawn_as_it_is(&mut command)?);
        let log = || fs::read_to_string(setup.folder().join("log")).unwrap_or_default();
        until("the enforcer saw the whole load", || {
            Ok(setup.state_directory().join(ENFORCEMENT_FILE).exists())
        })
        .with_context(log)?;
        sleep(INTERVAL * CYCLES_BEFORE as u32);
        Ok(daemon)
    }

    fn status(&self, setup: &Setup) -> Result<Enforcement> {
        let status = Enforcement::read(&setup.state_directory());
        status.map_err(anyhow::Error::msg)?.context("no status")
    }

    /// Measures over some cycles, each of which replaces the status.
    fn measure(&mut self, setup: &Setup) -> Result<CycleCpu> {
        let status = setup.state_directory().join(ENFORCEMENT_FILE);
        let written = || -> Result<_> {
            let file = fs::metadata(&status)?;
            Ok((file.ino(), file.mtime(), file.mtime_nsec()))
        };
        let before = self.cpu_seconds()?;
        let deadline = Instant::now() + INTERVAL * CYCLES as u32 * 10;
        let (mut last, mut cycles) = (written()?, 0);
        while cycles < CYCLES {
            ensure!(
                Instant::now() < deadline,
                "only {cycles} of {CYCLES} cycles were done in time"
            );
            sleep(INTERVAL / 20);
            let now = written()?;
            cycles += u64::from(now != last);
            last = now;
        }
        let after = self.cpu_seconds()?;
        let part = |before: f64, after: f64| (after - before) / cycles as f64;
        Ok(CycleCpu {
            collecting_seconds: part(before.0, after.0),
            own_seconds: part(before.1, after.1),
        })
    }

    /// CPU so far of the threads that collect, and of all others.
    fn cpu_seconds(&self) -> Result<(f64, f64)> {
        let (mut collecting, mut own) = (0.0, 0.0);
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.pid()))? {
            let thread = thread?.path();
            let name = fs::read_to_string(thread.join("comm"))?;
            let used = fs::read_to_string(thread.join("schedstat"))?;
            let nanoseconds = used.split(' ').next().context("no CPU is told")?;
            let seconds = nanoseconds.parse::<f64>()? / 1e9;
            match name.trim_end() {
                "genv-enforcer" | "cycle" | "groups" | "serve" => own += seconds,
                _ => collecting += seconds,
            }
        }
        ensure!(
            own > 0.0 && collecting > 0.0,
            "no CPU was used: does the kernel count it?"
        );
        Ok((collecting, own))
    }
}

/// Parts of a cycle.
struct Parts(Vec<(&'static str, f64)>);

impl Parts {
    fn measure(snapshot: &Snapshot) -> Result<Self> {
        const NAMES: [&str; 5] = [
            "the plan",
            "noting what was seen",
            "history.json",
            "status.json",
            "rendering the metrics",
        ];
        let config = Config::parse("rules.yaml", RULES)?;
        let folder = tempfile::tempdir()?;
        let directory = RuntimeDirectory::open(folder.path())?;
        let mut snapshot = snapshot.clone();
        let noon = snapshot.timestamp_seconds;
        let mut history = History::default();
        let mut counters = Counters::default();
        let mut times: [Vec<f64>; 5] = Default::default();
        for cycle in 0..CYCLES_BEFORE + CYCLES as usize {
            let now_seconds = noon + INTERVAL_SECONDS * cycle as f64;
            let hosts: [HostSnapshot; 1] = [published(&mut snapshot, now_seconds)];
            let input = Input {
                hosts: &hosts,
                config: &config,
                groups: &Default::default(),
                waivers: &[],
                paused_until_seconds: None,
                now_seconds,
            };
            let mut at = vec![thread_cpu_seconds()];
            let mut done = || at.push(thread_cpu_seconds());
            let plan: Plan = plan(&input, &history);
            done();
            history.follow(&input, &plan);
            done();
            for step in &plan.steps {
                history.settle(step, &Outcome::Would, now_seconds);
            }
            let mut done = || at.push(thread_cpu_seconds());
            history_file::save(&directory, &history)?;
            done();
            let status = Enforcement {
                violations: plan.violations.iter().map(held).collect(),
                ..Enforcement::default()
            };
            let status = serde_json::to_vec(&status)?;
            directory.replace(ENFORCEMENT_FILE, &status, Audience::Everybody)?;
            done();
            let hostnames = || hosts.iter().map(|host| host.hostname.as_str());
            counters.begin(&config.rules, hostnames(), &plan, config.mode);
            let measured = Measured {
                violations: metrics::violations(&plan, &config.rules, hostnames()),
                stages: metrics::stages(&plan),
                unknown_processes: metrics::unknown_processes(&plan, hostnames()),
                counters: counters.clone(),
                ..Measured::default()
            };
            ensure!(!metrics::render(&measured).is_empty(), "no metrics");
            done();
            if cycle >= CYCLES_BEFORE {
                for (times, pair) in times.iter_mut().zip(at.windows(2)) {
                    times.push(pair[1] - pair[0]);
                }
            }
        }
        let parts = NAMES.into_iter().zip(times.map(median));
        Ok(Self(parts.collect()))
    }
}

/// Ends processes, each with all that belongs to it.
fn deed() -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let victims = (0..DEEDS).map(|_| enforcer::sleeper(&[("HOME", "/")]));
    let victims = victims.collect::<Result<Vec<_>>>()?;
    let pids: Vec<u32> = victims.iter().map(Sleeper::pid).collect();
    let genv_directory = folder.path().join("genv");
    let gpu_use: GpuUse = pids.iter().map(|pid| (*pid, [0].into())).collect();
    let evidence = Evidence {
        gpu_use: Box::new(move || Ok(gpu_use.clone())),
        processes: Box::new(ProcReader::new()),
        state: Box::new(StateDirectory::new(&genv_directory)),
    };
    let place = Place {
        hostname: "here".to_owned(),
        genv_directory,
        state_directory: folder.path().join("enforcer"),
    };
    let config = Config::parse(
        "rules.yaml",
        "version: 1\nmode: enforce\nbreaker: {signals_per_minute: 1000, share_of_users: 1}\nrules: []\n",
    )?;
    let mut executor = Executor::open(place, Policy::from(&config), evidence)?;
    let mut times = Vec::new();
    for pid in pids {
        let step = enforcer::terminate(&enforcer::target("here", pid)?);
        let began = thread_cpu_seconds();
        let outcome = executor.carry_out(&step, "a process uses device 0 outside any environment");
        times.push(thread_cpu_seconds() - began);
        ensure!(outcome == Outcome::Done, "not done: {outcome:?}");
    }
    Ok(median(times))
}
