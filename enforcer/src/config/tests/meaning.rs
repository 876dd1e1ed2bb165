use jiff::civil::Weekday;

use super::*;
use crate::kinds::tests::*;
use crate::kinds::{KINDS, MemoryPer};
use crate::plan::tests::daemon::limit as limit_for_all;

/// The example of the interface's contract, whole.
pub(super) const EXAMPLE: &str = r#"
version: 1
mode: dry-run               # or enforce; a fresh install only reports
interval: 10s
timezone: Europe/Berlin     # for when:, maintenance, waivers; default: the machine's
host_groups: {teaching: ["gpu[01-08]"]}
never:                      # nothing and nobody can overrule this
  users: [root]             # uid 0 outside containers is always in it
  executables: [/usr/lib/xorg/Xorg, /usr/bin/nv-hostengine]   # root-owned paths, never process names
breaker: {signals_per_minute: 20, share_of_users: 0.5, at_least_users: 3}
defaults: {action: report, for: 5m, warn: [30m, 5m], grace: 60s}
maintenance: [{hosts: [gpu07], from: "2026-12-01T08:00", until: "2026-12-01T18:00"}]
waivers: [{users: [alice], rules: [idle], until: "2026-12-15", reason: deadline}]
rules:
  - {kind: non-env-processes, action: terminate, for: 60s, warn: [10m]}
  - {kind: env-devices}
  - {kind: env-memory}
  - name: fair-share
    kind: max-devices-per-user
    limit: {default: 2, groups: {staff: 8}, users: {alice: 4}}   # user, else the largest of the groups, else default
    overrides: [{host_groups: [teaching], limit: {default: 1}}]
    scope: all-hosts
  - {kind: max-environments-per-user, limit: {default: 3}}
  - {kind: max-hosts-per-user, limit: {default: 2}}
  - {kind: max-processes-per-environment, limit: 16}
  - {kind: max-memory-per-user, limit: {default: 80gi}, per: device}      # or total
  - {kind: max-age, limit: 7d}
  - name: idle
    kind: idle
    below: 0.05
    over: 2h                 # average over the window
    only_if: {free_devices_below: 1}
    action: detach           # report | warn | detach | terminate | kill
    processes: terminate     # what detaching does to them: terminate (as genv 1.x) or keep
    when: {days: [mon-fri], between: "08:00-20:00", outside: pause}
    match: {groups: [students], hosts: [gpu02]}   # users, groups, hosts, devices, except_…; an empty list is refused
  - {kind: unknown-processes, over: 1h}
"#;

const MINUTE: Duration = Duration::from_secs(60);

fn strings<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

/// What `check` does not print of it.
#[test]
fn the_contracts_example_means_what_it_says() {
    let config = config(EXAMPLE);
    assert_eq!(
        config.maintenance,
        [Maintenance {
            hosts: HostSet(strings(["gpu07"])),
            from_seconds: 1_796_108_400.0,
            until_seconds: 1_796_144_400.0,
        }]
    );
    assert_eq!(
        config.waivers,
        [Waiver {
            users: strings(["alice"]),
            rules: strings(["idle"]),
            until_seconds: 1_797_375_600.0,
            reason: "deadline".to_owned(),
        }]
    );
    for rule in &config.rules {
        assert_eq!((rule.undelivered, rule.grace), (Undelivered::Act, MINUTE));
    }
    // What only reports warns nobody.
    assert!(config.rules[1].warn.is_empty());
}

#[test]
fn promise_04_a_fresh_install_is_dry_run_and_no_kind_acts_by_itself() {
    let rules: String = KINDS.iter().map(|kind| format!("  - {{{}}}\n", example(kind))).collect();
    let config = config(&format!("version: 1\nrules:\n{rules}"));
    assert_eq!(config.mode, Mode::DryRun);
    assert_eq!(config.rules.len(), KINDS.len());
    for rule in &config.rules {
        assert_eq!(rule.action, Action::Report, "{}", rule.name);
    }
}

#[test]
fn promise_04_the_least_configuration_is_dry_run_with_the_standard_breaker_and_no_rules() {
    let config = config("version: 1\n");
    assert_eq!(config.mode, Mode::DryRun);
    assert_eq!(config.interval, Duration::from_secs(10));
    assert_eq!(config.breaker, BreakerLimits { signals_per_minute: 20, share_of_users: 0.5, at_least_users: 3 });
    assert_eq!(config.never, Never::default());
    assert!(config.rules.is_empty() && config.waivers.is_empty() && config.maintenance.is_empty());
}

#[test]
fn a_rule_that_names_its_kind_alone_has_the_documented_defaults() {
    let config = config("version: 1\nrules: [{kind: idle}, {kind: max-memory-per-user, limit: 1gi}]\n");
    let idle = &config.rules[0];
    assert_eq!((idle.action, idle.grace, idle.processes), (Action::Report, MINUTE, DetachedProcesses::Terminate));
    assert_eq!(idle.kind, Idle { below: 0.05, over: 120 * MINUTE, only_if_free_devices_below: None }.into());
    let memory = MaxMemoryPerUser { limits: limit_for_all(1 << 30), per: MemoryPer::Device, scope: Scope::Host };
    assert_eq!(config.rules[1].kind, memory.into());
    assert_eq!(OutsideSchedule::default(), OutsideSchedule::Pause);
}

#[test]
fn the_hash_is_of_the_files_bytes() {
    let one = config("version: 1\n");
    // sha256sum of the same bytes.
    assert_eq!(one.hash, "09bfcc6a14b83e2192b8673677725c84883ee9cd0c70e45c9ec09daa8f2b2847");
    assert_ne!(one.hash, config("version: 1 \n").hash);
}

#[test]
fn warnings_are_in_order_the_longest_first() {
    let config = config("version: 1\nrules: [{kind: idle, action: detach, warn: [5m, 1h, 30m]}]\n");
    assert_eq!(config.rules[0].warn, [60 * MINUTE, 30 * MINUTE, 5 * MINUTE]);
}

#[test]
fn match_names_whom_and_what_and_whom_not() {
    let config = config(
        r#"version: 1
host_groups: {teaching: ["gpu[01-02]", gpu09], old: [gpu01]}
rules:
  - kind: env-devices
    match:
      users: [alice, "uid:1234"]
      groups: [students]
      hosts: ["a[1-2]"]
      host_groups: [teaching]
      devices: [0, 3]
      except_users: [bob]
      except_groups: [staff]
      except_hosts: [a2]
      except_host_groups: [old]
      except_devices: [3]
"#,
    );
    assert_eq!(
        config.rules[0].selector,
        Selector {
            users: Some(strings(["alice", "uid:1234"])),
            groups: Some(strings(["students"])),
            hosts: Some(HostSet(strings(["a1", "a2", "gpu01", "gpu02", "gpu09"]))),
            devices: Some([0, 3].into()),
            except_users: strings(["bob"]),
            except_groups: strings(["staff"]),
            except_hosts: HostSet(strings(["a2", "gpu01"])),
            except_devices: [3].into(),
        }
    );
}

#[test]
fn names_of_a_directory_service_are_taken_as_they_are() {
    let config = config(
        r#"version: 1
never: {users: ['CORP\root admin']}
rules:
  - kind: max-devices-per-user
    limit: {groups: {"domain users": 2}, users: {"ben jones@corp.example.org": 3}}
    match: {except_groups: ["doe, ann"]}
"#,
    );
    assert_eq!(config.never.users, strings([r"CORP\root admin"]));
    let rule = &config.rules[0];
    let limits = rule.kind.limits().unwrap();
    assert_eq!((limits.base.groups["domain users"], limits.base.users["ben jones@corp.example.org"]), (2, 3));
    assert_eq!(rule.selector.except_groups, strings(["doe, ann"]));
}

#[test]
fn words_that_are_booleans_or_numbers_in_old_yaml_stay_words() {
    let config = config(
        "version: 1
never: {users: [on, no, y, off]}
rules:
  - kind: idle
    when: {days: [sat-mon], between: 22:00-06:00}
    match: {users: [no], groups: [on]}
",
    );
    assert_eq!(config.never.users, strings(["on", "no", "y", "off"]));
    assert_eq!(config.rules[0].selector.users, Some(strings(["no"])));
    assert_eq!(config.rules[0].selector.groups, Some(strings(["on"])));
    let schedule = config.rules[0].schedule.as_ref().unwrap();
    assert_eq!(schedule.days, [Weekday::Monday, Weekday::Saturday, Weekday::Sunday]);
    assert_eq!(schedule.between_minutes, Some((22 * 60, 6 * 60)));
}

#[test]
fn a_tagged_number_is_a_limit_in_every_place() {
    let limits = |limit: &str| {
        let config = config(&format!("version: 1\nrules: [{{kind: max-devices-per-user, limit: {limit}}}]\n"));
        config.rules[0].kind.limits().unwrap().base.clone()
    };
    let all = limits("!!int 3");
    assert_eq!(all, limits("{default: !!int 3}"));
    assert_eq!(all.default, Some(3));
    let table = limits("{groups: {staff: !!int 4}, users: {alice: !!int 5}}");
    assert_eq!((table.groups["staff"], table.users["alice"]), (4, 5));
}

#[test]
fn sections_with_nothing_in_them_are_as_if_left_out() {
    let config = config("version: 1\nnever:\nbreaker:\ndefaults:\nmaintenance:\nwaivers:\nhost_groups:\nrules:\n");
    assert!(config.rules.is_empty());
    assert_eq!(config.breaker, BreakerLimits::default());
}

#[test]
fn a_limit_of_its_own_counts_before_a_merged_one_in_whatever_spelling() {
    let config = config(
        r#"version: 1
rules:
  - {kind: max-environments-per-user, limit: {users: &users {20231234: 8, alice: 8}}}
  - {kind: max-devices-per-user, limit: {users: {<<: *users, "20231234": 2}}}
"#,
    );
    let users = &config.rules[1].kind.limits().unwrap().base.users;
    assert_eq!((users["20231234"], users["alice"], users.len()), (2, 8, 2));
}

#[test]
fn values_may_be_shared_by_alias_and_merged() {
    let rules = config(
        "version: 1
rules:
  - {name: a, kind: env-devices, match: &students {groups: [students]}, action: terminate, warn: &warn [10m]}
  - {name: b, kind: env-memory, match: *students, action: terminate, warn: *warn}
  - &soft {name: c, kind: env-devices, for: 1m, action: terminate, warn: [10m]}
  - {<<: *soft, name: d, for: 2m}
",
    )
    .rules;
    assert_eq!(rules[0].selector, rules[1].selector);
    assert_eq!(rules[1].warn, [10 * MINUTE]);
    assert_eq!((rules[3].name.as_str(), rules[3].for_duration), ("d", 2 * MINUTE));
    assert_eq!(rules[3].warn, rules[2].warn);
}
