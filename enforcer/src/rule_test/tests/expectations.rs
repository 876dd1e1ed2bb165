//! What the documentation says of expectations, sentence by sentence.

use super::*;

/// Alice has an idle device in an environment, Carol a process outside and Dave one on a device that is not his. The
/// interval is a minute.
fn played(rules: &str, expect: &str) -> (bool, String) {
    tested(&format!(
        "
config: {{version: 1, timezone: UTC, rules: [{rules}]}}
tests:
  - name: expected
    interval: 1m
    scenario:
      version: 1
      users: {{alice: 2001, carol: 2003, dave: 2004}}
      hosts:
        - name: a
          devices: [{{count: 3}}]
          environments:
            - {{eid: '1', user: alice, devices: [0]}}
            - {{eid: '2', user: dave, devices: [1]}}
          processes:
            - {{pid: 300, user: carol, devices: [{{index: 2}}]}}
            - {{pid: 400, user: dave, environment: '2', devices: [{{index: 1, utilization: 0.9}}, {{index: 2, utilization: 0.9}}]}}
    expect:
{expect}
"
    ))
}

const OUTSIDE: &str = "{name: r, kind: non-env-processes, action: terminate, for: 5m, warn: [2m]}";

#[track_caller]
fn passes(rules: &str, expect: &str) {
    let (passed, printed) = played(rules, expect);
    assert!(passed, "{printed}");
}

#[track_caller]
fn fails(rules: &str, expect: &str, why: &str) {
    let (passed, printed) = played(rules, expect);
    assert!(!passed && printed.contains(why), "{printed}");
}

#[test]
fn an_expectation_holds_for_the_last_cycle_at_or_before_its_time() {
    // Both are after the cycle of the fifth minute, and before the next one.
    let twice = "      - {at: 5m10s, violations: [VIOLATION], warnings: [{rule: r}]}
      - {at: 5m50s, violations: [VIOLATION]}";
    let warned = "{rule: r, stage: warned, pid: 300}";
    passes(OUTSIDE, &twice.replace("VIOLATION", warned));
    let second = |violations: &str| {
        format!("      - {{at: 5m10s, warnings: [{{rule: r}}]}}\n      - {{at: 5m50s, violations: {violations}}}")
    };
    fails(OUTSIDE, &second("[]"), "unexpected violation at 5m");
    fails(OUTSIDE, &second("[{rule: r, stage: pending}]"), "no violation");
}

#[test]
fn violations_that_are_left_out_are_not_looked_at_and_what_happens_is_always() {
    passes(OUTSIDE, "      - {at: 4m}");
    fails(OUTSIDE, "      - {at: 4m, violations: []}", "unexpected violation");
    fails(OUTSIDE, "      - {at: 6m}", "unexpected warning");
    fails(OUTSIDE, "      - {at: 6m, warnings: []}", "unexpected warning");
    fails(OUTSIDE, "      - {at: 7m, warnings: [{rule: r}]}", "unexpected action");
    fails(OUTSIDE, "      - {at: 7m, warnings: [{rule: r}], actions: []}", "unexpected action");
    // Since the expectation before, not since the begin.
    passes(
        OUTSIDE,
        "      - {at: 6m, warnings: [{rule: r}]}\n      - {at: 7m, actions: [{rule: r, action: terminate}]}\n      - {at: 9m}",
    );
}

#[test]
fn every_key_of_an_action_is_looked_at() {
    let expect = |action: &str| {
        format!("      - {{at: 8m, warnings: [{{rule: r}}], actions: [{{rule: r, user: dave, host: a, {action}}}]}}")
    };
    let elsewhere = "{name: r, kind: env-devices, action: terminate, for: 5m, warn: [2m]}";
    passes(elsewhere, &expect("action: terminate, eid: '2', pid: 400, device: 2"));
    fails(elsewhere, &expect("action: terminate, pid: 400, device: 0"), "no action");
    fails(elsewhere, &expect("action: terminate, pid: 401"), "no action");
    let held = "{name: r, kind: max-devices-per-user, limit: {users: {dave: 0}}, action: detach, for: 5m, warn: [2m]}";
    passes(held, &expect("action: detach, eid: '2', device: 1, pid: 400"));
    fails(held, &expect("action: detach, eid: '2', device: 1, pid: 300"), "no action");
}

#[test]
fn every_stage_can_be_expected() {
    let rule = "{name: r, kind: non-env-processes, action: report, for: 5m}";
    passes(
        rule,
        "      - {at: 4m, violations: [{rule: r, stage: pending, user: carol, host: a, pid: 300, device: 2}]}",
    );
    passes(rule, "      - {at: 6m, violations: [{rule: r, stage: acted}]}");
    let warns = "{name: r, kind: non-env-processes, action: warn, for: 5m}";
    passes(
        warns,
        "      - {at: 6m, warnings: [{rule: r, number: 1, user: carol, host: a}], violations: [{rule: r, stage: acted}]}",
    );
    passes(OUTSIDE, "      - {at: 6m, warnings: [{rule: r}], violations: [{rule: r, stage: warned}]}");
    passes(
        OUTSIDE,
        "      - {at: 7m, warnings: [{rule: r}], actions: [{rule: r, action: terminate}], violations: [{rule: r, stage: due}]}",
    );
}
