//! What admins run on their rules: `genv-enforcer check`, as a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::process::program;
use tempfile::TempDir;

/// What a run said, with the folder's name taken out.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn folder_with(files: &[(&str, &str)]) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in files {
        fs::write(folder.path().join(name), text)?;
    }
    Ok(folder)
}

fn run(folder: &Path, arguments: &[&str]) -> Result<Said> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program("genv-enforcer")?)
        .args(arguments)
        .current_dir(folder)
        .output()?;
    Ok(Said {
        code: status.code(),
        stdout: String::from_utf8(stdout)?,
        stderr: String::from_utf8(stderr)?,
    })
}

#[test]
fn check_prints_the_rules_and_what_is_odd_and_is_content() -> Result<()> {
    let text = "version: 1
timezone: UTC
waivers: [{users: [root], until: 2020-01-01, reason: long ago}]
rules: [{kind: idle, action: detach, warn: [30m], match: {groups: [no-such-group]}}]
";
    let folder = folder_with(&[("enforcer.yaml", text)])?;
    let said = run(folder.path(), &["check", "enforcer.yaml"])?;
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    Ok(())
}

#[test]
fn promise_11_check_ends_with_2_at_an_unknown_key_with_line_and_column() -> Result<()> {
    let folder = folder_with(&[(
        "enforcer.yaml",
        "version: 1\nrules:\n- kind: idle\n  belov: 0.1\n",
    )])?;
    let said = run(folder.path(), &["check", "enforcer.yaml"])?;
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(said.stderr);
    Ok(())
}

#[test]
fn promise_04_what_is_packaged_only_reports() -> Result<()> {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/enforcer.yaml");
    let folder = folder_with(&[])?;
    let said = run(
        folder.path(),
        &["check", packaged.to_str().context("path")?],
    )?;
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    ensure!(
        said.stdout.contains("mode       dry-run"),
        "{}",
        said.stdout
    );
    let steps: Vec<_> = said
        .stdout
        .lines()
        .filter(|line| line.starts_with("  then"))
        .collect();
    ensure!(
        steps.len() == 4 && steps.iter().all(|step| step.ends_with(" report")),
        "{steps:?}"
    );
    Ok(())
}

#[test]
fn check_says_that_its_answer_could_not_be_printed() -> Result<()> {
    let folder = folder_with(&[("enforcer.yaml", "version: 1\n")])?;
    let full = fs::File::options().write(true).open("/dev/full")?;
    let output = Command::new(program("genv-enforcer")?)
        .args(["check", "enforcer.yaml"])
        .current_dir(folder.path())
        .stdout(Stdio::from(full))
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(
        stderr.contains("cannot print the result") && !stderr.contains("panicked"),
        "{stderr}"
    );
    Ok(())
}
