//! Jobs that outlive the shell that started them.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::{Lines, ended, output, until};
use genv_tests::process::{Orphan, Running, signal};
use genv_tests::shell::{Account, Shell};
use genv_tests::state;
use rustix::process::Signal;
use serde_json::Value;

use crate::life_cycle::members::listed;

/// A machine with four devices, of which these processes use the first.
pub(crate) fn driver(account: &Account, pids: &[u32]) -> Result<()> {
    let process = |pid| format!("{{pid: {pid}, devices: [{{index: 0, memory: 1gi, utilization: 0.9}}]}}");
    let processes: Vec<String> = pids.iter().map(process).collect();
    simulate(account, &format!("devices: [{{count: 4, memory: 16gi}}]\n  processes: [{}]", processes.join(", ")))
}

pub(crate) fn simulate(account: &Account, host: &str) -> Result<()> {
    let new = account.home().join("driver.new");
    fs::write(&new, format!("version: 1\nhosts:\n- {host}\n"))?;
    Ok(fs::rename(new, account.home().join("driver.yaml"))?)
}

fn bash(account: &Account, script: &str) -> Result<Command> {
    let mut command = account.command("bash")?;
    command.args(["--norc", "--noprofile", "-c", script]);
    command.env("GENV_SCENARIO", account.home().join("driver.yaml"));
    Ok(command)
}

/// What a line of a shell prints; fails unless it ends with this code.
pub(crate) fn printed(account: &Account, script: &str, code: i32) -> Result<String> {
    let done = output(&mut bash(account, script)?)?;
    let said = String::from_utf8(done.stderr)?;
    ensure!(done.status.code() == Some(code), "{script}: {:?} {said}", done.status);
    Ok(String::from_utf8(done.stdout)?)
}

pub(crate) fn leave_behind(account: &Account, start: &str) -> Result<Orphan> {
    leave_behind_after(account, start, "exec sleep 1000", "true")
}

/// As [`leave_behind`], of a job that runs this line; the shell runs `last` before it ends.
pub(crate) fn leave_behind_after(account: &Account, start: &str, line: &str, last: &str) -> Result<Orphan> {
    fs::write(account.home().join("run"), format!("echo $$ > ~/job; {line}\n"))?;
    let _ = fs::remove_file(account.home().join("job"));
    let script = format!(
        "{}\ngenv activate --id e1 --gpus 1\n{}\nuntil [ -s ~/job ]; do sleep 0.01; done\n{last}",
        Shell::Bash.setup(),
        start.replace("JOB", "sh ~/run > /dev/null 2>&1 < /dev/null")
    );
    printed(account, &script, 0)?;
    let pid = fs::read_to_string(account.home().join("job"))?;
    Ok(Orphan(pid.trim().parse().context("a pid")?))
}

const STARTS: [&str; 7] = [
    "nohup JOB &",
    "setsid JOB &",
    "JOB & disown",
    "(setsid JOB &)",
    "trap '' HUP; JOB &",
    "tmux -S ~/tmux -f /dev/null new-session -d 'sh ~/run'",
    "mkdir -m 700 ~/screens; SCREENDIR=~/screens screen -dmS job sh ~/run",
];

#[test]
fn a_job_on_a_device_keeps_its_environment_when_the_shell_ends() -> Result<()> {
    for start in STARTS {
        let account = Account::new()?;
        driver(&account, &[])?;
        let job = leave_behind(&account, start)?;
        driver(&account, &[job.0])?;
        for _ in 0..2 {
            let found = printed(&account, "genv devices find --eid e1", 0)?;
            ensure!(found == "0\n", "{start}: {found}");
            let others = "genv exec --gpus 3 -- printenv CUDA_VISIBLE_DEVICES";
            ensure!(printed(&account, others, 0)? == "1,2,3\n", "{start}");
        }
        printed(&account, "genv exec --gpus 4 -- true", 4)?;
        let environments = listed(&account, "environments")?;
        ensure!(state::member_pids(&environments[0]).contains(&job.0.into()), "{environments:?}");
        signal(job.0, Signal::KILL)?;
        let all = "genv exec --gpus 4 -- printenv CUDA_VISIBLE_DEVICES";
        until("the devices are free", || Ok(printed(&account, all, 0).is_ok()))?;
        ensure!(printed(&account, "genv envs --no-header", 0)?.is_empty());
    }
    Ok(())
}

#[test]
fn a_process_that_a_command_recorded_keeps_no_device_without_a_context() -> Result<()> {
    let commands = "status|devices|devices find --eid e1|envs|envs find --pid $$|envs query --query eid|free|who 0|\
        usage snapshot|attach --count 1|config gpus 1|config|lock true|exec --gpus 1 -- true|activate --id e1";
    for last in commands.split('|').map(|command| format!("genv {command}")) {
        let account = Account::new()?;
        driver(&account, &[])?;
        let agent = leave_behind_after(&account, "setsid JOB &", "exec sleep 1000", &last)?;
        let environments = listed(&account, "environments")?;
        ensure!(state::member_pids(&environments[0]).contains(&agent.0.into()), "{last}: {environments:?}");
        let all = "genv exec --gpus 4 -- printenv CUDA_VISIBLE_DEVICES";
        ensure!(printed(&account, all, 0)? == "0,1,2,3\n", "{last}");
        ensure!(printed(&account, "genv envs --no-header", 0)?.is_empty());
    }
    Ok(())
}

#[test]
fn a_job_that_overwrote_its_variables_is_in_its_environment_if_a_command_recorded_it() -> Result<()> {
    let account = Account::new()?;
    driver(&account, &[])?;
    let title = "exec perl -e '$0 = q(x) x 9000; open F, q(>), q(titled); close F; sleep 1000'";
    let last = "until [ -e ~/titled ]; do sleep 0.01; done; genv status";
    let job = leave_behind_after(&account, "nohup JOB &", title, last)?;
    driver(&account, &[job.0])?;
    let shown: Value = serde_json::from_str(&printed(&account, "genv snapshot", 0)?)?;
    let processes = shown.to_string();
    ensure!(!processes.contains("environ_overwritten"), "{shown:#}");
    ensure!(printed(&account, "genv devices find --eid e1", 0)? == "0\n");
    // The job is known to have no context, and so the environment ends; an unknown process would keep it.
    driver(&account, &[])?;
    let found = printed(&account, "GENV_LINGER=0s genv devices find --eid e1", 0)?;
    ensure!(found == "\n", "{found}");
    Ok(())
}

#[test]
fn an_environment_goes_on_for_the_linger_time_after_the_last_context_of_a_job_that_lives() -> Result<()> {
    for seen_by in ["genv devices find --eid e1", "genv exec --gpus 3 -- true"] {
        let account = Account::new()?;
        driver(&account, &[])?;
        let job = leave_behind(&account, "nohup JOB &")?;
        driver(&account, &[job.0])?;
        printed(&account, seen_by, 0)?;
        driver(&account, &[])?;
        for _ in 0..2 {
            let found = printed(&account, "genv devices find --eid e1", 0)?;
            ensure!(found == "0\n", "{seen_by}: {found}");
            printed(&account, "genv exec --gpus 4 -- true", 4)?;
        }
        // A snapshot, which changes nothing, shows the same.
        let snapshot = printed(&account, "genv snapshot", 0)?;
        ensure!(snapshot.contains("\"eid\":\"e1\""), "{snapshot}");
        let found = printed(&account, "GENV_LINGER=0s genv devices find --eid e1", 0)?;
        ensure!(found == "\n", "{seen_by}: {found}");
        printed(&account, "GENV_LINGER=0s genv exec --gpus 4 -- true", 0)?;
        ensure!(printed(&account, "genv envs --no-header", 0)?.is_empty());
    }
    Ok(())
}

#[test]
fn a_list_of_processes_that_the_driver_itself_contradicts_ends_no_job() -> Result<()> {
    let lists = "nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses";
    for fault in [
        "{wrong: [nvmlDeviceGetComputeRunningProcesses], error: unknown}".to_owned(),
        format!("{{wrong: [nvmlDeviceGetComputeRunningProcesses, {lists}], count: 0}}"),
    ] {
        let account = Account::new()?;
        driver(&account, &[])?;
        let job = leave_behind(&account, "nohup JOB &")?;
        let display = 1;
        let host = format!(
            "devices: [{{memory: 16gi, faults: [{fault}]}}, {{count: 3}}]\n  processes:\n  \
             - {{pid: {}, devices: [{{index: 0, memory: 4gi, utilization: 0.9}}]}}\n  \
             - {{pid: {display}, type: graphics, devices: [{{index: 0, memory: 50mi}}]}}",
            job.0
        );
        simulate(&account, &host)?;
        let found = printed(
            &account,
            "export GENV_LINGER=1ms; genv envs activate --eid e2 --uid $(id -u) --pid $$; genv devices find --eid e1",
            0,
        )?;
        ensure!(found == "0\n", "{fault}: {found}");
    }
    Ok(())
}

/// A shell in an environment with a device, its stderr, and the job whose pid `start` prints. It runs `last` when its input
/// ends.
pub(crate) fn shell_with_a_job(account: &Account, start: &str, last: &str) -> Result<(Running, Lines, Orphan)> {
    driver(account, &[])?;
    let script = format!("{}\ngenv activate --id e1 --gpus 1\n{start}\nread line\n{last}", Shell::Bash.setup());
    let mut shell = bash(account, &script)?;
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = Running::spawn(&mut shell)?;
    let lines = Lines::of(shell.stdout.take().context("a pipe")?);
    let complaints = Lines::of(shell.stderr.take().context("a pipe")?);
    let job = Orphan(lines.next_line()?.trim().parse()?);
    Ok((shell, complaints, job))
}

/// Starts a job, and waits until it is another program than the shell.
const SLEEPS: &str = "sleep 1000 > /dev/null 2>&1 < /dev/null & until grep -q sleep /proc/$!/comm; do sleep 0.01; done";

#[test]
fn deactivating_names_a_job_on_a_device_and_ends_it_or_waits_for_it() -> Result<()> {
    for flag in ["", "--end", "--wait"] {
        let account = Account::new()?;
        let start = format!("{SLEEPS}; echo $!");
        let (mut shell, complaints, job) = shell_with_a_job(&account, &start, &format!("genv deactivate {flag}"))?;
        if flag == "--wait" {
            simulate(&account, "devices: [{faults: [{not_supported: [processes]}]}, {}, {}, {}]")?;
        } else {
            driver(&account, &[job.0])?;
        }
        drop(shell.stdin.take());
        if flag == "--wait" {
            // The wait goes on while the driver lists no processes.
            ensure!(complaints.next_line()?.contains("the processes are unknown"));
            driver(&account, &[job.0])?;
            ensure!(complaints.next_line()?.contains("waiting: process"));
            ensure!(printed(&account, "genv devices find --eid e1", 0)? == "0\n");
            driver(&account, &[])?;
        }
        ensure!(ended(&mut shell)?.success(), "{flag}");
        if flag.is_empty() {
            let line = complaints.next_line()?;
            let expected = format!("process {} (sleep) uses device 0", job.0);
            ensure!(line.contains(&expected), "{line}");
        }
        ensure!(printed(&account, "genv envs --no-header", 0)?.is_empty());
        ensure!(is_alive(job.0) == (flag != "--end"), "{flag}");
    }
    Ok(())
}

#[test]
fn deactivating_the_last_shell_ends_the_jobs_of_those_before_it() -> Result<()> {
    let account = Account::new()?;
    let job = format!("{SLEEPS}; genv status > /dev/null; echo $!");
    fs::write(account.home().join("second"), format!("{}\ngenv activate --id e1\n{job}", Shell::Bash.setup()))?;
    let start = "env -u GENV_ENVIRONMENT_ID bash --norc ~/second";
    let (mut shell, _complaints, job) = shell_with_a_job(&account, start, "genv deactivate --end")?;
    driver(&account, &[job.0])?;
    drop(shell.stdin.take());
    ensure!(ended(&mut shell)?.success());
    ensure!(!is_alive(job.0));
    ensure!(printed(&account, "genv envs --no-header", 0)?.is_empty());
    Ok(())
}

#[test]
fn exec_ends_its_environment_with_its_command_and_names_what_works_on_its_device() -> Result<()> {
    let account = Account::new()?;
    for works in [true, false] {
        driver(&account, &[])?;
        let _ = fs::remove_file(account.home().join("job"));
        let _ = fs::remove_file(account.home().join("go"));
        let line = "setsid sleep 1000 > /dev/null 2>&1 < /dev/null & \
             until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $! > ~/job; \
             until [ -e ~/go ]; do sleep 0.01; done; exit 3";
        let script = format!("genv exec --eid e1 --gpus 1 -- sh -c '{line}'");
        let mut command = bash(&account, &script)?;
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut exec = Running::spawn(&mut command)?;
        let pid = || fs::read_to_string(account.home().join("job")).ok()?.trim().parse().ok();
        until("the job runs", || Ok(pid().is_some()))?;
        let job = Orphan(pid().context("a pid")?);
        let working = [job.0];
        driver(&account, if works { &working } else { &[] })?;
        fs::write(account.home().join("go"), "")?;
        let said = Lines::of(exec.stderr.take().context("no stderr")?);
        let code = ended(&mut exec)?.code();
        ensure!(code == Some(3), "{code:?}");
        let said = std::iter::from_fn(|| said.next_line().ok()).collect::<Vec<_>>().join("\n");
        let named = format!("process {} (sleep) uses device 0, which is free now", job.0);
        ensure!(said.contains(&named) == works, "{said}");
        ensure!(is_alive(job.0));
        driver(&account, &[job.0])?;
        ensure!(printed(&account, "genv devices find --eid e1", 0)?.trim().is_empty());
        let environments = listed(&account, "environments")?;
        ensure!(environments.is_empty(), "{environments:?}");
    }
    Ok(())
}
