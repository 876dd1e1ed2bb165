//! The real genv 1.4.3 and this project, asked the same of the same files, each in a folder of its own: what programs read
//! is equal, byte for byte.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, program};
use jiff::{ToSpan, Zoned};
use serde_json::{Value, json};

/// The time so long ago, as files have it.
fn ago(seconds: i64) -> String {
    let time = Zoned::now().saturating_sub(seconds.seconds());
    time.strftime("%d/%m/%Y %H:%M:%S").to_string()
}

fn write(peer: &Peer, name: &str, content: &Value) -> Result<()> {
    let folder = peer.state_directory();
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let path = folder.join(name);
    fs::write(&path, serde_json::to_string_pretty(content)?)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o666))?)
}

/// What this project prints.
fn ours(peer: &Peer, arguments: &[&str]) -> Result<String> {
    let output = peer.command(&program("genv")?.to_string_lossy()).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "genv {arguments:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

fn equal(own: &Peer, peer: &Peer, line: &str) -> Result<()> {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let mut answers = (ours(own, &arguments)?, peer.genv(&arguments)?);
    if answers.0 != answers.1 && answers.0.contains(" ago") {
        // A minute may have passed in between.
        answers = (ours(own, &arguments)?, peer.genv(&arguments)?);
    }
    assert_eq!(answers.0, answers.1, "genv {line}");
    Ok(())
}

#[test]
fn what_programs_read_is_equal() -> Result<()> {
    // 1.4.3 lists processes in the order of a Python set. That of two numbers is the order of their last three bits,
    // which has to be the order of the numbers.
    let mut member = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    while member.pid() % 8 > 3 {
        member = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    }
    // Its environ names no environment. One that is empty would leave open whether it is a job of the one that ended.
    let mut stranger = Sleeper::start(&[("HOME", "/")])?;
    while stranger.pid() < member.pid() || stranger.pid() % 8 <= member.pid() % 8 {
        stranger = Sleeper::start(&[("HOME", "/")])?;
    }
    let (pid, other) = (member.pid(), stranger.pid());
    // Members are no ancestors of processes here: by these 1.4.3 does not go.
    let shell = Sleeper::start(&[])?;
    let me = shell.pid();
    let simulation = Simulation::new(&format!(
        "version: 1\nhosts:\n- devices: [{{count: 3, memory: 40gi}}]\n  processes: [\
         {{pid: {pid}, devices: [{{index: 0, memory: 5gi}}, {{index: 1, memory: 123456789b}}]}}, \
         {{pid: {other}, devices: [{{index: 2, memory: 1500mi}}]}}]\n"
    ));
    let environment = |eid: &str, name: Value, gpus: Value, memory: Value, age: i64, pids: &[u32]| {
        json!({
            "eid": eid, "uid": 0, "creation": ago(age), "username": "root",
            "config": {"name": name, "gpu_memory": memory, "gpus": gpus},
            "pids": pids, "kernel_ids": [],
        })
    };
    let device = |index: u32, attachments: &[(&str, Value, i64)]| {
        let attachments =
            attachments.iter().map(|(eid, memory, age)| json!({"eid": eid, "gpu_memory": memory, "time": ago(*age)}));
        let attachments: Vec<Value> = attachments.collect();
        json!({"index": index, "total_memory": "40960mi", "attachments": attachments})
    };
    let null = Value::Null;
    // Ages are far from where their wording changes.
    let mut nameless = environment("nameless", null.clone(), json!(0), null.clone(), 90, &[pid]);
    nameless["username"] = null.clone();
    let many = [
        environment("e1", json!("a,\"b\" 'ü' 名前"), json!(2), json!("4g"), 5_430, &[pid, me]),
        nameless,
        environment("line", json!("x\ny\u{1b}[2J"), null.clone(), json!("10gi"), 200_000, &[me]),
        environment("ended", json!("gone"), null.clone(), null.clone(), 90, &[4_194_305]),
    ];
    let holders = [("line", json!("10gi"), 9_000), ("e1", json!("4g"), 150), ("nameless", null.clone(), 800_000)];
    let states = [
        (vec![], vec![device(0, &[]), device(1, &[]), device(2, &[])]),
        (
            many.to_vec(),
            vec![device(0, &holders), device(1, &holders[1..2]), device(2, &[("ended", null.clone(), 90)])],
        ),
    ];
    let fixed = [
        "envs ps --format csv",
        "envs ps --format csv --timestamp",
        "envs ps --format csv --no-header",
        "envs ps --format csv --no-header --timestamp",
        "envs query --query eid creation uid username config.name config.gpus config.gpu_memory pids kernel_ids",
        "envs query --queries config.name eid",
        "envs query --eid e1 --query pids config.name",
        "envs query --eid nobody --query eid",
        "envs find --kernel-id none",
        "envs find --pid 1",
        "devices ps --format csv",
        "devices ps --format csv --timestamp",
        "devices ps --format csv --no-header",
        "devices query --query index eids total_memory attachments",
        "devices query --queries attachments",
        "devices find --eid e1",
        "devices find --eid line",
        "devices find --eid nobody",
        "usage snapshot",
        "usage snapshot --format json",
        "usage snapshot --type devices",
        "usage snapshot --type envs",
        "usage snapshot --type processes",
    ];
    let find = [format!("envs find --pid {pid}"), format!("envs find --pid {me}")];
    for (environments, devices) in states {
        let (own, peer) = (Peer::new(&simulation)?, Peer::new(&simulation)?);
        for folder in [&own, &peer] {
            write(folder, "envs.json", &json!({ "envs": environments }))?;
            write(folder, "devices.json", &json!({ "devices": devices }))?;
        }
        let before = fs::read_to_string(peer.state_directory().join("envs.json"))?;
        // A claim to an environment that does not exist is refuted here, and taken there.
        let refuted = environments.is_empty();
        let is_told =
            |line: &&str| !refuted || !line.starts_with("usage") || line.ends_with("envs") || line.ends_with("devices");
        for line in fixed.iter().copied().filter(is_told).chain(find.iter().map(String::as_str)) {
            equal(&own, &peer, line).with_context(|| format!("of {before}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_machine_that_nobody_has_used_yet_is_told_alike() -> Result<()> {
    for line in ["envs ps --format csv", "devices query --query index total_memory", "usage snapshot"] {
        let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{count: 2, memory: 16gi}]\n");
        equal(&Peer::new(&simulation)?, &Peer::new(&simulation)?, line)?;
    }
    Ok(())
}

#[test]
fn changes_from_outside_are_answered_alike() -> Result<()> {
    let member = Sleeper::start(&[])?;
    let pid = member.pid().to_string();
    let uid = rustix::process::getuid().as_raw().to_string();
    let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{count: 3, memory: 16gi}]\n");
    let (one, other) = (Peer::new(&simulation)?, Peer::new(&simulation)?);
    for line in [
        "envs activate --eid e1 --uid UID --username root --pid PID",
        "envs activate --eid e2 --uid UID --pid PID",
        "envs config --eid e1 name --name training",
        "devices attach --eid e1",
        "devices attach --eid e1 --count 2",
        "envs config --eid e2 gpu-memory --gpu-memory 4gi",
        "devices attach --eid e2 --count 1",
        "devices attach --eid e2 --index 0 --allow-over-subscription",
        "devices attach --eid e1",
        "devices find --eid e2",
        "devices detach --eid e2 --index 0",
        "devices detach --eid nobody",
        "envs config --eid e1 name --clear",
        "envs query --query eid uid username config.name config.gpus config.gpu_memory pids",
        "devices query --query eids",
        "devices detach --eid e1 --quiet",
        "devices detach --eid e2",
        "envs deactivate --pid PID",
        "envs ps --format csv",
        "devices ps --format csv",
    ] {
        let line = line.replace("PID", &pid).replace("UID", &uid);
        let arguments: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(ours(&one, &arguments)?, other.genv(&arguments)?, "genv {line}");
    }
    Ok(())
}
