//! What admins run on their rules: `genv-enforcer check` and `test`, as programs.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use genv_tests::process::program;
use tempfile::TempDir;

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
    let Output { status, stdout, stderr } =
        Command::new(program("genv-enforcer")?).args(arguments).current_dir(folder).output()?;
    Ok(Said { code: status.code(), stdout: String::from_utf8(stdout)?, stderr: String::from_utf8(stderr)? })
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
fn check_refuses_hours_in_a_zone_that_the_machine_does_not_know() -> Result<()> {
    let folder = folder_with(&[
        ("hours.yaml", "version: 1\nrules: [{kind: idle, when: {between: 08:00-20:00}}]\n"),
        ("all-day.yaml", "version: 1\nrules: [{kind: idle}]\n"),
    ])?;
    // A zone without its rules, and one that only libc takes.
    for zone in ["CET-1CEST", "posix/Europe/Berlin"] {
        let check = |file: &str| -> Result<Output> {
            let mut command = Command::new(program("genv-enforcer")?);
            Ok(command.args(["check", file]).current_dir(folder.path()).env("TZ", zone).output()?)
        };
        let refused = check("hours.yaml")?;
        let stderr = String::from_utf8(refused.stderr)?;
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        let why = format!("hours.yaml:2:28: the time zone of this machine is unknown: TZ is '{zone}'");
        ensure!(stderr.contains(&why), "{stderr}");
        let stdout = String::from_utf8(check("all-day.yaml")?.stdout)?;
        ensure!(stdout.contains(&format!("timezone   unknown (TZ is '{zone}'")), "{stdout}");
    }
    Ok(())
}

#[test]
fn promise_11_check_ends_with_2_at_an_unknown_key_with_line_and_column() -> Result<()> {
    let folder = folder_with(&[("enforcer.yaml", "version: 1\nrules:\n- kind: idle\n  belov: 0.1\n")])?;
    let said = run(folder.path(), &["check", "enforcer.yaml"])?;
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(said.stderr);
    Ok(())
}

#[test]
fn check_says_that_its_answer_could_not_be_printed() -> Result<()> {
    let folder = folder_with(&[("good.yaml", "version: 1\nrules: [{kind: idle}]\n"), ("bad.yaml", "version: 2\n")])?;
    let check = |file: &str| -> Result<Command> {
        let mut command = Command::new(program("genv-enforcer")?);
        command.args(["check", file]).current_dir(folder.path());
        Ok(command)
    };
    let full = fs::File::options().write(true).open("/dev/full")?;
    let output = check("good.yaml")?.stdout(full).output()?;
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(stderr.contains("cannot print the result") && !stderr.contains("panicked"), "{stderr}");
    // Where nobody reads on, the exit code is the answer.
    for (file, code) in [("good.yaml", 0), ("bad.yaml", 2)] {
        let (reader, writer) = io::pipe()?;
        drop(reader);
        let status = check(file)?.stdout(writer.try_clone()?).stderr(writer).status()?;
        assert_eq!(status.code(), Some(code), "{file}");
    }
    Ok(())
}

const TESTS: &str = "config_file: enforcer.yaml
tests:
  - name: processes outside are ended
    scenario:
      version: 1
      users: {alice: 2001}
      hosts: [{name: a, devices: [{}], processes: [{pid: 7, user: alice, devices: [{index: 0}]}]}]
    expect:
      - {at: 5m, actions: [{action: terminate, rule: non-env-processes, user: alice, pid: 7}]}
";

#[test]
fn tests_of_rules_pass_with_0_fail_with_1_and_cannot_be_read_with_2() -> Result<()> {
    let rules = |for_duration: &str| {
        format!("version: 1\nrules: [{{kind: non-env-processes, action: terminate, for: {for_duration}, warn: []}}]\n")
    };
    let folder = folder_with(&[("enforcer.yaml", &rules("4m")), ("test.yaml", TESTS)])?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{}", said.stdout);
    assert_eq!(said.stdout, "test.yaml\n  ok      processes outside are ended\n1 test, 0 failed\n");

    fs::write(folder.path().join("enforcer.yaml"), rules("6m"))?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    insta::assert_snapshot!(said.stdout);

    fs::write(folder.path().join("enforcer.yaml"), rules("6"))?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(said.stderr);
    Ok(())
}
