//! What programs read: CSV, `find`, `query`, JSON.

use anyhow::{Result, ensure};
use genv_tests::process::Sleeper;
use genv_tests::state;
use serde_json::{Value, json};

use crate::queries::lab::{Lab, device, environment, own_environment};

/// A name as nobody should have one.
const HOSTILE: &str = "a,\"b\"\nü\u{1b}[2J";

fn lab() -> Result<Lab> {
    let lab = Lab::new()?;
    let mut second = environment("e2", &Value::Null);
    second["username"] = Value::Null;
    second["gpus"] = json!(2);
    second["gpu_memory"] = json!("4g");
    lab.write(
        &[environment("e1", &json!(HOSTILE)), second],
        &[device(0, &[("e2", Some("4g")), ("e1", None)]), device(1, &[]), device(2, &[("e2", None)])],
    )?;
    Ok(lab)
}

#[test]
fn json_says_the_same() -> Result<()> {
    let lab = lab()?;
    let json = |line: &str| -> Result<Value> { Ok(serde_json::from_str(&lab.genv(line)?)?) };
    for (listed, snapshot) in [
        ("envs --json", "usage snapshot --type envs"),
        ("envs ps --json", "usage snapshot --type envs --format json"),
        ("devices --json", "usage snapshot --type devices"),
    ] {
        assert_eq!(lab.genv(listed)?, lab.genv(snapshot)?, "{listed}");
    }
    assert_eq!(json("envs --json")?["envs"][0]["config"]["name"], json!(HOSTILE));
    assert_eq!(
        json("envs query --eid e2 --query config.gpus config.name pids --json")?,
        json!([{"config.gpus": 2, "config.name": null, "pids": [std::process::id()]}])
    );
    assert_eq!(json("devices query --query index eids --json")?[0], json!({"index": 0, "eids": ["e2", "e1"]}));
    assert_eq!(json("devices find --eid e2 --json")?, json!([0, 2]));
    assert_eq!(json("envs find --pid 1 --json")?, json!([]));
    Ok(())
}

#[test]
fn members_that_ended_are_left_out_unless_asked_for_and_the_next_look_removes_them() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 1, memory: 40gi}]}")?;
    let (member, uid) = (Sleeper::start(&[])?, rustix::process::getuid().as_raw());
    lab.genv(&format!("envs activate --eid ended --uid {uid} --pid {}", member.pid()))?;
    lab.genv("devices attach --eid ended --index 0")?;
    drop(member);
    let files = || -> Result<Vec<_>> {
        let entries = std::fs::read_dir(lab.state())?;
        let mut files = entries
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), entry.metadata()?.modified()?))
            })
            .collect::<Result<Vec<_>>>()?;
        files.sort();
        Ok(files)
    };
    let before = files()?;
    assert_eq!(lab.genv("envs --no-cleanup query --query eid")?, "ended\n");
    assert_eq!(lab.genv("devices --no-cleanup find --eid ended")?, "0\n");
    ensure!(files()? == before, "a query has written");
    assert_eq!(lab.genv("envs query --query eid")?, "");
    assert_eq!(lab.genv("devices find --eid ended")?, "\n");
    // As with genv 1.4.3, whose queries remove them too.
    assert_eq!(lab.genv("envs --no-cleanup query --query eid")?, "");
    assert_eq!(lab.genv("devices --no-cleanup find --eid ended")?, "\n");
    let before = files()?;
    assert_eq!(lab.genv("envs query --query eid")?, "");
    ensure!(files()? == before, "a query without news has written");
    Ok(())
}

#[test]
fn devices_that_are_written_down_need_no_driver_and_others_do() -> Result<()> {
    let lab = lab()?;
    assert!(lab.genv("devices")?.starts_with("ID"));
    state::edit(&lab.state(), |it| {
        it["devices"] = json!([]);
        Ok(())
    })?;
    let said = lab.ask(&["devices"])?;
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    ensure!(said.stderr.contains("/nonexistent/libnvidia-ml.so.1"), "{}", said.stderr);

    // Found once, they are written down.
    let lab = Lab::simulated("{devices: [{count: 2, memory: 40gi}]}")?;
    assert_eq!(lab.genv("devices query --query index total_memory")?, "0,40960mi\n1,40960mi\n");
    lab.simulate("{devices: [{count: 3, memory: 40gi}]}")?;
    assert_eq!(lab.genv("devices query --query index")?, "0\n1\n");
    Ok(())
}

#[test]
fn everything_can_be_reset() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 2, memory: 40gi}]}")?;
    let fill = || lab.write(&[own_environment("e1", &Value::Null)], &[device(0, &[("e1", None)])]);
    fill()?;
    assert_eq!(lab.genv("devices --reset ps --format csv --no-header")?, "0,,,\n1,,,\n");
    assert_eq!(lab.genv("envs query --query eid")?, "e1\n");
    fill()?;
    assert_eq!(lab.genv("envs --reset query --query eid")?, "");
    assert_eq!(lab.genv("devices find --eid e1")?, "\n");
    Ok(())
}

#[test]
fn bad_input_is_one_line_and_changes_nothing() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 2, memory: 40gi}]}")?;
    lab.write(&[own_environment("e1", &Value::Null)], &[device(0, &[]), device(1, &[])])?;
    let state = || lab.genv("usage snapshot");
    let before = state()?;
    for (line, code, part) in [
        ("envs config --eid e1 gpus --count -1", 2, "not a number of devices"),
        ("envs config --eid e1 gpu-memory --gpu-memory 4", 2, "4g for gigabytes"),
        ("envs config --eid e1 gpus", 2, "--count <COUNT>|--clear"),
        ("envs config --eid nobody gpus --count 1", 1, "no environment nobody"),
        ("envs activate --eid a,b --uid 0 --pid 1", 2, "commas"),
        ("envs activate --eid a --uid 0", 2, "--pid <PID>|--kernel-id <ID>"),
        ("envs activate --eid a --uid 0 --pid 0", 2, "not the pid of a process"),
        ("envs activate --eid a --uid root --pid 1", 2, "not the uid of a user"),
        ("envs activate --eid a --uid 0 --kernel-id ../x", 2, "not the id of a kernel"),
        ("envs activate --eid a --uid 0 --pid 1 --username \u{1b}[2J", 2, "cannot be printed"),
        ("envs query --query name", 2, "config.name"),
        ("envs --json find --pid 1", 2, "cannot print a list here"),
        ("envs ps --json --format csv", 2, "--format"),
        ("devices attach --eid e1 --index 99", 4, "no device 99"),
        ("devices attach --eid e1 --count 3", 4, "cannot attach 3 devices"),
        ("devices attach --eid e1 --count 1 --index 1", 2, "cannot be used with"),
        ("devices attach --eid nobody --count 1", 1, "no environment nobody"),
        ("devices detach --eid e1 --index 99", 4, "no device 99"),
        ("who 2", 4, "no device 2: this machine has devices 0 to 1. 'genv devices' lists them"),
        ("who x", 2, "not the index of a device"),
        ("usage snapshot --type all", 2, "processes"),
        ("snapshot --interval=5", 2, "lacks a unit: write 5s"),
        ("snapshot --gpu.scenario=/nonexistent/lab.yaml", 1, "cannot read the scenario"),
        ("completions tcsh", 2, "fish"),
        ("monitor --port 70000", 2, "--port"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let said = lab.ask(&arguments)?;
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{line}: {}", said.stderr);
        ensure!(said.stderr.contains(part), "{line}: {}", said.stderr);
        ensure!(said.stderr.lines().count() == 1, "{line}: {}", said.stderr);
    }
    assert_eq!(state()?, before);
    Ok(())
}
