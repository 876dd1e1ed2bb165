//! Which devices an environment gets, by what the GPUs tell of their use.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::nvml_sim::{Simulation, on_device_0};
use genv_tests::patience::{Lines, NO_PATIENCE, ended, output, until};
use genv_tests::process::{Running, Sleeper};
use genv_tests::shell::{Account, Shell};
use genv_tests::state;

/// What `CUDA_VISIBLE_DEVICES` is after each line of a shell, on a machine as this scenario's host describes it.
pub(crate) fn visible(account: &Account, host: &str, lines: &[&str]) -> Result<Vec<String>> {
    let scenario = account.home().join("scenario.yaml");
    fs::write(&scenario, format!("version: 1\nhosts:\n  - {host}\n"))?;
    let scenario = scenario.to_str().context("a path")?;
    let lines: Vec<String> =
        std::iter::once(Shell::Bash.setup()).chain(lines.iter().copied()).map(str::to_owned).collect();
    let outcomes = account.lines(Shell::Bash, &[("GENV_SCENARIO", scenario)], &lines)?;
    let tell = |outcome: &genv_tests::shell::Outcome| {
        let visible = outcome.variable("CUDA_VISIBLE_DEVICES");
        let visible = visible.map(|it| it.to_string_lossy().into_owned());
        match outcome.code {
            0 => visible.unwrap_or_default(),
            code => format!("{code}: {}", outcome.stderr),
        }
    };
    Ok(outcomes[1..].iter().map(tell).collect())
}

#[test]
fn devices_on_which_nobodys_process_runs_come_first_and_lost_ones_never() -> Result<()> {
    let user = Sleeper::start(&[])?;
    let processes = on_device_0(&[user.pid()]);
    let host = format!("{{devices: [{{count: 2}}, {{faults: [{{lost: true}}]}}], processes: [{processes}]}}");
    let lines =
        ["genv activate --gpus 1", "genv attach --count 2", "genv attach --index 2", "genv attach --count 3 --wait"];
    let visible = visible(&Account::new()?, &host, &lines)?;
    ensure!(visible[..2] == ["1", "0,1"], "{visible:?}");
    ensure!(visible[2].starts_with("4: genv: cannot attach device 2: it does not answer"), "{visible:?}");
    ensure!(visible[3].starts_with("4: genv: cannot attach 3 devices"), "{visible:?}");
    Ok(())
}

#[test]
fn gpus_that_hang_keep_nobody_waiting_once_they_are_known() -> Result<()> {
    let account = Account::new()?;
    state::write(&account.state(), 2, &[])?;
    let host = "{devices: [{count: 2}], faults: [{hang: all}]}";
    let brief = format!("export {}={}", NO_PATIENCE.0, NO_PATIENCE.1);
    let visible = visible(&account, host, &[&brief, "genv activate --gpus 1", "genv status"])?;
    ensure!(visible == ["", "0", "0"], "{visible:?}");
    Ok(())
}

/// A line of bash that finds the simulated driver as a real one.
fn on_driver(account: &Account, simulation: &Simulation, line: &str) -> Result<Command> {
    let mut command = account.command("bash")?;
    command.args(["-c", line]).env_remove("GENV_DEVICES");
    command.env("GENV_NVML_LIBRARY", simulation.library()).env("GENV_SCENARIO", simulation.scenario());
    Ok(command)
}

#[test]
fn a_command_names_the_driver_that_it_waits_for_and_shows_its_answer() -> Result<()> {
    let account = Account::new()?;
    state::write(&account.state(), 2, &[])?;
    let host = |faults: &str| format!("version: 1\nhosts:\n- devices: [{{count: 2}}]\n  faults: [{faults}]\n");
    let simulation = Simulation::new(&host("{hang: all}"));
    let line = "exec script --quiet --return --command 'genv free' /dev/null";
    let mut asking = on_driver(&account, &simulation, line)?;
    asking.env("SHELL", "/bin/sh").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut asking = Running::spawn(&mut asking)?;
    let shown = Lines::of(asking.stdout.take().context("no stdout")?);
    let first = shown.next_line()?;
    ensure!(first.contains("waiting for the driver") && first.contains("nvidia-persistenced"), "{first}");
    simulation.rewrite(&host(""));
    let rows = [shown.next_line()?, shown.next_line()?, shown.next_line()?];
    ensure!(rows[1..].iter().all(|row| row.trim_end().ends_with(" free")), "{rows:?}");
    ensure!(ended(&mut asking)?.success());
    Ok(())
}

#[test]
fn a_command_that_waits_for_the_gpus_does_not_hold_the_lock() -> Result<()> {
    let account = Account::new()?;
    let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{count: 4}]\n  faults: [{hang: all}]\n");
    // Only the driver knows the devices.
    let mut asking = on_driver(&account, &simulation, "exec genv exec --gpus 1 -- true")?;
    let asking = Running::spawn(asking.stdin(Stdio::null()).stderr(Stdio::null()))?;
    until("it asks the GPUs", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", asking.id()))?.flatten();
        let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        Ok(names.any(|name| name.trim() == "gpu"))
    })?;
    let line = "genv envs activate --eid e1 --uid $(id -u) --pid $$ && genv envs config --eid e1 gpus --count 2";
    let done = output(on_driver(&account, &simulation, line)?.envs([NO_PATIENCE]))?;
    ensure!(done.status.success(), "{done:?}");
    Ok(())
}

#[test]
fn invented_devices_and_real_ones_are_never_in_one_state() -> Result<()> {
    let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{count: 2, memory: 16gi}]\n");
    let run = |account: &Account, invented: bool, line: &str| -> Result<(Option<i32>, String)> {
        let mut command = on_driver(account, &simulation, line)?;
        if invented {
            command.env("GENV_DEVICES", "4").env_remove("GENV_NVML_LIBRARY").env_remove("GENV_SCENARIO");
        }
        let done = output(&mut command)?;
        let said = String::from_utf8(done.stdout)? + &String::from_utf8(done.stderr)?;
        Ok((done.status.code(), said))
    };
    for first in [true, false] {
        let account = Account::new()?;
        let (code, said) = run(&account, first, "genv exec --gpus 1 -- true")?;
        ensure!(code == Some(0), "{said}");
        let files = || fs::read(account.state().join(state::FILE));
        let before = files()?;
        for line in ["genv exec --gpus 1 -- true", "genv devices --reset"] {
            let (code, said) = run(&account, !first, line)?;
            let kind = if first { "simulated" } else { "real" };
            ensure!(code == Some(1) && said.contains(&format!("its devices are {kind}")), "{line}: {said}");
            ensure!(files()? == before, "{line}");
        }
        let (code, said) = run(&account, first, "genv exec --gpus 2 -- true")?;
        ensure!(code == Some(0), "{said}");
        let (_, said) = run(&account, first, "genv doctor")?;
        ensure!(said.contains("simulated") == first, "{said}");
    }
    Ok(())
}
