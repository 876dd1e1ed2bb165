use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, ends_outsiders, is_alive};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;

use crate::run::outsider;

const AT_ONCE: &str = "for: 0s, warn: []";

#[test]
fn promise_09_a_driver_that_hangs_stops_nothing_else_and_nothing_is_done_on_old_facts() -> Result<()> {
    // The more time a rule leaves, the slower the machine may be on which the driver hangs before.
    for seconds in [3_u32, 12, 48] {
        if stops_nothing_else(seconds)? {
            return Ok(());
        }
    }
    anyhow::bail!("the driver hung too late, thrice")
}

/// With a rule that leaves so many seconds. False: its time was over before the driver hung.
fn stops_nothing_else(seconds: u32) -> Result<bool> {
    let (process, setup) = outsider("enforce", &format!("for: {seconds}s, warn: []"))?;
    let healthy = used_by(&[process.pid()]);
    let hanging = format!("{healthy}  faults: [{{hang: all}}]\n");
    let enforcer = setup.start()?;
    let found = enforcer.wait_for_status("a rule is broken", |status| {
        status["violations"][0]["stage"] == "pending" || !is_alive(process.pid())
    })?;
    let due = found["violations"][0]["at_seconds"].as_f64().unwrap_or_default();
    enforcer.setup().rewrite_scenario(&hanging)?;
    let blind = enforcer.wait_for_status("it is blind", |status| status["blind"][0]["source"] == "gpu")?;
    if blind["blind"][0]["since_seconds"].as_f64() > Some(due - 1.0) {
        return Ok(false);
    }
    let is_late = |status: &serde_json::Value| {
        let now = status["updated_timestamp_seconds"].as_f64();
        now.unwrap_or_default() > due + 1.0
    };
    enforcer.wait_for_status("it would have been due", is_late)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    assert_eq!(enforcer.get("/-/healthy")?.status, 200);
    ensure!(enforcer.log().contains("a collector fails"), "{}", enforcer.log());
    enforcer.setup().rewrite_scenario(&healthy)?;
    ends(process.pid())?;

    // Hanging again, it ends when it is told to: the driver never answers.
    enforcer.setup().rewrite_scenario(&hanging)?;
    enforcer.wait_for_cycles(2)?;
    let (status, _) = enforcer.terminate()?;
    ensure!(status.success(), "{status}");
    Ok(true)
}

#[test]
fn damaged_files_of_its_own_are_said_and_stop_nothing() -> Result<()> {
    let (process, setup) = outsider("enforce", AT_ONCE)?;
    fs::write(setup.state_directory().join("history.json"), "{\"ver")?;
    fs::write(setup.state_directory().join("control.json"), "{")?;
    let enforcer = setup.start()?;
    let status = enforcer
        .wait_for_status("it is said", |status| status["faults"].as_array().is_some_and(|faults| faults.len() >= 2))?;
    let faults = status["faults"].to_string();
    ensure!(faults.contains("history.json.damaged"), "{faults}");
    ensure!(faults.contains("control.json"), "{faults}");
    // A pause may have been told there.
    enforcer.wait_for_cycles(2)?;
    ensure!(is_alive(process.pid()));
    let log = enforcer.log();
    assert_eq!(log.matches("control.json: it is damaged").count(), 1, "{log}");
    enforcer.setup().said(&["pause", "--for", "0"])?;
    ends(process.pid())
}

#[test]
fn hostile_names_break_no_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = "x\n\"}\u{1b}[2\u{9b}J\u{202e}";
    let program = folder.path().join(name);
    fs::copy("/bin/sleep", &program)?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(&program);
    command.env_clear().env("PATH", "/bin").arg("1000000");
    let process = Sleeper::spawn(as_victim(&mut command))?;
    let setup = Setup::new(&used_by(&[process.pid()]), &ends_outsiders("enforce", AT_ONCE))?;
    let enforcer = setup.flag("--log.format=json").start()?;
    ends(process.pid())?;
    enforcer.wait_for_cycles(1)?;
    for line in enforcer.log().lines() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
        ensure!(parsed.is_ok(), "{line:?}");
    }
    ensure!(!enforcer.audit()?.is_empty());
    enforcer.scrape()?;
    let pid = process.pid().to_string();
    let config = enforcer.setup().config_flag();
    let explain = ["explain", &config, &pid, "--json"];
    for words in [&["status"][..], &["status", "--json"], &explain[..3], &explain] {
        let output = enforcer.setup().output(words)?;
        let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
        let controls = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
        ensure!(!text.contains(controls), "{text:?}");
    }
    Ok(())
}

#[test]
fn without_capabilities_it_says_what_it_cannot_do() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let own = setup.command(&["run", "--once", "--gpu.source=simulated", &setup.config_flag()])?;
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]);
    if !rustix::process::geteuid().is_root() {
        // Who runs the tests has none.
        command = Command::new("env");
    }
    command.arg(own.get_program()).args(own.get_args());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = genv_tests::patience::output(&mut command)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    for capability in ["CAP_KILL", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
        ensure!(said.contains(capability), "{said}");
    }
    Ok(())
}
