//! `genv doctor`.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use genv_tests::process::copy_program;
use genv_tests::shell::Account;
use genv_tests::state::{self, CREATED_SECONDS};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::queries::lab::{Lab, device, environment};

const GPUS: &str = "{devices: [{count: 2, memory: 40gi}]}";

fn lab() -> Result<Lab> {
    let lab = Lab::simulated(GPUS)?;
    lab.write(&[environment("e1", &Value::Null)], &[device(0, &[("e1", None)]), device(1, &[])])?;
    Ok(lab)
}

/// The exit code, and what is found of that name: verdict, finding and remedy.
fn found(lab: &Lab, name: &str) -> Result<(i32, String, String)> {
    let said = lab.ask(&["doctor", "--json"])?;
    let told = of_report(&said.stdout, name)?;
    let (verdict, found) = told.with_context(|| format!("no {name}: {}", said.stdout))?;
    Ok((said.code, verdict, found))
}

/// What a report says of that name, if it says something: the worst verdict, and what was found.
fn of_report(report: &str, name: &str) -> Result<Option<(String, String)>> {
    let report: Value = serde_json::from_str(report)?;
    let checks = report["checks"].as_array().context("no checks")?;
    let of_name = checks.iter().filter(|it| it["name"] == name);
    // The worst of several.
    let rank = |it: &&Value| ["ok", "warn", "fail"].iter().position(|word| it["verdict"] == *word);
    let Some(check) = of_name.max_by_key(rank) else {
        return Ok(None);
    };
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    ensure!(check["verdict"] == "ok" || !text("remedy").is_empty(), "{check}");
    Ok(Some((text("verdict"), text("found"))))
}

#[test]
fn a_machine_that_is_well_is_said_to_be() -> Result<()> {
    let lab = lab()?;
    let said = lab.ask(&["doctor", "--json"])?;
    assert_eq!(said.code, 0, "{}", said.stdout);
    for name in ["state directory", "file system", "lock", "state files", "GPUs", "recorded devices", "clock"] {
        let (verdict, found) = of_report(&said.stdout, name)?.context(name)?;
        assert_eq!(verdict, "ok", "{name}: {found}");
    }
    let report = lab.genv("doctor")?;
    ensure!(report.contains("1 environment, 2 devices"), "{report}");
    ensure!(report.contains("2 devices, driver"), "{report}");
    ensure!(!report.contains("fail"), "{report}");
    // Nothing but a lock file is new.
    let mut names: Vec<_> = fs::read_dir(lab.state())?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    assert_eq!(names, ["genv.lock", "state.json"]);
    Ok(())
}

type Breakage = fn(&Lab) -> Result<()>;

#[test]
fn what_does_not_work_fails() -> Result<()> {
    fn mode(lab: &Lab, name: &str, mode: u32) -> Result<()> {
        let path = lab.state().join(name);
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
    }
    let (code, verdict, said) = found(&Lab::new()?, "GPUs")?;
    ensure!((code, &*verdict) == (1, "fail") && said.contains("/nonexistent/libnvidia-ml.so.1"), "{said}");
    let cases: [(&str, &str, &str, Breakage); 8] = [
        ("state directory", "fail", "sticky", |lab| mode(lab, "", 0o1777)),
        ("state files", "warn", "mode 0644", |lab| mode(lab, state::FILE, 0o644)),
        ("state directory", "fail", "not a directory", |lab| {
            fs::remove_dir_all(lab.state())?;
            Ok(fs::write(lab.state(), "")?)
        }),
        ("state files", "fail", "state.json: it is not understood", |lab| lab.write(&[json!({"eid": "x"})], &[])),
        // A file of genv 1.x that is not imported yet.
        ("state files", "fail", "its uid is missing", |lab| {
            fs::remove_file(lab.state().join(state::FILE))?;
            Ok(fs::write(lab.state().join("envs.json"), "{\"envs\": [{\"eid\": \"x\"}]}")?)
        }),
        ("state files", "warn", "state.json.corrupt-1", |lab| {
            Ok(fs::write(lab.state().join("state.json.corrupt-1"), "")?)
        }),
        ("recorded devices", "warn", "device 2 is gone", |lab| {
            lab.write(&[], &[device(0, &[]), device(1, &[]), device(2, &[])])
        }),
        ("clock", "warn", "ahead", |lab| {
            let mut coming = environment("e1", &Value::Null);
            coming["created_timestamp_seconds"] = json!(CREATED_SECONDS + 31_557_600_000);
            lab.write(&[coming], &[])
        }),
    ];
    for (name, verdict, part, breakage) in cases {
        let lab = lab()?;
        breakage(&lab)?;
        let (code, told, said) = found(&lab, name)?;
        assert_eq!(told, verdict, "{name}: {said}");
        ensure!(said.contains(part), "{name}: {said}");
        assert_eq!(code, i32::from(verdict == "fail"), "{name}: {said}");
    }
    Ok(())
}

#[test]
fn who_holds_the_lock_is_told_and_reading_needs_no_lock() -> Result<()> {
    let lab = lab()?;
    let lock = File::create(lab.state().join("genv.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let (code, verdict, said) = found(&lab, "lock")?;
    assert_eq!((code, verdict.as_str()), (1, "fail"));
    ensure!(said.contains(&format!("process {} (", std::process::id())), "{said}");
    for words in [&["envs"][..], &["devices"], &["free"], &["usage", "snapshot"]] {
        let read = lab.ask(words)?;
        ensure!(read.code == 0, "{words:?}: {}", read.stderr);
    }
    Ok(())
}

#[test]
fn a_shell_that_is_set_up_is_told_from_one_that_is_not() -> Result<()> {
    let script = "genv doctor --json >before; eval \"$(genv shell --init)\"; genv doctor --json >after";
    let account = Account::new()?;
    account.script("bash", &[], script)?;
    for (file, verdict) in [("before", "warn"), ("after", "ok")] {
        let report = fs::read_to_string(account.home().join(file))?;
        assert_eq!(of_report(&report, "shell")?.context("no shell")?.0, verdict, "{report}");
    }
    Ok(())
}

#[test]
fn stand_ins_that_are_missing_or_passed_by_are_told() -> Result<()> {
    let lab = lab()?;
    let (installed, system) = (lab.folder().join("installed"), lab.folder().join("system"));
    let shims = installed.join("lib/genv/shims");
    for folder in [&installed.join("bin"), &shims, &system] {
        fs::create_dir_all(folder)?;
    }
    copy_program("genv", &installed.join("bin/genv"))?;
    let told = |name: &str, path: &[&Path], active: bool| -> Result<Option<(String, String)>> {
        let mut command = lab.command(installed.join("bin/genv"));
        command.args(["doctor", "--json"]).env("PATH", std::env::join_paths(path)?);
        if active {
            command.env("GENV_ENVIRONMENT_ID", "e1");
        }
        let output = command.output()?;
        let told = of_report(&String::from_utf8(output.stdout)?, name)?;
        let fails = told.as_ref().is_some_and(|(verdict, _)| verdict == "fail");
        assert_eq!(output.status.code(), Some(i32::from(fails)), "{told:?}");
        Ok(told)
    };
    let name = "nvidia-smi";
    let expect = |path: &[&Path], active: bool, verdict: &str, part: &str| -> Result<()> {
        let (told, found) = told(name, path, active)?.context(part.to_owned())?;
        assert_eq!(told, verdict, "{found}");
        ensure!(found.contains(part), "{found}");
        Ok(())
    };
    // Where neither is installed there is nothing to say of it.
    for name in [name, "docker", "podman"] {
        assert_eq!(told(name, &[&system], false)?, None);
    }
    fs::write(system.join(name), "")?;
    expect(&[&system], true, "warn", "ignores environments")?;
    fs::write(shims.join(name), "")?;
    expect(&[&system], false, "ok", "activating puts genv's shim before it")?;
    expect(&[&shims, &system], true, "ok", "comes first in PATH")?;
    expect(&[&system, &shims], true, "fail", "precedes genv's in PATH")?;
    expect(&[&system], true, "fail", "precedes genv's in PATH")?;
    expect(&[&shims, &system], false, "warn", "without an active environment")?;
    // A link to it is as good.
    fs::remove_file(system.join(name))?;
    symlink(shims.join(name), system.join(name))?;
    expect(&[&system], true, "ok", "comes first in PATH")?;
    fs::remove_dir_all(installed.join("lib"))?;
    let shims = told("shims", &[&system], false)?;
    ensure!(shims.as_ref().is_some_and(|(verdict, _)| verdict == "warn"), "{shims:?}");
    Ok(())
}
