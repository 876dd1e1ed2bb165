//! `genv-enforcer execute-report`, and `genv usage execute`, which becomes it: a report of genv 1.4.3 and real processes.

#![expect(clippy::unwrap_used, reason = "what a test prepares must not fail")]

use std::fs::{self, File};
use std::process::{Command, Output};

use anyhow::Result;
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper, victim};
use genv_tests::nvml_sim::on_device_0;
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

struct Lab(Setup);

impl Lab {
    fn new(processes: &str) -> Self {
        let users = format!("users: {{alice: {}}}", victim());
        let host = format!("devices: [{{count: 2}}]\n  processes: [{processes}]\n");
        Self(Setup::new(&format!("version: 1\n{users}\nhosts:\n- {host}"), "").unwrap())
    }

    fn used_by(pids: &[u32]) -> Self {
        Self::new(&on_device_0(pids))
    }

    fn environment(&self, eid: &str, member: u32) {
        let environment = Environment::new(eid, victim(), member, &[0]);
        state::write(&self.0.genv_directory(), 2, &[environment]).unwrap();
    }

    fn attached(&self) -> bool {
        let state = state::read(&self.0.genv_directory()).unwrap();
        state["devices"][0]["attachments"].as_array().is_some_and(|all| !all.is_empty())
    }

    fn told(&self, command: &mut Command, report: &str) -> Output {
        let file = self.0.folder().join("report.json");
        fs::write(&file, report).unwrap();
        command.stdin(File::open(file).unwrap()).output().unwrap()
    }

    fn execute(&self, arguments: &[&str], report: &str) -> Output {
        let words = [&["execute-report"], arguments].concat();
        self.told(&mut self.0.command(&words).unwrap(), report)
    }

    fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.0.state_directory().join("audit.jsonl")).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

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

    let done = lab.told(&mut lab.0.program("genv", &["usage", "execute"])?, &report);
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
fn what_may_not_be_acted_upon_lives_and_why_is_said() -> Result<()> {
    let process = sleeper(&[("A", "1")])?;
    let lab = Lab::used_by(&[process.pid()]);
    let whole = report(&[(process.pid(), None)], None);
    let (torn, longer) = (&whole[..whole.len() / 2], format!("{whole} x"));
    for torn in ["", "null", torn, &longer] {
        let (_, err) = ended(&lab.execute(&[], torn), 1);
        assert!(err.starts_with("genv-enforcer: cannot read the report: "), "{err}");
        assert_eq!(err.matches(" line 1 column").count(), 1, "{err}");
    }
    let (_, err) = ended(&lab.execute(&[], &" ".repeat((16 << 20) + 1)), 1);
    assert!(err.contains("longer than 16 MiB"), "{err}");
    // Who is on the devices may be unknown.
    let config = lab.0.config();
    let scenario = fs::read_to_string(lab.0.folder().join("scenario.yaml"))?;
    lab.0.rewrite_scenario("version: 1\nhosts:\n- devices: [{}]\n  faults: [{init: driver_not_loaded}]\n")?;
    let (_, err) = ended(&lab.execute(&[], &whole), 1);
    assert!(err.contains("the processes on the GPUs are not known"), "{err}");
    assert_eq!(lab.audit(), Vec::<Value>::new());

    lab.0.rewrite_scenario(&scenario)?;
    let flag = lab.0.config_flag();
    let never = format!("version: 1\nnever: {{users: ['uid:{}']}}\nrules: []\n", victim());
    for (text, code, why) in
        [(never.as_str(), 1, "its user is listed under never"), ("version: 1\nnevr: {}\n", 2, "enforcer.yaml:2:1")]
    {
        fs::write(&config, text)?;
        let (_, err) = ended(&lab.execute(&[&flag], &whole), code);
        assert!(err.contains(why), "{err}");
    }
    let mut command = lab.0.command(&["execute-report"])?;
    let done = lab.told(command.env("GENV_TERMINATE_PROCESSES", "0"), &whole);
    // As with genv 1.4.3 it is no failure.
    let (_, err) = ended(&done, 0);
    assert!(err.contains("GENV_TERMINATE_PROCESSES=0"), "{err}");
    assert!(is_alive(process.pid()));
    Ok(())
}
