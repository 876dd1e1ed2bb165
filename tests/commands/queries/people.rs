//! What people read: tables, colours, and who has what.

use std::process::Stdio;

use anyhow::{Result, ensure};
use genv_tests::patience::NO_PATIENCE;
use genv_tests::process::Sleeper;
use genv_tests::root::FIRST_UID;
use serde_json::{Value, json};

use crate::queries::lab::{Lab, device, environment, own_environment};

fn lab() -> Result<Lab> {
    let lab = Lab::new()?;
    lab.write(
        &[
            of_user("e1", "training", 0, "alice"),
            // A uid that has no name on any machine.
            of_user("longer-id", "名前", FIRST_UID, "root"),
        ],
        &[device(0, &[("e1", Some("4g")), ("longer-id", Some("10gi"))]), device(1, &[]), device(2, &[("e1", None)])],
    )?;
    Ok(lab)
}

fn of_user(eid: &str, name: &str, uid: u32, username: &str) -> Value {
    let mut environment = environment(eid, &json!(name));
    environment["uid"] = json!(uid);
    environment["username"] = json!(username);
    environment
}

fn table(lab: &Lab, line: &str) -> Result<String> {
    let pid = std::process::id().to_string();
    Ok(lab.genv(line)?.replace(&pid, "PID"))
}

#[test]
fn tables_align_and_have_no_borders() -> Result<()> {
    let lab = lab()?;
    insta::assert_snapshot!(table(&lab, "envs --timestamp")?, @r"
    ID         USER     NAME      CREATED              DEVICES  PID(S)
    e1         root(0)  training  20/11/2026 12:00:00  0,2      PID
    longer-id  54321    名前      20/11/2026 12:00:00  0        PID
    ");
    insta::assert_snapshot!(table(&lab, "devices --timestamp")?, @r"
    ID  ENV ID     ENV NAME  ATTACHED             USER     MEMORY
    0   e1         training  20/11/2026 12:00:00  root(0)  4g of 40960mi
    0   longer-id  名前      20/11/2026 12:00:00  54321    10gi of 40960mi
    1                                                      40960mi
    2   e1         training  20/11/2026 12:00:00  root(0)  40960mi
    ");
    ensure!(table(&lab, "devices --timestamp --no-header")?.starts_with("0  e1"));
    Ok(())
}

#[test]
fn hostile_texts_break_no_table() -> Result<()> {
    let lab = Lab::new()?;
    let mut hostile = environment("x\n0  fake", &json!("\u{1b}[2J\r\u{202e}$(id)\u{7}"));
    hostile["username"] = json!("root\u{9b}\n");
    let long = environment("long", &json!("x".repeat(100_000)));
    lab.write(&[hostile, long], &[device(0, &[("x\n0  fake", None)])])?;
    for line in ["envs", "devices"] {
        let table = table(&lab, line)?;
        let lines = if line == "envs" { 3 } else { 2 };
        assert_eq!(table.lines().count(), lines, "{table}");
        let bad = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
        ensure!(!table.contains(bad), "{table:?}");
        ensure!(table.lines().all(|line| line.chars().count() < 250), "{table}");
    }
    // What programs read is exact, but for a person who looks at it.
    for line in [
        "envs --format csv",
        "envs query --query eid username config.name",
        "devices ps --format csv",
        "devices query --query eids",
        "envs find --pid PID",
    ] {
        let pid = std::process::id().to_string();
        let shown = lab.on_a_terminal(&format!("genv {}", line.replace("PID", &pid)))?;
        ensure!(shown.contains("fake"), "{line}: {shown:?}");
        let bad = |it: char| it.is_control() && !"\r\n".contains(it) || it == '\u{202e}';
        ensure!(!shown.contains(bad), "{line}: {shown:?}");
    }
    Ok(())
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() -> Result<()> {
    let lab = lab()?;
    for (line, has_colours) in [
        ("envs", false),
        ("--color never envs", false),
        ("--color always envs", true),
        ("envs --color=always", true),
        ("--color always envs --format csv", false),
        ("--color always envs --json", false),
    ] {
        ensure!(lab.genv(line)?.contains('\u{1b}') == has_colours, "{line}");
    }
    ensure!(lab.on_a_terminal("genv envs")?.contains('\u{1b}'));
    ensure!(!lab.variable("TERM", "dumb").on_a_terminal("genv envs")?.contains('\u{1b}'));
    Ok(())
}

/// A machine on which a process of an environment and one of nobody's run.
fn busy() -> Result<(Lab, Sleeper, Sleeper)> {
    let lab = Lab::simulated("{devices: [{count: 4, memory: 40gi}]}")?;
    lab.write(
        &[own_environment("e1", &json!("training")), environment("e2", &Value::Null)],
        &[device(0, &[("e1", Some("10gi"))]), device(1, &[]), device(2, &[("e1", None), ("e2", None)]), device(3, &[])],
    )?;
    let inside = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    let outside = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "nosuch")])?;
    lab.simulate(&format!(
        "{{devices: [{{memory: 40gi, utilization: 0.5}}, {{count: 2, memory: 40gi}}, {{memory: 40gi, utilization: 0.5}}], processes: [\
         {{pid: {}, devices: [{{index: 0, memory: 5gi}}, {{index: 3, memory: 300mi}}]}}, \
         {{pid: {}, devices: [{{index: 0, memory: 1gi}}]}}]}}",
        inside.pid(),
        outside.pid()
    ))?;
    Ok((lab, inside, outside))
}

#[test]
fn what_is_free_is_told_in_the_order_of_attaching_and_what_to_do_where_nothing_is() -> Result<()> {
    let (lab, _inside, _outside) = busy()?;
    let indices = |line: &str| -> Result<Vec<u64>> {
        let told: Value = serde_json::from_str(&lab.genv(&format!("{line} --json"))?)?;
        ensure!(told["gpus_unknown"].is_null(), "{told}");
        let devices = told["devices"].as_array().into_iter().flatten();
        Ok(devices.filter_map(|it| it["index"].as_u64()).collect())
    };
    // A process runs on 3.
    assert_eq!(indices("free")?, [1, 3]);
    // Of 0, 30 GiB are left.
    assert_eq!(indices("free --gpu-memory 30gi")?, [1, 0, 3]);
    assert_eq!(indices("free --gpu-memory 31gi")?, [1, 3]);
    assert_eq!(indices("free --over-subscribe")?, [1, 3, 0, 2]);
    let table = lab.genv("free -o --no-header")?;
    for (line, end) in
        table.lines().zip(["free", "used, not attached", "shared with 1 environment", "shared with 2 environments"])
    {
        ensure!(line.ends_with(end), "{table}");
    }
    ensure!(table.contains("30.0 GiB"), "{table}");
    let advice = "'genv devices' shows who holds HOLDS, '--over-subscribe' lists what can be shared.\n";
    let several = format!("None of 4 devices is free: {}", advice.replace("HOLDS", "them"));
    assert_eq!(lab.genv("free --gpu-memory 50gi")?, several);
    let lab = Lab::simulated("{devices: [{memory: 40gi}]}")?;
    lab.write(&[environment("e1", &Value::Null)], &[device(0, &[("e1", None)])])?;
    assert_eq!(lab.genv("free")?, format!("The one device is not free: {}", advice.replace("HOLDS", "it")));
    Ok(())
}

#[test]
fn a_device_whose_memory_the_driver_does_not_tell_is_free_as_a_whole() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 2, faults: [{not_supported: [memory]}]}]}")?;
    let untold = |index, attachments| {
        let mut device = device(index, attachments);
        device["total_memory"] = Value::Null;
        device
    };
    lab.write(&[environment("e1", &Value::Null)], &[untold(0, &[("e1", Some("4gi"))]), untold(1, &[])])?;
    let said = lab.ask(&["devices"])?;
    ensure!(said.stdout.contains(" 4gi of ?"), "{}", said.stdout);
    ensure!(said.stderr.contains("the driver has not told the memory of devices 0, 1"), "{}", said.stderr);
    let said = lab.ask(&["free", "--gpu-memory", "4gi", "--no-header"])?;
    ensure!(said.stdout.starts_with("1 ") && said.stdout.lines().count() == 1, "{}", said.stdout);
    ensure!(said.stderr.contains("the driver does not tell the memory of device 1"), "{}", said.stderr);
    Ok(())
}

#[test]
fn the_memory_of_a_card_that_was_replaced_is_what_the_driver_tells_now() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 2, memory: 80gi}]}")?;
    // The state has a device of 40 GiB, and the second is not in it yet.
    lab.write(&[], &[device(0, &[])])?;
    let free: Value = serde_json::from_str(&lab.genv("free --gpu-memory 50gi --json")?)?;
    for index in 0..2_usize {
        assert_eq!(free["devices"][index]["memory_total_bytes"], 80_u64 << 30, "{free:#}");
        assert_eq!(free["devices"][index]["memory_unattached_bytes"], 80_u64 << 30, "{free:#}");
    }
    let who: Value = serde_json::from_str(&lab.genv("who 0 --json")?)?;
    assert_eq!(who["memory_total_bytes"], 80_u64 << 30, "{who:#}");
    Ok(())
}

#[test]
fn who_holds_and_who_uses_a_device_is_told() -> Result<()> {
    let (lab, inside, outside) = busy()?;
    let told: Value = serde_json::from_str(&lab.genv("who 0 --json")?)?;
    assert_eq!(told["holders"][0]["eid"], "e1");
    assert_eq!(told["holders"][0]["memory_bytes"], 10_u64 << 30);
    let of = |pid: u32| {
        let mut processes = told["processes"].as_array().into_iter().flatten();
        processes.find(|it| it["pid"] == pid).cloned().unwrap_or_default()
    };
    let (member, stranger) = (of(inside.pid()), of(outside.pid()));
    assert_eq!((&member["state"], &member["eid"]), (&json!("environment"), &json!("e1")));
    assert_eq!(member["attached"], json!(true));
    assert_eq!(member["memory_used_bytes"], 5_u64 << 30);
    assert_eq!((&stranger["state"], &stranger["eid"]), (&json!("outside"), &Value::Null));

    let table = lab.genv("who 0")?;
    for part in ["50 % busy", "HELD BY", "training", "USED BY", "sleep", "no environment"] {
        ensure!(table.contains(part), "{part}: {table}");
    }
    let table = lab.genv("who 3")?;
    ensure!(table.contains("No environment holds it"), "{table}");
    ensure!(table.contains("e1, which is not attached to it"), "{table}");
    ensure!(lab.genv("who 1")?.ends_with("No process uses it\n"));
    Ok(())
}

#[test]
fn a_driver_that_does_not_answer_leaves_unknown_what_only_it_knows() -> Result<()> {
    let lab = Lab::simulated("{devices: [{count: 2, memory: 40gi}], faults: [{hang: all}]}")?
        .variable(NO_PATIENCE.0, NO_PATIENCE.1);
    lab.write(&[environment("e1", &Value::Null)], &[device(0, &[("e1", None)]), device(1, &[])])?;
    let said = lab.ask(&["who", "0"])?;
    ensure!(said.code == 0, "{}", said.stderr);
    ensure!(said.stdout.contains("e1"), "{}", said.stdout);
    ensure!(said.stderr.contains("it is unknown which processes use it"), "{}", said.stderr);
    let said = lab.ask(&["free"])?;
    ensure!(said.stdout.lines().count() == 2, "{}", said.stdout);
    ensure!(said.stdout.contains('?'), "{}", said.stdout);
    ensure!(said.stderr.contains("the processes on the devices are unknown"), "{}", said.stderr);
    let told: Value = serde_json::from_str(&lab.ask(&["who", "1", "--json"])?.stdout)?;
    ensure!(told["processes"].is_null() && told["gpus_unknown"].is_string(), "{told}");
    Ok(())
}

#[test]
fn what_cannot_be_printed_is_a_failure_unless_nobody_reads_it() -> Result<()> {
    let lab = lab()?;
    let genv = genv_tests::process::program("genv")?;
    for line in ["envs", "envs --format csv", "devices --json", "status", "usage snapshot --type envs"] {
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let no_space = "genv: cannot print: No space left on device (os error 28)\n";
        for (stdout, code, said) in [(Stdio::from(full), 1, no_space), (Stdio::from(writer), 0, "")] {
            let output = lab.command(&genv).args(line.split(' ')).stdout(stdout).stderr(Stdio::piped()).output()?;
            assert_eq!((output.status.code(), &*String::from_utf8(output.stderr)?), (Some(code), said), "{line}");
        }
    }
    Ok(())
}
