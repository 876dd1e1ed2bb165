use super::*;

#[test]
fn promise_11_an_unknown_key_is_refused_with_line_and_column() {
    insta::assert_snapshot!(refused([
        "intervall: 10s",
        "never: {user: [root]}",
        "breaker: {signals: 3}",
        "defaults: {warning: [5m]}",
        "maintenance: [{host: [a], from: 2026-12-01, until: 2026-12-01}]",
        "waivers: [{user: [a], until: 2026-12-01, reason: x}]",
        "rules: [{kind: idle, limits: 3}]",
        "rules: [{kind: max-age, limit: {default: 7d, group: {a: 1d}}}]",
        "rules: [{kind: max-age, limit: 1d, overrides: [{host: [a], limit: 2d}]}]",
        "rules: [{kind: idle, only_if: {free: 1}}]",
        "rules: [{kind: idle, when: {day: mon}}]",
        "rules: [{kind: idle, match: {user: [a]}}]",
    ]));
}

#[test]
fn wrong_types_and_unknown_words_are_refused() {
    insta::assert_snapshot!(refused([
        "mode: on",
        "mode: [enforce]",
        "interval: 10",
        "interval: 1ms",
        "timezone: Mars/Olympus",
        "rules: {kind: idle}",
        "rules: [{kind: max-gpus}]",
        "rules: [{name: a}]",
        "rules: [{kind: idle, action: stop}]",
        "rules: [{kind: idle, for: five minutes}]",
        "rules: [{kind: idle, for: 1h30}]",
        "rules: [{kind: idle, for: 1000w}]",
        "rules: [{kind: idle, below: 5}]",
        "rules: [{kind: idle, below: 5%}]",
        "rules: [{kind: idle, below: .nan}]",
        "rules: [{kind: idle, below: 0}]",
        "rules: [{kind: max-devices-per-user, limit: two}]",
        "rules: [{kind: max-devices-per-user, limit: -1}]",
        "rules: [{kind: max-devices-per-user, limit: 1.5}]",
        "rules: [{kind: max-devices-per-user, limit: {default: 0x2}}]",
        "rules: [{kind: max-devices-per-user, limit: {default: 5000000000}}]",
        "rules: [{kind: max-devices-per-user, limit: [2]}]",
        "rules: [{kind: max-devices-per-user, limit: 2, scope: hosts}]",
        "rules: [{kind: max-memory-per-user, limit: 80}]",
        "rules: [{kind: max-memory-per-user, limit: 80 gallons}]",
        "rules: [{kind: max-age, limit: 7}]",
        "rules: [{kind: env-devices, match: {devices: [010]}}]",
        "rules: [{kind: env-devices, match: {devices: [one]}}]",
        "rules: [{kind: env-devices, match: {users: alice}}]",
        "breaker: {share_of_users: 50}",
        "breaker: {signals_per_minute: 0}",
        "notify: {socket: notify.sock}",
        "breaker: {share_of_users: 0}",
        "breaker: {at_least_users: -1}",
    ]));
}

#[test]
fn nothing_is_not_everything() {
    insta::assert_snapshot!(refused([
        "rules: [{kind: env-devices, match: {users: []}}]",
        "rules: [{kind: env-devices, match: {users: }}]",
        "rules: [{kind: env-devices, match: {hosts: ~}}]",
        "rules: [{kind: env-devices, match: }]",
        "rules: [{kind: env-devices, match: {devices: []}}]",
        "rules: [{kind: env-devices, match: {except_groups: []}}]",
        "rules: [{kind: idle, when: {}}]",
        "rules: [{kind: idle, when: {days: []}}]",
        "rules: [{kind: max-age, limit: {}}]",
        "rules: [{kind: max-age, leases: false}]",
        "rules: [{kind: max-age, leases: 8h}]",
        "rules: [{kind: idle, leases: true}]",
        "rules: [{kind: max-age, leases: true, overrides: [{hosts: [a], limit: 2d}]}]",
        "rules: [{kind: max-age, limit: }]",
        "rules: [{kind: idle, for: }]",
        "rules: [{kind: idle, action: detach, warn: }]",
        "host_groups: {teaching: []}",
        "never: {users: []}",
        "never: {executables: }",
        "waivers: [{users: [], until: 2026-12-01, reason: x}]",
        "waivers: [{users: [a], rules: [], until: 2026-12-01, reason: x}]",
        "waivers: [{users: [a], until: 2026-12-01, reason: ''}]",
        "maintenance: [{from: 2026-12-01, until: 2026-12-01}]",
        "maintenance: [{hosts: [], from: 2026-12-01, until: 2026-12-01}]",
        "rules: [{kind: max-age, limit: 1d, overrides: [{limit: 2d}]}]",
    ]));
}

#[test]
fn a_rule_that_acts_says_how_it_warns() {
    insta::assert_snapshot!(refused([
        "rules: [{kind: env-devices, action: terminate}]",
        "rules: [{kind: env-devices, action: kill}]",
        "rules: [{kind: idle, action: detach}]",
        "defaults: {action: terminate}\nrules: [{kind: env-devices}]",
        "rules: [{kind: idle, action: detach, warn: [0s]}]",
        "rules: [{kind: idle, action: detach, warn: [5m, 300s]}]",
        "rules: [{kind: env-devices, action: kill, warn: [], grace: 0s}]",
    ]));
}

#[test]
fn an_action_that_does_not_end_what_its_rule_forbids_is_refused() {
    insta::assert_snapshot!(refused([
        "rules: [{kind: non-env-processes, action: detach, warn: []}]",
        "rules: [{kind: env-devices, action: detach, warn: []}]",
        "rules: [{kind: env-memory, action: detach, warn: []}]",
        "rules: [{kind: unknown-processes, action: terminate, warn: []}]",
        "defaults: {action: kill, warn: []}\nrules: [{kind: unknown-processes}]",
        "rules: [{kind: unknown-processes, over: 1s}]",
        "rules: [{kind: max-memory-per-user, limit: 1gi, action: detach, warn: []}]",
        "defaults: {action: detach, warn: []}\nrules: [{kind: max-processes-per-environment, limit: 1}]",
    ]));
}

#[test]
fn keys_of_other_kinds_and_impossible_values_are_refused() {
    insta::assert_snapshot!(refused([
        "rules: [{kind: env-devices, limit: 3}]",
        "rules: [{kind: max-age, limit: 3d, below: 0.5}]",
        "rules: [{kind: max-hosts-per-user, limit: 3, scope: all-hosts}]",
        "rules: [{kind: max-devices-per-user}]",
        "rules: [{kind: max-devices-per-user, limit: 010}]",
        "rules: [{kind: max-devices-per-user, limit: 1e3}]",
        "rules: [{kind: max-devices-per-user, limit: 99999999999999999999999}]",
        "rules: [{kind: max-devices-per-user, limit: {default: 010}}]",
        "rules: [{kind: max-devices-per-user, limit: 0o10}]",
        "rules:\n- kind: max-devices-per-user\n  limit: 1_000 # a thousand",
        "rules: [{kind: max-devices-per-user, limit: +5}]",
        "rules: [{kind: max-memory-per-user, limit: 0x10}]",
        "rules: [{kind: max-age, limit: 0b11}]",
        "rules: [{kind: max-devices-per-user, limit: {users: {alice: 0x10}}}]",
        "rules: [{kind: max-memory-per-user, limit: 3gi, scope: all-hosts}]",
        "rules: [{kind: idle, over: 5s}]",
        "rules: [{kind: idle, only_if: {free_devices_below: 0}}]",
        "rules: [{kind: max-age, limit: 1s500ms}]",
        "rules: [{kind: idle}, {kind: idle}]",
        "rules: [{name: a, kind: idle}, {name: a, kind: env-devices}]",
        "rules: [{name: 'a b', kind: idle}]",
        "rules: [{kind: idle, when: {days: [mon-fr]}}]",
        "rules: [{kind: idle, when: {between: 8-20}}]",
        "rules: [{kind: idle, when: {between: '08:00-08:00'}}]",
    ]));
}

#[test]
fn names_and_times_that_cannot_be_are_refused() {
    insta::assert_snapshot!(refused([
        "never: {users: [' alice']}",
        "never: {users: ['uid:-1']}",
        "never: {users: [\"al\\eice\"]}",
        "never: {executables: [Xorg]}",
        "never: {executables: [/usr/../bin/x]}",
        "rules: [{kind: env-devices, match: {hosts: [gpu*]}}]",
        "rules: [{kind: env-devices, match: {hosts: ['gpu[1-']}}]",
        "rules: [{kind: env-devices, match: {hosts: [gpu[1-2]]}}]",
        "rules: [{kind: env-devices, match: {host_groups: [teaching]}}]",
        "host_groups: {teaching: ['gpu[1-100000]']}",
        "maintenance: [{hosts: [a], from: tomorrow, until: 2026-12-01}]",
        "maintenance: [{hosts: [a], from: 2026-12-02, until: 2026-12-01}]",
        "waivers: [{users: [a], rules: [idle], until: 2026-12-01, reason: x}]",
        "waivers: [{users: [a], reason: x}]",
    ]));
}

#[test]
fn an_unknown_zone_is_refused_where_a_rule_a_window_or_a_waiver_needs_it() {
    let parsed =
        |text: &str| Config::of_machine("enforcer.yaml", &format!("version: 1\n{text}\n"), TimeZone::unknown());
    for text in [
        "rules: [{kind: idle, when: {between: '08:00-20:00'}}]",
        "rules: [{kind: idle, when: {days: mon-fri}}]",
        "maintenance: [{hosts: [a], from: 2026-12-01, until: 2026-12-02T00:00Z}]",
        "waivers: [{users: [a], until: 2026-12-02T08:00, reason: x}]",
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains(": the time zone of this machine is unknown: "), "{error}");
        assert!(parsed(&format!("timezone: UTC\n{text}")).is_ok(), "{text}");
    }
    let own = "waivers: [{users: [a], until: '2026-12-02T08:00+01:00', reason: x}]\nrules: [{kind: idle}]";
    let config = parsed(own).unwrap();
    assert!(Summary { config: &config, now_seconds: 0.0 }.to_string().contains("\ntimezone   unknown ("));
}

#[test]
fn what_is_no_yaml_or_said_twice_is_refused() {
    insta::assert_snapshot!(refused([
        "rules: [{kind: idle",
        "mode: enforce\nmode: dry-run",
        "rules: [{kind: idle, for: 1m, for: 2m}]",
        "rules: [{kind: max-age, limit: {users: {a: 1d, a: 2d}}}]",
        "\tmode: enforce",
        "mode: *unknown",
        "---\nversion: 1",
        "- a",
    ]));
    let others = ["", "version: 2\n", "version: \"1.0\"\n", "version: one\n", "mode: dry-run\n", "[]", "\u{0}"];
    let errors = others.map(|text| Config::parse("enforcer.yaml", text).unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn a_file_that_was_never_meant_as_configuration_is_refused_at_once() {
    let lines = "# 0123456789\n".repeat(800_000);
    assert!(lines.len() > 10_000_000);
    let error = Config::parse("huge.yaml", &lines).unwrap_err();
    insta::assert_snapshot!(error, @"huge.yaml: the configuration is larger than 1 MiB, far beyond any that was meant: name the right file");
    let rules = |count: u32| {
        let rules: String = (0..count).map(|n| format!("  - {{kind: idle, name: r{n}}}\n")).collect();
        Config::parse("many.yaml", &format!("version: 1\nrules:\n{rules}"))
    };
    assert_eq!(rules(1000).unwrap().rules.len(), 1000);
    let error = rules(1001).unwrap_err();
    assert!(error.to_string().starts_with("many.yaml:1003:5: these are more than 1000 rules"), "{error}");
    let error = rules(30_000).unwrap_err();
    assert!(error.to_string().starts_with("many.yaml:"), "{error}");
}

#[test]
fn a_file_that_names_hosts_without_end_is_refused() {
    let refused = |head: &str, name: &str| {
        let names = vec![name; 30_000].join(", ");
        let error = Config::parse("enforcer.yaml", &head.replace("NAMES", &names)).unwrap_err().to_string();
        assert!(error.contains("the file names more than 200000 hosts"), "{error:.200}");
    };
    refused("version: 1\nhost_groups: {all: [NAMES]}\n", "'a[1-10000]'");
    let rules: String =
        (0..30).map(|n| format!("- {{kind: idle, name: r{n}, match: {{host_groups: [all]}}}}\n")).collect();
    let text = format!("version: 1\nhost_groups: {{all: ['a[1-10000]']}}\nrules:\n{rules}");
    let error = Config::parse("enforcer.yaml", &text).unwrap_err().to_string();
    assert!(error.starts_with("enforcer.yaml:23:49: with these the file names more than 200000 hosts"), "{error}");
}

#[test]
fn files_that_cannot_be_read_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, bytes: Option<&[u8]>| {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let error = Config::load(&path).unwrap_err().to_string();
        error.replace(&folder.path().display().to_string(), "/etc")
    };
    let errors = [
        load("missing.yaml", None),
        load("latin1.yaml", Some(b"version: 1\n# caf\xe9\n")),
        load("large.yaml", Some(&vec![b'#'; 2 << 20])),
        load("", None),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

proptest::proptest! {
    /// A file in which somebody's editor, disk or cat left something.
    #[test]
    fn a_damaged_configuration_is_one_or_an_error(
        from in 0..1800_usize, length in 0..40_usize, instead in "\\PC{0,8}|[{}\\[\\]:,#&*!|>'\"%@`\n\t -]{0,8}",
    ) {
        let example: Vec<char> = meaning::EXAMPLE.chars().collect();
        let from = from.min(example.len());
        let until = (from + length).min(example.len());
        let text: String = example[..from].iter().copied().chain(instead.chars()).chain(example[until..].iter().copied()).collect();
        let warnings = Config::warnings("enforcer.yaml", &text, &AccountTable::default(), 0.0);
        match Config::parse("enforcer.yaml", &text) {
            Ok(config) => {
                proptest::prop_assert!(warnings.is_ok());
                let summary = Summary { config: &config, now_seconds: 0.0 }.to_string();
                proptest::prop_assert!(!summary.is_empty());
                for rule in &config.rules {
                    // Nothing that acts has lost its warnings.
                    proptest::prop_assert!(!rule.action.acts() || !rule.warn.is_empty() || text.contains("warn: []"));
                }
            }
            Err(error) => {
                let text = error.to_string();
                proptest::prop_assert!(text.starts_with("enforcer.yaml:"));
                proptest::prop_assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{:?}", text);
                proptest::prop_assert_eq!(warnings.unwrap_err(), error);
            }
        }
    }
}
