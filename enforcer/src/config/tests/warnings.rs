use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// 2026-12-01T00:00:00Z.
const NOW_SECONDS: f64 = 1_796_083_200.0;

fn accounts() -> AccountTable {
    let users = [("alice", ["alice", "students"]), ("bob", ["bob", "staff"]), ("carol", ["carol", "students"])];
    AccountTable { users: users.map(|(user, groups)| (user.to_owned(), groups.map(str::to_owned).into())).into() }
}

fn warnings(text: &str) -> Vec<String> {
    let text = format!("version: 1\n{text}\n");
    let warnings = Config::warnings("enforcer.yaml", &text, &accounts(), NOW_SECONDS);
    let warnings = warnings.unwrap_or_else(|error| panic!("{error}"));
    warnings.iter().map(Warning::to_string).collect()
}

fn of_rules(rules: &str) -> String {
    warnings(&format!("rules:\n{rules}")).join("\n")
}

#[test]
fn one_user_has_one_limit_by_name_and_by_uid() {
    let warnings = |uid: &str| {
        let text = format!("version: 1\nrules: [{{kind: max-age, limit: {{users: {{root: 2d, {uid}}}}}}}]\n");
        Config::warnings("enforcer.yaml", &text, &NameService, NOW_SECONDS)
    };
    for same in ["2d", "48h"] {
        assert_eq!(warnings(&format!("\"uid:0\": {same}")), Ok(Vec::new()));
    }
    // The daemon logs it with all others; `check` refuses the file.
    let found = warnings("nobody-is-called-this: 1d, \"uid:0\": 3d").unwrap();
    let mistakes: Vec<String> = found.iter().filter_map(Warning::mistake).map(ToString::to_string).collect();
    assert_eq!((found.len(), mistakes.len()), (2, 1), "{found:?}");
    let mistake = "enforcer.yaml:2:78: root and uid:0 are one user, uid 0, with two limits";
    assert!(mistakes[0].starts_with(mistake), "{mistakes:?}");
    // A uid that is written in another way would never be found.
    let error = warnings("\"uid:00\": 3d").unwrap_err().to_string();
    assert!(error.starts_with("enforcer.yaml:2:51: 'uid:00' cannot be a name"), "{error}");
}

#[test]
fn what_is_hardly_meant_is_said() {
    let cases = [
        (
            "unknown users and groups",
            "never: {users: [alise]}
waivers: [{users: [bob, bop], until: 2027-01-01, reason: x}]
rules:
  - kind: max-devices-per-user
    limit: {default: 1, groups: {staf: 8, staff: 4}, users: {carrol: 2}}
    overrides: [{hosts: [a], limit: {groups: {proffs: 3}}}]
    match: {users: [alice], groups: [students, sudents], except_users: ['uid:99'], except_groups: [admins]}",
        ),
        (
            "users in none of the groups beside them",
            "rules:
  - {kind: idle, match: {users: [alice], groups: [staff]}}",
        ),
        (
            "past times",
            "timezone: UTC
maintenance: [{hosts: [a], from: 2026-11-01, until: 2026-11-30}]
waivers: [{users: [alice], until: 2026-11-30T23:59, reason: x}, {users: [bob], until: 2026-12-01, reason: x}]
rules: [{kind: env-devices}]",
        ),
        (
            "times shorter than the interval",
            "interval: 1m
defaults: {for: 5s}
rules:
  - {kind: env-devices, for: 30s, action: terminate, warn: [1m, 59s]}
  - {kind: env-memory, for: 0s}
  - {name: short, kind: idle, over: 2m, for: 0s}
  - {name: long, kind: idle, over: 3m, below: 0.9, for: 0s}",
        ),
        (
            "a default time that a rule does not take",
            "defaults: {for: 5m}
rules:
  - {kind: idle}
  - {name: old, kind: max-age, limit: 7d}
  - {name: said, kind: idle, below: 0.5, for: 0s}
  - {kind: env-devices}",
        ),
        (
            "keys that the action does not use",
            "rules:
  - {kind: env-devices, warn: [5m]}
  - {kind: env-memory, action: terminate, warn: [], grace: 5s}
  - {kind: idle, action: warn, warn: [], processes: keep}",
        ),
        (
            "limits of nothing",
            "rules:
  - {kind: max-devices-per-user, limit: 0}
  - {kind: max-memory-per-user, limit: {default: 0b, groups: {staff: 0gi, students: 1gi}, users: {alice: 0}}}
  - {kind: max-age, limit: 1d, overrides: [{hosts: [a], limit: {users: {alice: 0s}}}]}",
        ),
        ("no rules", "mode: enforce"),
        (
            "rules that change nothing beside others",
            "rules:
  - {name: all, kind: max-devices-per-user, limit: 2, action: detach, warn: [5m]}
  - {name: staff, kind: max-devices-per-user, limit: 8, action: detach, warn: [5m], match: {groups: [staff]}}
  - {name: same, kind: max-devices-per-user, for: 10m, limit: {groups: {staff: 2}}, match: {hosts: [a]}}
  - {name: soft, kind: idle, over: 2h}
  - {name: softer, kind: idle, over: 4h, match: {hosts: [a]}}
  - {name: twice, kind: env-devices}
  - {name: thrice, kind: env-devices}",
        ),
        (
            "exceptions and overrides that leave nothing",
            "never: {users: [bob]}
rules:
  - {name: a, kind: env-devices, match: {hosts: ['a[1-2]'], except_hosts: ['a[1-9]']}}
  - {name: b, kind: env-memory, match: {users: [alice, bob]}, action: terminate, warn: []}
  - name: c
    kind: max-age
    limit: 1d
    overrides: [{hosts: [a1], limit: 2d}, {hosts: [a1], limit: 3d}, {hosts: [b1], limit: 4d}]
    match: {hosts: ['a[1-4]']}",
        ),
    ];
    insta::assert_snapshot!(cases.map(|(what, text)| format!("{what}:\n{}", warnings(text).join("\n"))).join("\n\n"));
}

/// A directory service that finds names also in capitals.
struct Directory;

impl Accounts for Directory {
    fn user_name(&self, username: &str) -> Option<String> {
        Some(username.to_lowercase())
    }

    fn uid_of(&self, _: &str) -> Option<u32> {
        None
    }

    fn group_name(&self, group: &str) -> Option<String> {
        Some(group.to_lowercase())
    }

    fn groups_of(&self, _: &str) -> Option<BTreeSet<String>> {
        None
    }
}

#[test]
fn a_name_with_another_spelling_than_the_machines_is_said() {
    let text = r#"version: 1
never: {users: ['CORP\Ann', bob, 'uid:7']}
rules: [{kind: max-age, limit: {groups: {"Domain Users": 1d, staff: 1d}}}]
"#;
    let warnings = Config::warnings("enforcer.yaml", text, &Directory, NOW_SECONDS).unwrap();
    let said: Vec<String> = warnings.iter().map(Warning::to_string).collect();
    let said: Vec<&str> = said.iter().flat_map(|it| it.lines()).filter(|line| line.contains(" calls ")).collect();
    assert_eq!(
        said,
        [
            r"enforcer.yaml:2:17: this machine calls the user CORP\Ann corp\ann, and rules compare names as written: write corp\ann",
            "enforcer.yaml:3:42: this machine calls the group Domain Users domain users, and rules compare names as written: write domain users",
        ]
    );
}

#[test]
fn rules_of_one_kind_that_say_different_things_are_not_warned_of() {
    let all = of_rules(
        "  - {name: all, kind: max-devices-per-user, limit: 8}
  - {name: stricter, kind: max-devices-per-user, limit: 2, match: {groups: [students]}}
  - {name: sooner, kind: max-devices-per-user, limit: 8, for: 1s1ms, match: {users: [bob]}}
  - {name: harder, kind: max-devices-per-user, limit: 9, action: detach, warn: []}
  - {name: elsewhere, kind: max-devices-per-user, limit: 9, scope: all-hosts}
  - {name: each, kind: max-memory-per-user, limit: 1gi}
  - {name: sum, kind: max-memory-per-user, limit: 2gi, per: total}
  - {name: by-day, kind: env-devices, when: {days: mon-fri}}
  - {name: always, kind: env-devices, match: {groups: [students]}}
  - {name: excepting, kind: env-memory, match: {except_groups: [staff]}}
  - {name: those, kind: env-memory, match: {groups: [staff]}}",
    );
    let about_intervals = |line: &&str| line.contains("shorter than the interval");
    let others: Vec<_> = all.lines().filter(|line| line.contains("enforcer.yaml") && !about_intervals(line)).collect();
    assert_eq!(others, [""; 0]);
}

#[test]
fn programs_of_never_that_anybody_could_replace_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("loose"), "").unwrap();
    fs::set_permissions(path("loose"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let paths = ["loose", "folder", "missing"].map(path);
    let text =
        format!("never:\n  executables:\n  - /bin/sh\n  - {}\nrules: [{{kind: env-devices}}]", paths.join("\n  - "));
    let all = warnings(&text);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all[0].contains("/bin/sh protects less than before"), "{all:?}");
    // Whose the file is depends on who runs this test.
    assert!(all[1].contains("others than root can write to") || all[1].contains("is not root's"), "{all:?}");
    assert!(all[2].contains("folder is not a program"), "{all:?}");
    assert!(all[3].contains("missing on this machine"), "{all:?}");
}

#[test]
fn a_rule_that_ends_what_another_one_keeps_is_named() {
    let keeps = "- {kind: idle, for: 0s, action: detach, warn: [1h], undelivered: hold, processes: keep}";
    let with = |rule: &str| of_rules(&format!("{keeps}\n{rule}"));
    let ends = "{kind: env-devices, action: terminate, for: 5m, warn: [1h], undelivered: hold";
    let said = with(&format!("- {ends}}}"));
    assert!(
        said.contains("rule idle keeps processes on the device that it takes, and rule env-devices ends"),
        "{said}"
    );
    assert_eq!(with("- {kind: env-devices}"), "");
    let elsewhere = format!("- {ends}, match: {{devices: [7]}}}}");
    let of_one = keeps.replace("keep}", "keep, match: {devices: [0]}}");
    assert_eq!(of_rules(&format!("{of_one}\n{elsewhere}")), "");
}
