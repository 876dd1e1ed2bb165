use super::*;

/// Carol has a process outside of environments. Dave's process uses the device of his environment, and another one.
const LAB: &str = "
config: {version: 1, timezone: UTC, rules: [RULE]}
tests:
  - name: expected
    interval: 1m
    scenario:
      version: 1
      users: {carol: 2003, dave: 2004}
      hosts:
        - name: a
          devices: [{count: 3}]
          environments: [{eid: '2', user: dave, devices: [1]}]
          processes:
            - {pid: 300, user: carol, devices: [{index: 2}]}
            - {pid: 400, user: dave, environment: '2', devices: [{index: 1, utilization: 0.9}, {index: 2, utilization: 0.9}]}
    expect: [EXPECT]
";

const OUTSIDE: &str = "{name: r, kind: non-env-processes, action: terminate, for: 5m, warn: [2m]}";
const ELSEWHERE: &str = "{name: r, kind: env-devices, action: terminate, for: 5m, warn: [2m]}";
const HELD: &str =
    "{name: r, kind: max-devices-per-user, limit: {users: {dave: 0}}, action: detach, for: 5m, warn: [2m]}";

#[test]
fn an_expectation_holds_if_all_of_its_keys_do_in_the_last_cycle_before_its_time() {
    let twice = |violations: &str| {
        let warned = "violations: [{rule: r, stage: warned, pid: 300}], warnings: [{rule: r}]";
        format!("{{at: 5m10s, {warned}}}, {{at: 5m50s, violations: {violations}}}")
    };
    let acted = |action: &str| {
        format!("{{at: 8m, warnings: [{{rule: r}}], actions: [{{rule: r, user: dave, host: a, action: {action}}}]}}")
    };
    let report = OUTSIDE.replace("terminate", "report").replace(", warn: [2m]", "");
    let warn = report.replace("report", "warn");
    // The last column is what the output says of an expectation that does not hold.
    for (rule, expect, wrong) in [
        // Both are after the cycle of the fifth minute, and before the next one.
        (OUTSIDE, &*twice("[{rule: r, stage: warned, pid: 300}]"), ""),
        (OUTSIDE, &*twice("[]"), "unexpected violation at 5m"),
        (OUTSIDE, &*twice("[{rule: r, stage: pending}]"), "no violation"),
        (OUTSIDE, "{at: 6m, warnings: []}", "unexpected warning"),
        (OUTSIDE, "{at: 6m}", "unexpected warning"),
        (OUTSIDE, "{at: 7m, warnings: [{rule: r}]}", "unexpected action"),
        (OUTSIDE, "{at: 7m, warnings: [{rule: r}], actions: [{rule: r, action: terminate}], violations: [DUE]}", ""),
        (&*report, "{at: 6m, violations: [{rule: r, stage: acted, user: carol, host: a, pid: 300, device: 2}]}", ""),
        (&*warn, "{at: 6m, warnings: [{rule: r, number: 1, user: carol, host: a}], violations: [ACTED]}", ""),
        (ELSEWHERE, &*acted("terminate, eid: '2', pid: 400, device: 2"), ""),
        (ELSEWHERE, &*acted("terminate, pid: 400, device: 0"), "no action"),
        (ELSEWHERE, &*acted("terminate, pid: 401"), "no action"),
        (HELD, &*acted("detach, eid: '2', device: 1, pid: 400"), ""),
        (HELD, &*acted("detach, eid: '2', device: 1, pid: 300"), "no action"),
    ] {
        let expect = expect.replace("DUE", "{rule: r, stage: due}").replace("ACTED", "{rule: r, stage: acted}");
        let (passed, printed) = tested(&LAB.replace("RULE", rule).replace("EXPECT", &expect));
        assert!(passed == wrong.is_empty() && printed.contains(wrong), "{rule} {expect}: {printed}");
    }
}
