//! What admins run on their rules: `genv-enforcer check` and `test`, as programs.

use std::fs;
use std::io;
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
fn promise_11_check_ends_with_2_at_an_unknown_key_with_line_and_column() -> Result<()> {
    let folder = folder_with(&[("enforcer.yaml", "version: 1\nrules:\n- kind: idle\n  belov: 0.1\n")])?;
    let said = run(folder.path(), &["check", "enforcer.yaml"])?;
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(said.stderr);
    Ok(())
}

#[test]
fn promise_04_what_is_packaged_only_reports() -> Result<()> {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/enforcer.yaml");
    let folder = folder_with(&[])?;
    let said = run(folder.path(), &["check", packaged.to_str().context("path")?])?;
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    ensure!(said.stdout.contains("mode       dry-run"), "{}", said.stdout);
    let steps: Vec<_> = said.stdout.lines().filter(|line| line.starts_with("  then")).collect();
    ensure!(steps.len() == 4 && steps.iter().all(|step| step.ends_with(" report")), "{steps:?}");
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
    ensure!(stderr.contains("cannot print the result") && !stderr.contains("panicked"), "{stderr}");
    Ok(())
}

#[test]
fn check_answers_with_its_exit_code_where_nobody_reads_on() -> Result<()> {
    let folder = folder_with(&[("good.yaml", "version: 1\nrules: [{kind: idle}]\n"), ("bad.yaml", "version: 2\n")])?;
    for (file, code) in [("good.yaml", 0), ("bad.yaml", 2)] {
        let (reader, writer) = io::pipe()?;
        drop(reader);
        let status = Command::new(program("genv-enforcer")?)
            .args(["check", file])
            .current_dir(folder.path())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .status()?;
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

/// alice holds GPUs 0 and 1: 10 trains on 0 and has an empty context on 1, 11 does nothing on 1. After four hours 10
/// does nothing any more.
const TWO_DEVICES: &str = "config_file: enforcer.yaml
tests:
  - name: a training keeps its process
    interval: 60s
    scenario:
      version: 1
      users: {alice: 2001}
      hosts:
        - name: a
          devices: [{count: 3}]
          environments: [{eid: \"1\", user: alice, devices: [0, 1]}]
          processes:
            - pid: 10
              user: alice
              environment: \"1\"
              devices: [{index: 0, memory: 4gi, utilization: {steps: [[4h, 0.98], [96h, 0]]}}, {index: 1, memory: 500mi, utilization: 0}]
            - {pid: 11, user: alice, environment: \"1\", devices: [{index: 1, memory: 500mi, utilization: 0}]}
    expect:
      - {at: 119m, actions: []}
      - {at: 3h55m, warnings: [{rule: idle}], actions: [{action: detach, rule: idle, user: alice, device: 1}], violations: []}
      - at: 5h
        warnings: [{rule: env-devices}]
        actions: [{action: terminate, rule: env-devices, user: alice, pid: 10}]
";

#[test]
fn an_idle_device_costs_nobody_a_training_on_another_one_and_its_context_may_stay() -> Result<()> {
    for processes in ["", ", processes: terminate"] {
        let rules = format!(
            "version: 1\nrules:\n\
             - {{kind: idle, over: 2h, action: detach, warn: [10m]{processes}}}\n\
             - {{kind: env-devices, action: terminate, for: 5m, warn: [10m]}}\n\
             - {{kind: non-env-processes, action: terminate, for: 5m, warn: []}}\n"
        );
        let folder = folder_with(&[("enforcer.yaml", &rules), ("test.yaml", TWO_DEVICES)])?;
        let said = run(folder.path(), &["test", "test.yaml"])?;
        assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    }
    Ok(())
}

/// alice and bob hold a GPU each and do nothing; mallory has a process with empty environment variables on both, and bob
/// has one on his own.
const HIDDEN: &str = "config_file: enforcer.yaml
tests:
  - name: nobody hides the idle device of another user
    interval: 60s
    scenario:
      version: 1
      users: {alice: 2001, bob: 2002, mallory: 2003, carol: 2004, root: 0}
      hosts:
        - name: a
          devices: [{count: 3}]
          environments:
            - {eid: \"1\", user: alice, devices: [0]}
            - {eid: \"2\", user: bob, devices: [1]}
            - {eid: \"3\", user: carol, devices: [2]}
          processes:
            - {pid: 20, user: bob, claim: empty, devices: [{index: 1, memory: 1mi}]}
            - {pid: 30, user: mallory, claim: empty, devices: [{index: 0, memory: 1mi}, {index: 1, memory: 1mi}]}
            # The owner of the container is not known: it may be carol.
            - {pid: 40, user: root, container_id: 4f2a6e4f2a6e4f2a, claim: empty, devices: [{index: 2, memory: 1mi}]}
    expect:
      - at: 10m
        warnings: [{rule: unknown-processes, user: bob}, {rule: unknown-processes, user: mallory}]
        violations: [{rule: unknown-processes, user: bob}, {rule: unknown-processes, user: mallory}]
      - {at: 119m, violations: [{rule: unknown-processes, user: bob}, {rule: unknown-processes, user: mallory}]}
      - at: 2h10m
        actions: [{action: detach, rule: idle, user: alice, device: 0}]
        warnings: [{rule: unknown-processes, user: bob}]
        violations:
          - {rule: unknown-processes, user: bob, device: 1}
          - {rule: unknown-processes, user: bob}
          - {rule: unknown-processes, user: mallory}
";

#[test]
fn who_clears_environment_variables_hides_his_own_idle_device_alone_and_is_found() -> Result<()> {
    let rules = |action: &str| {
        format!(
            "version: 1\nrules:\n- {{kind: idle, over: 2h, action: detach, warn: []}}\n\
             - {{kind: unknown-processes, over: 2h, action: {action}}}\n"
        )
    };
    let folder = folder_with(&[("enforcer.yaml", &rules("warn")), ("test.yaml", HIDDEN)])?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    fs::write(folder.path().join("enforcer.yaml"), rules("terminate, warn: []"))?;
    let said = run(folder.path(), &["check", "enforcer.yaml"])?;
    assert_eq!(said.code, Some(2), "{}", said.stdout);
    ensure!(
        said.stderr.contains("enforcer.yaml:4:47:") && said.stderr.contains("choose report or warn"),
        "{}",
        said.stderr
    );
    Ok(())
}

#[test]
fn who_takes_the_devices_again_after_each_end_has_them_for_a_moment() -> Result<()> {
    // alice may have one of two devices, and begins a new environment with both every hour.
    let environments: Vec<String> = (0..4)
        .map(|hour| {
            format!("{{eid: \"{hour}\", user: alice, devices: [0, 1], during: {{from: {hour}h, until: {hour}h59m}}}}")
        })
        .collect();
    let test = |taken: &str| {
        format!(
            "config_file: enforcer.yaml\ntests:\n  - name: again\n    interval: 60s\n    scenario:\n      version: 1\n      \
             users: {{alice: 2001}}\n      hosts: [{{name: a, devices: [{{count: 2}}], environments: [{}]}}]\n    expect:\n{taken}",
            environments.join(", ")
        )
    };
    let rules = |remember: &str| {
        format!(
            "version: 1\nrules: [{{kind: max-devices-per-user, limit: 1, action: detach, for: 5m, warn: [30m]{remember}}}]\n"
        )
    };
    let remembered = test(
        "      - {at: 40m, warnings: [{rule: max-devices-per-user}], actions: [{action: detach, rule: max-devices-per-user, eid: \"0\"}]}\n      \
         - {at: 1h2m, actions: [{action: detach, rule: max-devices-per-user, eid: \"1\"}]}\n      \
         - {at: 2h2m, warnings: [], actions: [{action: detach, rule: max-devices-per-user, eid: \"2\"}]}\n",
    );
    let folder = folder_with(&[("enforcer.yaml", &rules(", remember: 1h")), ("test.yaml", &remembered)])?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    let anew = test(
        "      - {at: 40m, warnings: [{rule: max-devices-per-user}], actions: [{action: detach, rule: max-devices-per-user, eid: \"0\"}]}\n      \
         - {at: 1h40m, warnings: [{rule: max-devices-per-user}], actions: [{action: detach, rule: max-devices-per-user, eid: \"1\"}]}\n",
    );
    fs::write(folder.path().join("test.yaml"), anew)?;
    fs::write(folder.path().join("enforcer.yaml"), rules(", remember: 0s"))?;
    let said = run(folder.path(), &["test", "test.yaml"])?;
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    Ok(())
}
