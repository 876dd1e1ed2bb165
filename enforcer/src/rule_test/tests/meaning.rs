//! What the documentation says of limits, exceptions and times, played through collection, rules and plan.

use super::*;

/// Alice and Bob with two devices each, and a third user's process outside, on two hosts. Time begins on Thursday,
/// 1 January 2026, at midnight in UTC.
fn play(config: &str, expect: &str) {
    let (passed, printed) = tested(&format!(
        "
config:
  version: 1
  timezone: UTC
{config}
tests:
  - name: as documented
    interval: 1m
    groups: {{alice: [students, chess], bob: [staff]}}
    scenario:
      version: 1
      users: {{alice: 2001, bob: 2002, carol: 2003}}
      hosts:
        - name: a
          devices: [{{count: 5}}]
          environments:
            - {{eid: '1', user: alice, devices: [0, 1]}}
            - {{eid: '2', user: bob, devices: [2, 3]}}
          processes:
            - {{pid: 300, user: carol, devices: [{{index: 4}}]}}
        - name: b
          devices: [{{}}]
          environments: [{{eid: '3', user: alice, devices: [0]}}]
    expect:
{expect}
"
    ));
    assert!(passed, "{printed}");
}

#[test]
fn a_users_own_limit_goes_before_the_largest_of_the_groups_and_that_before_the_default() {
    let rule = |limit: &str| format!("  rules: [{{kind: max-devices-per-user, limit: {limit}}}]");
    let nobody = "      - {at: 1m, violations: []}";
    let alice = "      - {at: 1m, violations: [{rule: max-devices-per-user, user: alice, host: a}]}";
    let both = "      - {at: 1m, violations: [{rule: max-devices-per-user, user: alice}, {rule: max-devices-per-user, user: bob}]}";
    play(&rule("1"), both);
    play(&rule("2"), nobody);
    play(&rule("{default: 1, groups: {staff: 2}}"), alice);
    play(&rule("{default: 1, groups: {students: 1, chess: 2, staff: 2}}"), nobody);
    play(&rule("{default: 2, groups: {chess: 4}, users: {alice: 1}}"), alice);
    play(&rule("{users: {alice: 1}}"), alice);
    play(&rule("{groups: {faculty: 0}}"), nobody);
}

#[test]
fn overrides_are_for_their_hosts_and_beside_the_sum_over_all() {
    let on_b = "      - {at: 1m, violations: [{rule: r, user: alice, host: b}]}";
    play(
        "  rules: [{name: r, kind: max-devices-per-user, limit: 2, overrides: [{hosts: [b], limit: 0}, {hosts: [a, b], limit: 9}]}]",
        on_b,
    );
    let over_all = "  rules: [{name: r, kind: max-devices-per-user, scope: all-hosts, limit: LIMIT, overrides: [{hosts: [b], limit: 0}]}]";
    play(&over_all.replace("LIMIT", "3"), on_b);
    play(
        &over_all.replace("LIMIT", "2"),
        "      - {at: 1m, violations: [{rule: r, user: alice, host: b}, {rule: r, user: alice}]}",
    );
}

#[test]
fn match_looks_at_those_for_whom_all_holds() {
    let rule =
        |selector: &str| format!("  rules: [{{name: r, kind: max-devices-per-user, limit: 0, match: {selector}}}]");
    let only = |users: &[&str]| {
        let all: Vec<_> = users.iter().map(|user| format!("{{rule: r, {user}}}")).collect();
        format!("      - {{at: 1m, violations: [{}]}}", all.join(", "))
    };
    play(&rule("{groups: [students]}"), &only(&["user: alice, host: a", "user: alice, host: b"]));
    play(&rule("{users: [alice, bob], groups: [staff]}"), &only(&["user: bob"]));
    play(&rule("{except_groups: [chess]}"), &only(&["user: bob"]));
    play(&rule("{users: [alice], except_hosts: [a]}"), &only(&["user: alice, host: b"]));
    play(&rule("{hosts: [a], devices: [2]}"), &only(&["user: bob"]));
    play(&rule("{hosts: [b]}"), &only(&["user: alice, host: b"]));
}

#[test]
fn promise_06_whom_never_names_no_rule_looks_at() {
    play(
        "  never: {users: [alice, carol]}
  rules: [{kind: non-env-processes}, {kind: max-devices-per-user, limit: 0}]",
        "      - {at: 1m, violations: [{rule: max-devices-per-user, user: bob}]}",
    );
}

#[test]
fn promise_07_nothing_ends_before_for_and_every_warning_have_passed() {
    play(
        "  rules: [{kind: non-env-processes, action: terminate, for: 5m, warn: [30m, 5m]}]",
        "      - {at: 4m, violations: [{rule: non-env-processes, stage: pending}]}
      - {at: 5m, warnings: [{rule: non-env-processes, user: carol, number: 1}]}
      - {at: 29m}
      - {at: 30m, warnings: [{rule: non-env-processes, user: carol, number: 2}]}
      - {at: 34m, violations: [{rule: non-env-processes, stage: warned}]}
      - {at: 35m, actions: [{rule: non-env-processes, action: terminate, pid: 300}]}
      - {at: 36m, violations: []}",
    );
}

#[test]
fn a_rule_waits_outside_its_hours_and_goes_on_where_it_was() {
    let rule = |outside: &str| {
        format!(
            "  rules: [{{kind: non-env-processes, action: terminate, for: 2h, warn: [], when: {{days: mon-fri, between: '22:00-01:00', outside: {outside}}}}}]"
        )
    };
    // Thursday's hour after midnight belongs to Wednesday, then it waits until ten in the evening.
    play(
        &rule("pause"),
        "      - {at: 59m, violations: [{rule: non-env-processes, stage: pending}]}
      - {at: 21h, violations: [{rule: non-env-processes, stage: held}]}
      - {at: 22h50m, violations: [{rule: non-env-processes, stage: pending}]}
      - {at: 23h10m, actions: [{rule: non-env-processes, action: terminate, pid: 300}]}",
    );
    play(
        &rule("reset"),
        "      - {at: 23h50m, violations: [{rule: non-env-processes, stage: pending}]}
      - {at: 24h10m, actions: [{rule: non-env-processes, action: terminate, pid: 300}]}",
    );
}

#[test]
fn waivers_and_maintenance_hold_until_they_end() {
    let waived = |head: &str| {
        format!("  {head}\n  rules: [{{name: r, kind: non-env-processes, action: kill, for: 0s, warn: []}}]")
    };
    let until_nine = "      - {at: 8h59m, violations: [{rule: r, stage: held}]}
      - {at: 9h1m, actions: [{rule: r, action: terminate, pid: 300}]}";
    play(&waived("waivers: [{users: [carol], rules: [r], until: 2026-01-01T10:00+01:00, reason: thesis}]"), until_nine);
    play(&waived("maintenance: [{hosts: [a], from: 2026-01-01, until: 2026-01-01T09:00}]"), until_nine);
    let at_once = "      - {at: 1m, actions: [{rule: r, action: terminate}]}";
    play(&waived("waivers: [{users: [bob], until: 2026-01-01, reason: other user}]"), at_once);
    play(&waived("maintenance: [{hosts: [b], from: 2026-01-01, until: 2026-01-01}]"), at_once);
    play(
        &waived("waivers: [{users: [carol], until: 2026-01-01, reason: the whole day}]"),
        "      - {at: 23h59m}
      - {at: 24h1m, actions: [{rule: r, action: terminate}]}",
    );
}
