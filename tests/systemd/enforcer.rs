//! genv-enforcer.service.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, USER};
use genv_tests::patience::until;
use serde_json::Value;

use crate::{
    DAC_READ_SEARCH, KILL, REFUSED, SYS_PTRACE, boot, is_confined, is_watched, opens_the_driver_alone, started,
    stops_and_is_started_by_its_socket,
};

const UNIT: &str = "genv-enforcer";
const CONFIG: &str = "etc/genv/enforcer.yaml";
const PORT: u16 = 9821;

/// What peers of the same kind reach, rounded up.
const MOST_EXPOSURE: f64 = 2.0;

/// What finds the entries of an event, as the administrator reads it in docs/enforcement.md.
fn of(event: &str) -> Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(folder.join("../docs/enforcement.md"))?;
    let start = format!("| `{event}` | `");
    let id = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix("` |"));
    Ok(format!("MESSAGE_ID={}", id.with_context(|| start.clone())?))
}

/// The one entry that all of these match, once it is there.
fn entry(machine: &Machine, matches: &[&str]) -> Result<Value> {
    let mut found = Vec::new();
    until("the journal has it", || {
        found = machine.journal(matches)?;
        Ok(!found.is_empty())
    })
    .with_context(|| format!("{matches:?}: {}", machine.log(UNIT)))?;
    ensure!(found.len() == 1, "{found:?}");
    found.pop().context("no entry")
}

#[test]
fn promise_19_it_runs_as_its_user_with_three_capabilities_and_the_devices_that_it_needs() -> Result<()> {
    let machine = boot()?;
    started(&machine, UNIT)?;
    machine.wait_for_status(UNIT, |status| status.starts_with("dry-run: 4 rules, "))?;
    let said = machine.run(&["systemctl", "status", UNIT])?;
    ensure!(said.contains("Status: \"dry-run: 4 rules, 0 violations\""), "{said}");
    is_confined(&machine, UNIT, "genv", KILL | SYS_PTRACE | DAC_READ_SEARCH)?;
    let uid: u32 = machine.run(&["id", "--user", "genv"])?.trim().parse()?;
    for (path, mode) in [
        ("var/lib/genv-enforcer", 0o40_755),
        ("var/lib/genv-enforcer/status.json", 0o100_644),
        ("var/lib/genv-enforcer/run.lock", 0o100_600),
    ] {
        let file = machine.path(path).metadata()?;
        ensure!(file.mode() == mode && file.uid() == uid, "{path}: {file:?}");
    }
    let said = machine.run(&["setpriv", "--reuid", USER, "--clear-groups", "genv-enforcer", "status"])?;
    ensure!(said.contains("dry-run") && !said.contains("CAP_"), "{said}");
    machine.judge(UNIT, MOST_EXPOSURE)?;
    // Terminals can be written to, also where none is behind the device.
    let found = machine.open_among(UNIT, ">/dev/ttyS136")?;
    ensure!(found != REFUSED, "ttyS136: {found:?}");
    opens_the_driver_alone(&machine, UNIT)
}

#[test]
fn it_is_reloaded_watched_stopped_and_started_by_its_socket() -> Result<()> {
    let machine = boot()?;
    started(&machine, UNIT)?;
    entry(&machine, &[&of("started")?, "_SYSTEMD_UNIT=genv-enforcer.service"])?;
    let pid = machine.main_pid(UNIT)?;
    machine.write(CONFIG, "version: 1\ninterval: 100ms\nrules: [{kind: max-age, limit: 7d}]\n")?;
    machine.run(&["systemctl", "reload", UNIT])?;
    machine.wait_for_status(UNIT, |status| status.starts_with("dry-run: 1 rules"))?;
    ensure!(machine.main_pid(UNIT)? == pid, "it was started again");
    stops_and_is_started_by_its_socket(&machine, UNIT, PORT)?;
    entry(&machine, &[&of("stopped")?])?;
    is_watched(&machine, UNIT)?;
    let scrape = machine.scrape(PORT)?;
    ensure!(!scrape.all("genv_enforcer_build_info", &[]).is_empty(), "{scrape:?}");
    Ok(())
}

#[test]
fn a_configuration_that_cannot_be_used_is_not_tried_again() -> Result<()> {
    let machine = boot()?;
    machine.write(CONFIG, "version: 1\nrules: [{kind: no-such-kind}]\n")?;
    let output = machine.output(&["systemctl", "start", UNIT])?;
    ensure!(!output.status.success(), "it started");
    for (property, value) in [("ActiveState", "failed"), ("ExecMainStatus", "2"), ("NRestarts", "0")] {
        let found = machine.property(UNIT, property)?;
        ensure!(found == value, "{property} {found}: {}", machine.log(UNIT));
    }
    let log = machine.log(UNIT);
    ensure!(log.contains("enforcer.yaml:2:"), "{log}");
    Ok(())
}

const ENDS_OUTSIDERS: &str = "version: 1\nmode: enforce\ninterval: 100ms\nbreaker: {share_of_users: 1}\n\
     rules: [{kind: non-env-processes, action: terminate, for: 0s, warn: [1s]}]\n";

const TAKES_DEVICES: &str = "version: 1\nmode: enforce\ninterval: 100ms\nbreaker: {share_of_users: 1}\n\
     rules: [{kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}]\n";

#[test]
fn it_tells_a_user_in_the_terminal_ends_the_process_and_takes_a_device_of_an_environment() -> Result<()> {
    let machine = boot()?;
    let pid = machine.start(
        "login",
        &["script", "--quiet", "--flush", "--command", "exec sleep 1000000", "screen"],
        "sleep",
    )?;
    machine.use_devices(&[pid])?;
    machine.write(CONFIG, ENDS_OUTSIDERS)?;
    started(&machine, UNIT)?;
    until("it has ended", || Ok(!machine.is_alive(pid))).with_context(|| machine.log(UNIT))?;
    let done = entry(&machine, &[&of("action")?, "GENV_RESULT=done"])?;
    for (field, value) in [
        ("GENV_ACTION", "terminate"),
        ("GENV_USERNAME", USER),
        ("GENV_HOSTNAME", "gpu01"),
        ("GENV_TARGET", &format!("process {pid} (sleep)")),
        ("GENV_RULE", "non-env-processes"),
        ("_SYSTEMD_UNIT", "genv-enforcer.service"),
    ] {
        ensure!(done[field] == value, "{field}: {done}");
    }
    let audit = machine.read("var/lib/genv-enforcer/audit.jsonl")?;
    let results: Vec<_> =
        audit.lines().map(|line| Ok(serde_json::from_str::<Value>(line)?["result"].clone())).collect::<Result<_>>()?;
    ensure!(results == ["intended", "done"], "{audit}");
    let screen = machine.read(&format!("home/{USER}/screen"))?;
    ensure!(screen.contains("non-env-processes") && screen.contains(&pid.to_string()), "{screen}");

    machine.use_devices(&[])?;
    let words = ["genv", "exec", "--gpus", "1", "--", "sleep", "1000000"];
    let pid = machine.start("job", &words, "sleep")?;
    let is_attached = || -> Result<bool> { Ok(machine.run(&["genv", "devices", "--json"])?.contains("\"eid\"")) };
    ensure!(is_attached()?, "the environment has no device");
    machine.write(CONFIG, TAKES_DEVICES)?;
    machine.run(&["systemctl", "reload", UNIT])?;
    entry(&machine, &[&of("action")?, "GENV_RESULT=done", "GENV_RULE=max-devices-per-user"])?;
    ensure!(!is_attached()?, "{}", machine.log(UNIT));
    ensure!(machine.is_alive(pid), "it does not use the device");
    Ok(())
}
