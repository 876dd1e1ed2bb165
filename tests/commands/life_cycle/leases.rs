//! Leases: until when an environment's user wants it, as its user and others see it.

use anyhow::{Result, ensure};
use genv_tests::shell::{Account, Shell};
use serde_json::Value;

use crate::life_cycle::running::run;

/// What a script prints in an environment with a lease of 8 hours and one device. It is early in the morning there, so that
/// no lease of some hours ends on another day.
fn within(account: &Account, script: &str) -> Result<(i32, String, String)> {
    let setup = Shell::Bash.setup();
    let machine = "export GENV_DEVICES=2 TZ=HERE$(($(date -u +%H | sed s/^0//) - 6))";
    let script = format!("{machine}; {setup}; genv activate --id e --gpus 1 --for 8h; {script}");
    account.script("bash", &[], &script)
}

/// Defines a function that prints the end of the lease: hour and minute.
const MOMENT: &str = "end() { date -d @$(genv status --json | grep lease | tr -dc 0-9. | cut -d. -f1) +%H:%M; }";

#[test]
fn everybody_sees_until_when_an_environment_is_wanted() -> Result<()> {
    let account = Account::new()?;
    let script = format!(
        "{MOMENT}; wanted=$(end); for shown in 'status' 'envs' 'devices ps' 'who 0'; do \
         genv $shown | grep -q \"$wanted\" || {{ echo \"$wanted in:\"; genv $shown; }}; done; \
         genv envs --format csv; genv devices --format csv; genv status --json; genv envs --json; genv who 0 --json"
    );
    let (code, stdout, stderr) = within(&account, &script)?;
    ensure!(code == 0 && stdout.starts_with("ID,USER,NAME,CREATED,PID(S)\ne,"), "{stdout}{stderr}");
    let devices = regex::Regex::new(r"\nID,ENV ID,ENV NAME,ATTACHED\n0,e,,\d+ (second|minute)s? ago\n1,,,\n")?;
    ensure!(devices.is_match(&stdout), "{stdout}");
    let ends = stdout.matches("\"lease_end_timestamp_seconds\": 1").count();
    ensure!(ends == 3, "{stdout}");
    Ok(())
}

#[test]
fn a_lease_is_extended_from_its_end() -> Result<()> {
    let account = Account::new()?;
    let end = "genv status --json | grep lease | tr -dc 0-9.";
    let script = format!(
        "first=$({end}); genv extend 2h >/dev/null; second=$({end}); genv extend 1d --eid e | head -c 31; third=$({end}); \
         echo; echo $((${{second%.*}} - ${{first%.*}})) $((${{third%.*}} - ${{second%.*}}))"
    );
    let (code, stdout, stderr) = within(&account, &script)?;
    ensure!(code == 0 && stdout == "Environment e has a lease until\n7200 86400\n", "{stdout}{stderr}");
    Ok(())
}

#[test]
fn a_lease_that_ended_takes_nothing_away() -> Result<()> {
    let account = Account::new()?;
    let script = "genv deactivate; genv activate --id f --gpus 1 --for 1s; until genv status | grep '^Lease     ended '; \
         do sleep 0.1; done; genv envs | head -n 2 | tail -n 1 | grep -c ended; echo $CUDA_VISIBLE_DEVICES";
    let (code, stdout, stderr) = within(&account, script)?;
    let stdout: Vec<&str> = stdout.lines().collect();
    ensure!(code == 0 && stdout.len() == 3 && stdout[1..] == ["1", "0"], "{stdout:?}{stderr}");
    Ok(())
}

#[test]
fn exec_has_a_lease_too_and_what_is_none_is_refused() -> Result<()> {
    let account = Account::new()?;
    let words = ["exec", "--for", "90m", "--", "genv", "status", "--json"];
    let status: Value = serde_json::from_str(&run(&account, &words)?.1)?;
    ensure!(status["lease_end_timestamp_seconds"].is_f64(), "{status}");
    for (bad, why) in [("8", "lacks a unit: write 8s, 8m, 8h or 8d"), ("10000d", "a lease lasts 1s to 366 days")] {
        for command in [&["exec", "--for", bad, "true"][..], &["extend", bad]] {
            let (code, _, stderr) = run(&account, command)?;
            ensure!(code == 2 && stderr.contains(why), "{command:?}: {stderr}");
        }
    }
    let (code, stdout, stderr) = within(&account, "genv extend 300d; genv extend 100d")?;
    ensure!(
        code == 1 && stderr.contains("the lease would end in 401 days, and the limit is 366 days"),
        "{stdout}{stderr}"
    );
    ensure!(run(&account, &["extend", "1h"])?.0 == 3);
    Ok(())
}

#[test]
fn who_waits_and_who_looks_for_devices_sees_when_leases_end() -> Result<()> {
    let account = Account::new()?;
    let script = format!(
        "{MOMENT}; genv exec --gpus 2 --wait -- true 2>waits & \
         until grep -q 'next in the queue' waits; do sleep 0.05; done; wanted=$(end); \
         genv queue --no-header | grep -c \"$wanted$\"; genv queue --json | grep -c 'expected_timestamp_seconds\": 1'; \
         grep -c \"next in the queue, expected at $wanted\" waits; genv free 2>&1 | grep -c \"by leases: device 0 at $wanted\"; \
         genv free --json | grep -A 3 '\"expected\"' | grep -c '\"timestamp_seconds\": 1'; genv deactivate; wait"
    );
    let (code, stdout, stderr) = within(&account, &script)?;
    ensure!(code == 0 && stdout == "1\n1\n1\n1\n1\n", "{stdout}{stderr}");
    let script = "genv attach --count 1; genv exec --gpus 2 --wait -- true 2>/dev/null & \
         until genv queue --json | grep -q '\"pid\"'; do sleep 0.05; done; genv queue --no-header; genv deactivate; wait";
    let setup = Shell::Bash.setup();
    let script = format!("export GENV_DEVICES=2; {setup}; genv activate; {script}");
    let (_, stdout, stderr) = account.script("bash", &[], &script)?;
    ensure!(stdout.trim_end().ends_with(" not known"), "{stdout}{stderr}");
    Ok(())
}
