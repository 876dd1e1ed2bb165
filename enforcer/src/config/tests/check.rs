use super::*;

fn checked(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("enforcer.yaml");
    std::fs::write(&path, text).unwrap();
    let mut out = Vec::new();
    check(&path, &AccountTable::default(), 0.0, &mut out).unwrap();
    let printed = String::from_utf8(out).unwrap();
    printed.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn check_tells_how_the_rules_will_work() {
    let printed = checked(meaning::EXAMPLE);
    let (summary, _) = printed.split_once("\nwarning:").unwrap();
    // How many warnings depends on the programs that this machine has.
    let (ok, summary) = summary.split_once('\n').unwrap();
    assert!(ok.starts_with("enforcer.yaml: ok, 11 rules, "), "{ok}");
    insta::assert_snapshot!(summary);
}

#[test]
fn check_tells_of_every_kind_of_step() {
    let printed = checked(
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
    insta::assert_snapshot!(printed);
}
