//! The calls of the extension for JupyterLab, in the order in which it makes them, and what terminals of extensions do.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::process::program;
use genv_tests::state;
use regex::Regex;
use serde_json::Value;

use crate::queries::lab::Lab;

/// Compares what is said, with what differs from run to run named.
fn all(lab: &Lab, calls: &[(&str, &str)]) -> Result<()> {
    let pid = std::process::id().to_string();
    let time = Regex::new(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d")?;
    for (line, expected) in calls {
        let printed = lab.genv(&line.replace("PID", &pid))?;
        assert_eq!(time.replace_all(&printed, "TIME").replace(&pid, "PID"), *expected, "genv {line}");
    }
    Ok(())
}

fn lab() -> Result<Lab> {
    Lab::simulated("{devices: [{count: 3, memory: 40gi}]}")
}

#[test]
fn jupyterlab_is_answered() -> Result<()> {
    let lab = lab()?;
    let runtime = lab.folder().join("jupyter");
    fs::create_dir(&runtime)?;
    fs::write(runtime.join("kernel-0123-abcd.json"), "{}")?;
    let runtime = runtime.to_string_lossy().into_owned();
    let lab = lab.variable("JUPYTER_RUNTIME_DIR", &runtime);
    // Of another user's kernels nothing is known here.
    let uid = rustix::process::geteuid().as_raw();
    let activate = format!("envs activate --eid e1 --uid {uid} --kernel-id 0123-abcd");
    let listed = format!("e1,{uid},,TIME,\n");
    all(
        &lab,
        &[
            ("devices ps --format csv --no-header --timestamp", "0,,,\n1,,,\n2,,,\n"),
            ("envs find --kernel-id 0123-abcd", ""),
            (&activate, ""),
            ("envs ps --format csv --no-header --timestamp", &listed),
            ("envs find --kernel-id 0123-abcd", "e1\n"),
            ("devices find --eid e1", "\n"),
            ("devices attach --eid e1 --count 1", "0\n"),
            ("devices find --eid e1", "0\n"),
        ],
    )?;
    // What watches the machine goes by the same folder, and clears nothing away.
    let watched = || -> Result<usize> {
        let snapshot: Value = serde_json::from_str(&lab.genv("snapshot")?)?;
        let environments = snapshot["environments"].as_array();
        Ok(environments.context("no environments")?.len())
    };
    assert_eq!(watched()?, 1);
    fs::remove_file(lab.folder().join("jupyter/kernel-0123-abcd.json"))?;
    assert_eq!(watched()?, 0);
    ensure!(fs::read_to_string(lab.state().join(state::FILE))?.contains("0123-abcd"));
    all(&lab, &[("envs find --kernel-id 0123-abcd", "")])
}

#[test]
fn their_terminals_join_the_environment() -> Result<()> {
    let lab = lab()?;
    let uid = rustix::process::geteuid().as_raw();
    let activate = format!("envs activate --eid e1 --uid {uid} --pid PID");
    all(&lab, &[(&activate, ""), ("devices attach --eid e1 --count 1", "0\n")])?;
    for init in [r#"eval "$(genv shell --init)""#, r#"eval "$(genv init -)""#] {
        let script = format!(
            "{init}\ngenv activate --id e1 --no-load --no-attach --no-prompt && echo $GENV_ENVIRONMENT_ID $CUDA_VISIBLE_DEVICES\n\
             genv attach --refresh && genv config --refresh && echo refreshed\ngenv deactivate"
        );
        let programs = program("genv")?;
        let folder = programs.parent().unwrap_or(&programs).display();
        let path = std::env::var("PATH")?;
        let mut bash: Command = lab.command("bash");
        let output = bash.args(["--norc", "-c", &script]).env("PATH", format!("{folder}:{path}")).output()?;
        let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        assert_eq!(stdout, "e1 0\nrefreshed\n", "{init}: {stderr}");
        ensure!(output.status.success(), "{init}: {stderr}");
    }
    // The member that they added stays.
    all(&lab, &[("envs query --query eid pids", "e1,PID\n")])
}
