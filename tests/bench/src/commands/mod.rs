//! The cost of frequent commands, of users and of prompts.

mod prompts;
mod terminal;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, program};
use genv_tests::state;

use crate::load::{Change, DEVICES, Load, PROCESSES, write_environments};
use crate::table::{Table, median, milliseconds, verdict};

pub(crate) use prompts::table as prompts;
use terminal::Terminal;

const ROUNDS: usize = 200;
/// genv 1.4.3 takes a hundred times longer.
const ROUNDS_OF_PEER: usize = 10;

const COMMAND_BUDGET: Duration = Duration::from_millis(5);
const OVERVIEW_BUDGET: Duration = Duration::from_millis(30);
const LIFE_CYCLE_BUDGET: Duration = Duration::from_millis(20);
/// `status` and `shell --init` against a program that does nothing.
const MOST_TIMES_NOTHING: f64 = 2.0;

const COMMANDS: [&[&str]; 4] = [&["status"], &["shell", "--init"], &["envs"], &["devices"]];
const LIFE_CYCLE: &str = r#"eval "$(genv shell --init)" && genv activate --no-prompt && genv deactivate"#;

/// genv with a state of 100 environments on 8 devices, one of which the commands are about.
struct Lab {
    folder: tempfile::TempDir,
    member: Sleeper,
}

impl Lab {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let member = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e0")])?;
        let pid = member.pid();
        let lab = Self { folder, member };
        write_environments(&lab.state(), |_| pid)?;
        fs::create_dir(lab.programs())?;
        symlink(program("genv")?, lab.programs().join("genv"))?;
        Ok(lab)
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn programs(&self) -> PathBuf {
        self.folder.path().join("programs")
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdout(Stdio::null())
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.programs().display()))
            .env("HOME", self.folder.path())
            .env("SHELL", "/bin/bash")
            .env("GENV_TMPDIR", self.state());
        command
    }

    fn genv(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.programs().join("genv"), arguments);
        command.env("GENV_ENVIRONMENT_ID", "e0");
        command
    }

    fn bash(&self, script: &str) -> Command {
        self.command(Path::new("/bin/bash"), &["--norc", "--noprofile", "-c", script])
    }
}

/// Measures them, each in turn with a program that does nothing.
pub(crate) fn table() -> Result<Table> {
    let lab = Lab::new()?;
    let nothing = program("genv-bench-nothing")?;
    let nothing = || lab.command(&nothing, &[]);
    let mut table = Table::new(&["command", "measured", "budget", "holds", "÷ doing nothing", "budget", "holds"]);
    for arguments in COMMANDS {
        let (floors, times) = in_turn(ROUNDS, nothing, || lab.genv(arguments))?;
        let (floor, time) = (median(floors), median(times));
        let limited = matches!(arguments[0], "status" | "shell");
        let (limit, holds) = if limited {
            (MOST_TIMES_NOTHING.to_string(), verdict(time / floor <= MOST_TIMES_NOTHING))
        } else {
            (String::new(), "")
        };
        table.row(&[
            &format!("genv {}", arguments.join(" ")),
            &milliseconds(time),
            &milliseconds(COMMAND_BUDGET.as_secs_f64()),
            &verdict(time <= COMMAND_BUDGET.as_secs_f64()),
            &format!("{:.2}", time / floor),
            &limit,
            &holds,
        ]);
    }
    let (bare, cycles) = in_turn(ROUNDS, || lab.bash(":"), || lab.bash(LIFE_CYCLE))?;
    let time = median(cycles) - median(bare);
    table.row(&[
        &"shell --init, activate and deactivate, over bash alone",
        &milliseconds(time),
        &milliseconds(LIFE_CYCLE_BUDGET.as_secs_f64()),
        &verdict(time <= LIFE_CYCLE_BUDGET.as_secs_f64()),
        &"",
        &"",
        &"",
    ]);
    overview_rows(&lab, &mut table)?;
    Ok(table)
}

/// Measures the overview, with a process on all devices and the answer of the driver; then with the load of the exporter's
/// budgets, for which there is no budget: the simulated library alone reads its scenario for a third of that time.
fn overview_rows(lab: &Lab, table: &mut Table) -> Result<()> {
    let uses: Vec<String> = (0..DEVICES).map(|device| format!("{{index: {device}, memory: 1gi}}")).collect();
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{count: {DEVICES}}}]\n  processes: [{{pid: {}, devices: [{}]}}]\n",
        lab.member.pid(),
        uses.join(", ")
    );
    let simulation = Simulation::new(&scenario);
    for arguments in [&[][..], &["devices"]] {
        let (time, floor) = overview(lab, &simulation, arguments)?;
        let line = ["genv"].iter().chain(arguments).copied();
        let line = line.collect::<Vec<_>>().join(" ");
        table.row(&[
            &format!("{line}, on a terminal with the driver"),
            &milliseconds(time),
            &milliseconds(OVERVIEW_BUDGET.as_secs_f64()),
            &verdict(time <= OVERVIEW_BUDGET.as_secs_f64()),
            &format!("{:.2}", time / floor),
            &"",
            &"",
        ]);
    }
    let load = Load::start(Change::Nobody)?;
    load.write_state(&lab.state())?;
    let (time, floor) = overview(lab, &load.simulation, &["devices"])?;
    table.row(&[
        &format!("the same, {PROCESSES} processes on all devices"),
        &milliseconds(time),
        &"",
        &"",
        &format!("{:.2}", time / floor),
        &"",
        &"",
    ]);
    Ok(())
}

/// The time of a command on a terminal, and of a program that does nothing.
fn overview(lab: &Lab, simulation: &Simulation, arguments: &[&str]) -> Result<(f64, f64)> {
    let terminal = Terminal::open()?;
    let nothing = program("genv-bench-nothing")?;
    let command = || {
        let mut command = lab.genv(arguments);
        command
            .env("GENV_NVML_LIBRARY", simulation.library())
            .env("GENV_SCENARIO", simulation.scenario())
            .stdout(terminal.stdio())
            .stderr(terminal.stdio());
        command
    };
    let (floors, times) = in_turn(ROUNDS, || lab.command(&nothing, &[]), command)?;
    Ok((median(times), median(floors)))
}

/// Measures them beside genv 1.4.3's, on a state directory each.
pub(crate) fn pair() -> Result<Table> {
    let lab = Lab::new()?;
    let load = Load::start(Change::Nobody)?;
    let peer = Peer::new(&load.simulation)?;
    state::write(&peer.state_directory(), DEVICES, &[])?;
    let theirs = |arguments: &[&str]| {
        let mut command = peer.command("genv");
        command.args(arguments).stdout(Stdio::null());
        command
    };
    let mut table = Table::new(&["what", "genv", "genv 1.4.3", "times better"]);
    let mut row = |what: &str, ours: f64, theirs: f64| {
        let times = format!("{:.0}", theirs / ours);
        table.row(&[&what, &milliseconds(ours), &milliseconds(theirs), &times]);
    };
    for arguments in COMMANDS {
        let (ours, theirs) = in_turn(ROUNDS_OF_PEER, || lab.genv(arguments), || theirs(arguments))?;
        row(&format!("genv {}", arguments.join(" ")), median(ours), median(theirs));
    }
    let their_cycle = || {
        let mut bash = peer.command("bash");
        bash.args(["--norc", "--noprofile", "-c", LIFE_CYCLE]).stdout(Stdio::null());
        bash
    };
    let (ours, theirs) = in_turn(ROUNDS_OF_PEER, || lab.bash(LIFE_CYCLE), their_cycle)?;
    row("shell --init, activate and deactivate, in bash", median(ours), median(theirs));
    Ok(table)
}

/// How long each takes, in seconds: both alternate, so that other load of the machine affects both.
fn in_turn(rounds: usize, one: impl Fn() -> Command, other: impl Fn() -> Command) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ones.push(seconds(one())?);
        others.push(seconds(other())?);
    }
    Ok((ones, others))
}

fn seconds(mut command: Command) -> Result<f64> {
    command.stdin(Stdio::null());
    let started = Instant::now();
    let status = command.status().with_context(|| format!("{command:?}"))?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(status.success(), "{command:?}: {status}");
    Ok(seconds)
}
