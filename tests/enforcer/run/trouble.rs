//! Drivers that hang, files that are damaged, names that are hostile.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, ends_outsiders, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

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
    let process = sleeper(&[])?;
    let healthy = used_by(&[process.pid()]);
    let hanging = format!("{healthy}  faults: [{{hang: all}}]\n");
    let rule = format!("for: {seconds}s, warn: []");
    let setup = Setup::new(&healthy, &ends_outsiders("enforce", &rule))?;
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
fn a_damaged_environment_stops_nothing_else() -> Result<()> {
    let member = sleeper(&[])?;
    let inside = sleeper(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    let setup = Setup::new(
        &used_by(&[inside.pid()]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\n\
         rules:\n- {kind: env-devices, action: terminate, for: 0s, warn: []}\n",
    )?;
    let environment = Environment::new("e1", victim(), member.pid(), &[1]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let path = setup.genv_directory().join("envs.json");
    let mut envs: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    let list = envs["envs"].as_array_mut().context("no list")?;
    list.push(serde_json::json!({"eid": 5, "pids": "none"}));
    fs::write(&path, envs.to_string())?;
    let _enforcer = setup.start()?;
    ends(inside.pid())?;
    ensure!(is_alive(member.pid()));
    Ok(())
}

#[test]
fn damaged_files_of_its_own_are_said_and_stop_nothing() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), &ends_outsiders("enforce", AT_ONCE))?;
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
    enforcer.setup().said(&["pause", "--for", "0"])?;
    ends(process.pid())?;
    Ok(())
}

#[test]
fn what_stays_wrong_is_said_once() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), &ends_outsiders("dry-run", AT_ONCE))?;
    fs::write(setup.state_directory().join("control.json"), "{")?;
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(1)?;
    // From now on no status is written any more.
    let status = enforcer.setup().state_directory().join("status.json");
    fs::remove_file(&status)?;
    fs::create_dir(&status)?;
    let written = "status.json: Is a directory";
    until("it is said", || Ok(enforcer.log().contains(written)))?;
    let cycles = || {
        let scrape = enforcer.scrape()?;
        scrape.value("genv_enforcer_last_cycle_timestamp_seconds", &[])
    };
    for _ in 0..3 {
        let last = cycles()?;
        until("a cycle ends", || Ok(cycles()? > last))?;
    }
    let log = enforcer.log();
    for part in [written, "control.json: it is damaged"] {
        assert_eq!(log.matches(part).count(), 1, "{log}");
    }
    Ok(())
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
    let config = format!("--config={}", enforcer.setup().config().display());
    for words in
        [&["status"][..], &["status", "--json"], &["explain", &config, &pid], &["explain", "--json", &config, &pid]]
    {
        let output = enforcer.setup().output(words)?;
        let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
        let controls = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
        ensure!(!text.contains(controls), "{text:?}");
    }
    Ok(())
}

#[test]
fn a_signal_that_is_not_permitted_is_told_and_counted_once_and_never_tried_again() -> Result<()> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[]), &ends_outsiders("enforce", AT_ONCE))?;
    let enforcer = setup.flag("--log.format=json").start()?;
    // The kernel answers as to a program without CAP_KILL.
    let mut denying = Command::new("strace")
        .args(["-f", "-e", "trace=pidfd_send_signal"])
        .args(["-e", "inject=pidfd_send_signal:error=EPERM"])
        .args(["-o", "/dev/null", "-p", &enforcer.pid().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .context("starting strace: install the package strace")?;
    let mut said = BufReader::new(denying.stderr.take().context("no stderr")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    ensure!(line.contains("attached"), "strace says {line:?}");
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
    let failed = |scrape: &genv_tests::metrics::Scrape| -> f64 {
        let all = scrape.all("genv_enforcer_actions_total", &[("result", "failed")]);
        all.iter().map(|(_, value)| value).sum()
    };
    enforcer.wait_for_metrics("it is counted", |scrape| failed(scrape) == 1.0)?;
    enforcer.wait_for_cycles(5)?;
    assert_eq!(failed(&enforcer.scrape()?), 1.0);
    let audit = enforcer.audit()?;
    let results: Vec<_> = audit.iter().map(|line| &line["result"]).collect();
    assert_eq!(results, ["intended", "failed"]);
    let reason = audit[1]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("may not be signalled"), "{reason}");
    let log = enforcer.log();
    let told = log.lines().filter(|line| line.contains("may not be signalled"));
    assert_eq!(told.count(), 1, "{log}");
    ensure!(is_alive(process.pid()));
    denying.kill()?;
    denying.wait()?;
    // Nor later, when it would be permitted.
    enforcer.wait_for_cycles(3)?;
    assert_eq!(enforcer.audit()?.len(), 2);
    ensure!(is_alive(process.pid()));
    Ok(())
}

#[test]
fn without_capabilities_it_says_what_it_cannot_do() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        // Whoever runs the tests has none.
        let enforcer = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?.start()?;
        let faults = enforcer.status()?["faults"].to_string();
        ensure!(faults.contains("CAP_KILL"), "{faults}");
        return Ok(());
    }
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let mut command = setup.command(&[])?;
    let program = command.get_program().to_owned();
    command = Command::new("setpriv");
    command
        .args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"])
        .arg(program)
        .args(["run", "--once", "--gpu.source=simulated"])
        .arg(format!("--config={}", setup.config().display()))
        .env("GENV_TMPDIR", setup.genv_directory())
        .env("GENV_SCENARIO", setup.folder().join("scenario.yaml"))
        .env("STATE_DIRECTORY", setup.state_directory());
    let output = genv_tests::patience::output(&mut command)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    for capability in ["CAP_KILL", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
        ensure!(said.contains(capability), "{said}");
    }
    Ok(())
}
