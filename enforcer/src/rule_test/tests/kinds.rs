use super::*;
use crate::config::Action;
use crate::kinds::KINDS;

/// A lab in which each kind finds something: rules, what is done about each at last, and what of it is left.
const LAB: &str = "
      version: 1
      users: {alice: 2001, bob: 2002}
      hosts:
        - name: a
          devices: [{count: 4, memory: 16gi}]
          environments: ENVIRONMENTS
          processes: PROCESSES
        - name: b
          devices: [{count: 2, memory: 16gi}]
          environments: [{eid: '9', user: alice, devices: [0], created: 1h}]
";

/// Plays one rule on the lab, with all of its warnings, and tells what was done until then and what violations are left.
fn played(rule: &str, action: Action, environments: &str, processes: &str) -> (String, String) {
    let scenario = LAB.replace("ENVIRONMENTS", environments).replace("PROCESSES", processes);
    let action = action.word();
    let text = format!(
        "config: {{version: 1, rules: [{{{rule}, action: {action}, for: 1m, warn: [2m, 1m], grace: 30s}}]}}
tests:
  - name: all
    scenario:{scenario}
    expect: [{{at: 20m}}]
"
    )
    .replace("grace: 30s", if action == "kill" { "grace: 30s" } else { "name: rule" });
    let file = TestFile::parse("rules_test.yaml", &text, Path::new("/nonexistent"));
    let file = file.unwrap_or_else(|error| panic!("{error}"));
    let record = file.tests[0].course.run().unwrap();
    let told: usize = record.0.iter().map(|cycle| cycle.warnings.len()).sum();
    let done = record.0.iter().flat_map(|cycle| {
        let at = genv_core::duration::format_duration(cycle.at);
        cycle.actions.iter().map(move |fact| format!("  {at} {fact}\n"))
    });
    let left = record.0.last().unwrap().violations.iter();
    (
        format!("{rule} {action}: {told} warnings\n{}", done.collect::<String>()),
        left.map(|fact| format!("{fact}\n")).collect(),
    )
}

#[test]
fn every_action_ends_what_its_kind_forbids() {
    let two_of_alice =
        "[{eid: '1', user: alice, devices: [0, 1], created: 30m}, {eid: '2', user: alice, devices: [2], created: 20m}]";
    let one_of_alice = "[{eid: '1', user: alice, devices: [0], gpu_memory: 4gi, created: 30m}]";
    let two_processes = "[{pid: 101, user: alice, environment: '1', devices: [{index: 0, memory: 3gi}], started: 10m}, \
                         {pid: 102, user: alice, environment: '1', devices: [{index: 0, memory: 3gi}], started: 5m}]";
    let elsewhere = "[{pid: 101, user: alice, environment: '1', devices: [{index: 3}]}]";
    let outside = "[{pid: 101, user: bob, devices: [{index: 3}]}]";
    let cases = [
        ("kind: non-env-processes", "[]", outside),
        ("kind: env-devices", one_of_alice, elsewhere),
        ("kind: env-memory", one_of_alice, two_processes),
        ("kind: max-devices-per-user, limit: 1", two_of_alice, "[]"),
        ("kind: max-devices-per-user, limit: 1, scope: all-hosts", two_of_alice, "[]"),
        ("kind: max-environments-per-user, limit: 1", two_of_alice, "[]"),
        ("kind: max-hosts-per-user, limit: 1", one_of_alice, "[]"),
        ("kind: max-processes-per-environment, limit: 1", one_of_alice, two_processes),
        ("kind: max-memory-per-user, limit: 4gi", one_of_alice, two_processes),
        ("kind: max-memory-per-user, limit: 4gi, per: total, scope: all-hosts", one_of_alice, two_processes),
        ("kind: max-age, limit: 30m", two_of_alice, "[]"),
        (
            "kind: max-age, leases: true",
            "[{eid: '1', user: alice, devices: [0], created: 30m, lease: 20m}, \
              {eid: '2', user: alice, devices: [2], created: 20m}]",
            "[]",
        ),
        ("kind: idle, over: 5m, match: {hosts: [a]}", one_of_alice, two_processes),
    ];
    for kind in KINDS.iter().filter(|kind| kind.cannot(Action::Kill).is_none()) {
        let has_case = cases
            .iter()
            .any(|(rule, ..)| rule.split(',').next().is_some_and(|it| it == format!("kind: {}", kind.word)));
        assert!(has_case, "no case of {}", kind.word);
    }
    let mut printed = String::new();
    for (rule, environments, processes) in cases {
        for action in [Action::Detach, Action::Terminate, Action::Kill] {
            let text = format!("version: 1\nrules: [{{{rule}, action: {}, warn: []}}]", action.word());
            if Config::parse("enforcer.yaml", &text).is_err() {
                continue;
            }
            let (done, left) = played(rule, action, environments, processes);
            printed += &done;
            assert_eq!(left, "", "{done}");
        }
    }
    insta::assert_snapshot!(printed);
}
