//! `genv-enforcer execute-report`, and `genv usage execute`, which becomes it: a report of genv 1.4.3 and real processes.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::Result;
use genv_tests::enforcer::{ends, is_alive, sleeper, victim};
use genv_tests::nvml_sim::on_device_0;
use genv_tests::patience::output;
use genv_tests::process::program;
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A machine with two devices.
struct Lab {
    folder: TempDir,
}

impl Lab {
    /// On device 0, processes as the scenario format has them.
    fn new(processes: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lab = Self { folder };
        lab.scenario(&format!(
            "version: 1\nusers: {{alice: {}}}\nhosts:\n- devices: [{{count: 2}}]\n  processes: [{processes}]\n",
            victim()
        ));
        lab
    }

    /// On device 0, real processes.
    fn used_by(pids: &[u32]) -> Self {
        Self::new(&on_device_0(pids))
    }

    fn scenario(&self, text: &str) {
        fs::write(self.path("scenario.yaml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An environment with a member, attached to device 0.
    fn environment(&self, eid: &str, member: u32) {
        let environment = Environment::new(eid, victim(), member, &[0]);
        state::write(&self.path("genv"), 2, &[environment]).unwrap();
    }

    fn attached(&self) -> bool {
        let text = fs::read_to_string(self.path("genv/devices.json")).unwrap();
        let devices: Value = serde_json::from_str(&text).unwrap();
        devices["devices"][0]["attachments"] != json!([])
    }

    /// Runs a shell script that finds the program and its arguments in `"$@"`, and the report in `$REPORT`.
    fn script(&self, script: &str, program: &Path, arguments: &[&str], report: &str) -> Output {
        let file = self.path("report.json");
        fs::write(&file, report).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program).args(arguments);
        command
            .env("REPORT", file)
            .env("GENV_TMPDIR", self.path("genv"))
            .env("GENV_SCENARIO", self.path("scenario.yaml"))
            .env("STATE_DIRECTORY", self.path("own"))
            .env_remove("GENV_TERMINATE_PROCESSES");
        output(&mut command).unwrap()
    }

    fn execute(&self, arguments: &[&str], report: &str) -> Output {
        let arguments: Vec<&str> = ["execute-report"].iter().chain(arguments).copied().collect();
        let enforcer = program("genv-enforcer").unwrap();
        self.script(r#"exec "$@" <"$REPORT""#, &enforcer, &arguments, report)
    }

    fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("own/audit.jsonl")).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A report as genv 1.4.3 writes it.
fn report(processes: &[(u32, Option<&str>)], detach: Option<&str>) -> String {
    let processes: Vec<Value> = processes
        .iter()
        .map(|(pid, eid)| json!({"pid": pid, "used_gpu_memory": [{"index": 0, "gpu_memory": "1024mi"}], "eid": eid}))
        .collect();
    let environments = |eid| {
        json!({"0": {"envs": [{
            "eid": eid, "uid": victim(), "creation": "20/11/2026 12:00:00", "username": "alice",
            "config": {"name": null, "gpu_memory": null, "gpus": null}, "pids": [1], "kernel_ids": []}]}})
    };
    let detach = detach.map_or_else(|| json!({}), environments);
    json!({"terminate": {"processes": processes}, "detach": detach}).to_string()
}

#[track_caller]
fn ended(output: &Output, code: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    (out, err)
}

#[test]
fn usage_execute_ends_processes_and_detaches_environments() -> Result<()> {
    let (member, inside) = (sleeper(&[("A", "1")])?, sleeper(&[("GENV_ENVIRONMENT_ID", "E")])?);
    let outside = sleeper(&[("A", "1")])?;
    let lab = Lab::used_by(&[inside.pid(), outside.pid()]);
    lab.environment("E", member.pid());
    let report = report(&[(inside.pid(), Some("E")), (outside.pid(), None)], Some("E"));

    let said = lab.execute(&["--dry-run"], &report);
    let (out, _) = ended(&said, 0);
    assert!(out.matches(": would\n").count() == 3, "{out}");
    assert!(is_alive(inside.pid()) && is_alive(outside.pid()) && lab.attached());

    let script = r#"exec "$@" usage execute <"$REPORT""#;
    let done = lab.script(script, &program("genv")?, &[], &report);
    let (out, err) = ended(&done, 0);
    let expected = format!(
        "process {} (sleep): done\nprocess {} (sleep): done\ndevice 0 of environment E: done\n",
        inside.pid(),
        outside.pid()
    );
    assert_eq!((out, err), (expected, String::new()));
    for pid in [inside.pid(), outside.pid()] {
        ends(pid)?;
    }
    assert!(!lab.attached() && is_alive(member.pid()));
    let audit = lab.audit();
    let count = |result: &str| audit.iter().filter(|line| line["result"] == result).count();
    assert_eq!((count("would"), count("intended"), count("done")), (3, 3, 3));
    Ok(())
}

#[test]
fn a_simulated_process_never_leads_to_the_real_one_with_its_pid() -> Result<()> {
    let innocent = sleeper(&[("A", "1")])?;
    let simulated = format!("{{pid: {}, user: alice, devices: [{{index: 0}}]}}", innocent.pid());
    let lab = Lab::new(&simulated);
    let done = lab.execute(&[], &report(&[(innocent.pid(), None)], Some("a\u{9b}2J\n\u{202e}")));
    let (out, err) = ended(&done, 1);
    let expected = format!("genv-enforcer: process {}: it is not the process that uses the device\n", innocent.pid());
    assert!(out.is_empty() && err.starts_with(&expected), "{out}{err}");
    // The name of an environment, which anybody may have chosen, is printed on one line.
    let controls = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
    assert!(err.lines().count() == 2 && !err.contains(controls), "{err:?}");
    assert!(is_alive(innocent.pid()));
    Ok(())
}

#[test]
fn promise_06_the_configuration_says_who_is_out_of_reach() -> Result<()> {
    let process = sleeper(&[("A", "1")])?;
    let lab = Lab::used_by(&[process.pid()]);
    let config = lab.path("enforcer.yaml");
    let flag = format!("--config={}", config.display());
    let report = report(&[(process.pid(), None)], None);
    fs::write(&config, format!("version: 1\nnever: {{users: ['uid:{}']}}\nrules: []\n", victim()))?;
    let (_, err) = ended(&lab.execute(&[&flag], &report), 1);
    assert!(err.contains("its user is listed under never"), "{err}");
    fs::write(&config, "version: 1\nnevr: {}\n")?;
    let (_, err) = ended(&lab.execute(&[&flag], &report), 2);
    assert!(err.contains("enforcer.yaml:2:1"), "{err}");
    assert!(is_alive(process.pid()));
    Ok(())
}

#[test]
fn what_cannot_be_acted_upon_harms_nobody() -> Result<()> {
    let process = sleeper(&[("A", "1")])?;
    let lab = Lab::used_by(&[process.pid()]);
    let whole = report(&[(process.pid(), None)], None);
    for torn in ["", "null", &whole[..whole.len() / 2], &format!("{whole} x")] {
        let (_, err) = ended(&lab.execute(&[], torn), 1);
        assert!(err.starts_with("genv-enforcer: cannot read the report: "), "{err}");
        assert_eq!(err.matches(" line 1 column").count(), 1, "{err}");
    }
    let huge = " ".repeat((16 << 20) + 1);
    let (_, err) = ended(&lab.execute(&[], &huge), 1);
    assert!(err.contains("longer than 16 MiB"), "{err}");
    // Who is on the devices may be unknown.
    lab.scenario("version: 1\nhosts:\n- devices: [{}]\n  faults: [{init: driver_not_loaded}]\n");
    let (_, err) = ended(&lab.execute(&[], &whole), 1);
    assert!(err.contains("the processes on the GPUs are not known"), "{err}");
    assert!(is_alive(process.pid()));
    assert_eq!(lab.audit(), Vec::<Value>::new());
    Ok(())
}

#[test]
fn genvs_variable_keeps_every_process_alive() -> Result<()> {
    let process = sleeper(&[("A", "1")])?;
    let lab = Lab::used_by(&[process.pid()]);
    let report = report(&[(process.pid(), None)], None);
    let script = r#"GENV_TERMINATE_PROCESSES=0 exec "$@" <"$REPORT""#;
    let enforcer = program("genv-enforcer")?;
    let done = lab.script(script, &enforcer, &["execute-report"], &report);
    // As with genv 1.4.3 it is no failure.
    let (_, err) = ended(&done, 0);
    assert!(err.contains("GENV_TERMINATE_PROCESSES=0"), "{err}");
    assert!(is_alive(process.pid()));
    Ok(())
}
