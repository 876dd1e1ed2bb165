//! `genv doctor`.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::lab::{Lab, device, environment};

const GPUS: &str = "{devices: [{count: 2, memory: 40gi}]}";

fn lab() -> Result<Lab> {
    let lab = Lab::simulated(GPUS)?;
    lab.write(
        &[environment("e1", &Value::Null)],
        &[device(0, &[("e1", None)]), device(1, &[])],
    )?;
    Ok(lab)
}

/// The exit code, and what is found of that name: verdict, finding and remedy.
fn found(lab: &Lab, name: &str) -> Result<(i32, String, String)> {
    let said = lab.ask(&["doctor", "--json"])?;
    let report: Value = serde_json::from_str(&said.stdout)?;
    let checks = report["checks"].as_array().context("no checks")?;
    let of_name = checks.iter().filter(|it| it["name"] == name);
    // The worst of several.
    let rank = |it: &&Value| {
        ["ok", "warn", "fail"]
            .iter()
            .position(|word| it["verdict"] == *word)
    };
    let check = of_name
        .max_by_key(rank)
        .with_context(|| format!("no {name}: {report}"))?;
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    ensure!(
        check["verdict"] == "ok" || !text("remedy").is_empty(),
        "{check}"
    );
    Ok((said.code, text("verdict"), text("found")))
}

#[test]
fn a_machine_that_is_well_is_said_to_be() -> Result<()> {
    let lab = lab()?;
    for name in [
        "state directory",
        "file system",
        "lock",
        "state files",
        "GPUs",
        "devices.json",
        "clock",
    ] {
        let (code, verdict, found) = found(&lab, name)?;
        assert_eq!((code, verdict.as_str()), (0, "ok"), "{name}: {found}");
    }
    let report = lab.genv("doctor")?;
    ensure!(report.contains("1 environments, 2 devices"), "{report}");
    ensure!(!report.contains("fail"), "{report}");
    // Nothing but a lock file is new.
    let mut names: Vec<_> = fs::read_dir(lab.state())?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    names.sort();
    assert_eq!(names, ["devices.json", "envs.json", "genv.lock"]);
    Ok(())
}

/// Something that breaks a machine.
type Breakage = fn(&Lab) -> Result<()>;

#[test]
fn what_does_not_work_fails() -> Result<()> {
    let mode = |lab: &Lab, name: &str, mode: u32| -> Result<()> {
        let path = lab.state().join(name);
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
    };
    let lab_ = lab()?;
    mode(&lab_, "", 0o1777)?;
    let (code, verdict, found_) = found(&lab_, "state directory")?;
    assert_eq!((code, verdict.as_str()), (1, "fail"), "{found_}");
    ensure!(found_.contains("sticky"), "{found_}");

    let cases: [(&str, &str, &str, Breakage); 6] = [
        ("state directory", "fail", "no directory", |lab| {
            fs::remove_dir_all(lab.state())?;
            Ok(fs::write(lab.state(), "")?)
        }),
        ("state files", "fail", "envs.json: it is not JSON", |lab| {
            let path = lab.state().join("envs.json");
            fs::write(&path, "{")?;
            Ok(())
        }),
        ("state files", "warn", "its uid is missing", |lab| {
            lab.write(&[json!({"eid": "x"})], &[])
        }),
        ("state files", "warn", "envs.json.corrupt-1", |lab| {
            Ok(fs::write(lab.state().join("envs.json.corrupt-1"), "")?)
        }),
        (
            "devices.json",
            "warn",
            "device 2 is not there any more",
            |lab| lab.write(&[], &[device(0, &[]), device(1, &[]), device(2, &[])]),
        ),
        ("clock", "warn", "ahead", |lab| {
            let mut coming = environment("e1", &Value::Null);
            coming["creation"] = json!("20/11/2999 12:00:00");
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
    let lab = lab()?;
    mode(&lab, "devices.json", 0o644)?;
    let (code, verdict, said) = found(&lab, "state files")?;
    assert_eq!((code, verdict.as_str()), (0, "warn"));
    ensure!(said.contains("mode 0644"), "{said}");
    Ok(())
}

#[test]
fn who_holds_the_lock_is_told() -> Result<()> {
    let lab = lab()?;
    let lock = File::create(lab.state().join("genv.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let (code, verdict, said) = found(&lab, "lock")?;
    assert_eq!((code, verdict.as_str()), (1, "fail"));
    ensure!(
        said.contains(&format!("process {} (", std::process::id())),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_driver_that_does_not_load_fails() -> Result<()> {
    let lab = Lab::new()?;
    let (code, verdict, said) = found(&lab, "GPUs")?;
    assert_eq!((code, verdict.as_str()), (1, "fail"));
    ensure!(said.contains("/nonexistent/libnvidia-ml.so.1"), "{said}");
    Ok(())
}

#[test]
fn a_shell_that_is_set_up_is_told_from_one_that_is_not() -> Result<()> {
    let lab = lab()?;
    assert_eq!(found(&lab, "shell")?.1, "warn");
    let genv = genv_tests::process::program("genv")?;
    let folder = genv.parent().unwrap_or(&genv).display();
    let script = r#"eval "$(genv shell --init)"; genv doctor --json"#;
    let output = lab
        .command("bash")
        .args(["--norc", "-c", script])
        .env("PATH", format!("{folder}:{}", std::env::var("PATH")?))
        .output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let checks = report["checks"].as_array().into_iter().flatten();
    let shell: Vec<&Value> = checks.filter(|it| it["name"] == "shell").collect();
    assert_eq!(shell.len(), 1);
    assert_eq!(shell[0]["verdict"], "ok", "{report}");
    Ok(())
}
