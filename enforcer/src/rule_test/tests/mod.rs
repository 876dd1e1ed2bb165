mod expectations;
mod kinds;
mod refusals;

use std::fs;

use super::*;

fn tested(text: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules_test.yaml");
    fs::write(&path, text).unwrap();
    let mut out = Vec::new();
    let passed = test(&[path], &mut out, &ProgressLine::on_stderr(false)).unwrap_or_else(|error| panic!("{error:#}"));
    let printed = String::from_utf8(out).unwrap();
    (passed, printed.replace(&format!("{}/", folder.path().display()), ""))
}

const LAB: &str = "
config:
  version: 1
  rules:
    - {kind: idle, over: 10m, below: 0.05, action: detach, warn: [10m, 2m]}
    - {kind: non-env-processes, action: kill, for: 1m, warn: [], grace: 30s, match: {except_groups: [staff]}}
tests:
  - name: what is idle comes back
    groups: {carol: [staff]}
    scenario:
      version: 1
      users: {alice: 2001, bob: 2002, carol: 2003}
      hosts:
        - name: gpu01
          devices: [{count: 2}]
          environments:
            - {eid: '10', user: alice, devices: [0]}
            - {eid: '20', user: bob, devices: [1]}
          processes:
            - {pid: 100, user: alice, environment: '10', devices: [{index: 0, memory: 1gi, utilization: 0.01}]}
            - {pid: 200, user: bob, environment: '20', devices: [{index: 1, memory: 1gi, utilization: 0.9}]}
            - {pid: 300, user: bob, devices: [{index: 1, memory: 1gi}], during: {from: 5m}}
            - {pid: 400, user: carol, devices: [{index: 1, memory: 1gi}]}
    expect:
";

#[test]
fn a_test_of_what_does_not_happen_fails_and_says_both() {
    let (passed, printed) = tested(&format!(
        "{LAB}
      - {{at: 5m, violations: []}}
      - at: 25m
        violations: [{{rule: idle, user: bob}}]
        warnings: [{{rule: idle, user: bob}}, {{rule: idle, user: alice, number: 1}}]
        actions: [{{action: kill, rule: non-env-processes, pid: 400}}]
"
    ));
    assert!(!passed, "{printed}");
    insta::assert_snapshot!(printed);
}

#[test]
fn a_process_that_goes_on_after_sigterm_is_killed_once() {
    let text = format!(
        "{LAB}
      - at: 6m20s
        violations: [{{rule: non-env-processes, pid: 300, stage: acted}}]
        actions: [{{action: terminate, rule: non-env-processes, pid: 300}}]
      - at: 9m
        violations: []
        actions: [{{action: kill, rule: non-env-processes, pid: 300}}]
"
    );
    let (passed, printed) = tested(&text.replace("    scenario:\n", "    stubborn: [300]\n    scenario:\n"));
    assert!(passed, "{printed}");
}

const TWO_HOSTS: &str = "
config:
  version: 1
  rules: [{kind: max-devices-per-user, limit: 1, scope: all-hosts, for: 1m, action: detach, warn: []}]
tests:
  - name: nobody is taken from while a host is missing
    missing: [{host: b, until: 5m}]
    scenario:
      version: 1
      users: {alice: 2001}
      hosts:
        - {name: a, devices: [{count: 2}], environments: [{eid: '1', user: alice, devices: [0, 1]}]}
        - {name: b, devices: [{}], environments: [{eid: '2', user: alice, devices: [0]}]}
    expect:
";

#[test]
fn promise_17_nothing_that_counts_over_all_hosts_is_done_while_one_is_missing() {
    let (passed, printed) = tested(&format!(
        "{TWO_HOSTS}
      - {{at: 4m50s, violations: [{{rule: max-devices-per-user, user: alice, stage: held}}]}}
      - at: 10m
        violations: []
        actions: [{{rule: max-devices-per-user, action: detach}}, {{rule: max-devices-per-user, action: detach}}]
"
    ));
    assert!(passed, "{printed}");
}

#[test]
fn an_expectation_that_says_little_leaves_to_others_what_only_they_fit() {
    let (passed, printed) = tested(
        "
config: {version: 1, rules: [{kind: non-env-processes}]}
tests:
  - name: which is whose
    scenario:
      version: 1
      users: {alice: 2001}
      hosts:
        - name: a
          devices: [{}]
          processes: [{pid: 1001, user: alice, devices: [{index: 0}]}, {pid: 1002, user: alice, devices: [{index: 0}]}]
    expect:
      - at: 10s
        violations: [{rule: non-env-processes}, {rule: non-env-processes, pid: 1001}]
      - at: 20s
        violations: [{rule: non-env-processes, pid: 1002}, {rule: non-env-processes}]
",
    );
    assert!(passed, "{printed}");
}
