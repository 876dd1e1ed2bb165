//! What `check` prints.

use std::path::Path;

use super::*;

/// What `check` prints of a configuration, and its error.
fn checked(text: &str) -> (String, Option<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("enforcer.yaml");
    std::fs::write(&path, text).unwrap();
    let mut out = Vec::new();
    let error = check(&path, &AccountTable::default(), 0.0, &mut out).err();
    let plain = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
    let printed = plain(String::from_utf8(out).unwrap());
    (printed, error.map(|error| plain(format!("{error:#}"))))
}

#[test]
fn check_tells_how_the_rules_will_work() {
    let (printed, error) = checked(meaning::EXAMPLE);
    assert_eq!(error, None);
    let (summary, _) = printed.split_once("\nwarning:").unwrap();
    // How many warnings depends on the programs that this machine has.
    let (ok, summary) = summary.split_once('\n').unwrap();
    assert!(ok.starts_with("enforcer.yaml: ok, 11 rules, "), "{ok}");
    insta::assert_snapshot!(summary);
}

#[test]
fn check_tells_of_every_kind_of_step() {
    let (printed, error) = checked(
        "version: 1
mode: enforce
interval: 1m30s
timezone: UTC
breaker: {share_of_users: 0.07}
rules:
  - {name: a, kind: non-env-processes, action: kill, for: 0s, warn: [], grace: 90s}
  - {name: b, kind: idle, action: detach, warn: [], processes: keep, when: {between: '22:00-06:00', outside: reset}}
  - {name: c, kind: max-age, limit: 36h, action: warn, match: {except_hosts: ['g[1-9]'], devices: [0, 1]}}
  - {name: g, kind: max-age, leases: true, action: detach, warn: [5m]}
  - {name: h, kind: max-age, limit: 12h, leases: true}
  - {name: d, kind: max-memory-per-user, limit: {users: {alice: 1500m}}, per: total, scope: all-hosts}
  - {name: f, kind: idle, action: kill, warn: []}
  - {name: e, kind: max-devices-per-user, limit: 1, match: {hosts: ['g[1-5]'], except_users: [alice, bob]}}
",
    );
    assert_eq!(error, None);
    insta::assert_snapshot!(printed);
}

#[test]
fn promise_11_check_fails_on_an_unknown_key_with_line_and_column() {
    let (printed, error) = checked("version: 1\nrules:\n  - {kind: idle, belov: 0.1}\n");
    assert_eq!(printed, "");
    insta::assert_snapshot!(error.unwrap(), @r"
    enforcer.yaml:3:18: unknown field `belov`, expected one of name, kind, action, for, warn, undelivered, remember, grace, processes, limit, overrides, scope, per, leases, below, over, only_if, match, when
     2 | rules:
     3 |   - {kind: idle, belov: 0.1}
       |                  ^
    ");
}

#[test]
fn check_says_which_file_is_not_there() {
    let mut out = Vec::new();
    let path = Path::new("/nonexistent/enforcer.yaml");
    let error = check(path, &AccountTable::default(), 0.0, &mut out).unwrap_err();
    assert!(error.downcast_ref::<genv_core::yaml::Error>().is_some());
    insta::assert_snapshot!(error, @"/nonexistent/enforcer.yaml: cannot read it: No such file or directory (os error 2); name a file that this user can read");
}
