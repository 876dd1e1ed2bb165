//! The documentation and the example configuration are whole and true.

use genv_core::duration::format_duration;

use std::collections::BTreeMap;

use super::*;
use crate::kinds::tests::MaxMemoryPerUser;
use crate::kinds::{IdleLimit, KindDefinition, MemoryPer};

const DOCUMENTATION: &str = include_str!("../../../../docs/enforcement.md");
const PACKAGED: &str = include_str!("../../../../packaging/enforcer.yaml");

/// The first YAML after a sentence of the documentation.
fn documented_after(sentence: &str) -> &'static str {
    let (_, rest) = DOCUMENTATION.split_once(sentence).unwrap();
    let (_, rest) = rest.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

fn documented_example() -> &'static str {
    documented_after("This example uses every key.")
}

/// The keys of the format's types.
fn keys() -> Vec<&'static str> {
    let sources = [include_str!("../format/mod.rs"), include_str!("../format/values.rs")];
    let lines = sources.iter().flat_map(|source| source.lines());
    let fields = lines.filter_map(|line| {
        let line = line.trim();
        let visible = ["pub(super) ", "pub(crate) ", "pub(in crate::config) "];
        let field = visible.iter().find_map(|visibility| line.strip_prefix(visibility))?;
        let (key, _) = field.split_once(": ")?;
        Some(match key {
            "for_duration" => "for",
            "selector" => "match",
            key => key,
        })
    });
    fields.filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_')).collect()
}

#[test]
fn the_documented_example_is_a_configuration_with_every_key() {
    let example = documented_example();
    assert_eq!(config(example).rules.len(), documented_kinds().len());
    let keys = keys();
    assert!(keys.len() > 55, "{keys:?}");
    for key in keys {
        assert!(
            example.contains(&format!("{key}: ")) || example.contains(&format!("{key}:\n")),
            "the example lacks {key}"
        );
        assert!(
            DOCUMENTATION.contains(&format!("`{key}`")) || DOCUMENTATION.contains(&format!("`{key}:")),
            "no table tells of {key}"
        );
    }
}

#[test]
fn the_documented_policy_and_the_example_of_every_key_give_no_warning() {
    let policy = documented_after("## A first policy");
    assert_eq!(config(policy).rules.len(), 3);
    let users = [
        ("alice", ["alice", "students", "assistants"]),
        ("bob", ["bob", "staff", "students"]),
        ("carol", ["carol", "students", "staff"]),
        ("root", ["root", "staff", "students"]),
        ("backup", ["backup", "staff", "students"]),
    ];
    let accounts =
        AccountTable { users: users.map(|(user, groups)| (user.to_owned(), groups.map(str::to_owned).into())).into() };
    for text in [policy, documented_example()] {
        let warnings = Config::warnings("policy.yaml", text, &accounts, 0.0).unwrap();
        let warnings = warnings.iter().map(Warning::to_string);
        // Which programs of never this machine has, differs.
        let warnings: Vec<_> = warnings.filter(|it| !it.contains("on this machine")).collect();
        assert!(warnings.is_empty(), "{warnings:#?}");
    }
}

/// The cells of the table of kinds: kind, what it finds, its keys, its `for`, its actions.
fn documented_kinds() -> Vec<[&'static str; 5]> {
    let (_, rest) = DOCUMENTATION.split_once("| kind | finds |").unwrap();
    let (table, _) = rest.split_once("\n\n").unwrap();
    let rows = table.lines().skip(2).map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        cells.try_into().unwrap()
    });
    rows.collect()
}

#[test]
fn every_kind_is_documented_with_its_keys_its_time_and_its_actions() {
    let code = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let mut kinds = Vec::new();
    for [kind, _, own_keys, for_duration, actions] in documented_kinds() {
        let word = kind.trim_matches('`');
        let kind: &'static KindDefinition = genv_core::yaml::parse("kind", word).unwrap();
        assert_eq!(own_keys, code(kind.keys), "{word}");
        assert_eq!(for_duration, code(&[&format_duration(kind.default_for())]), "{word}");
        let acting = [Action::Detach, Action::Terminate, Action::Kill];
        let possible: Vec<_> = acting.into_iter().filter(|action| kind.cannot(*action).is_none()).collect();
        assert_eq!(actions, code(&possible.iter().map(|action| action.word()).collect::<Vec<_>>()), "{word}");
        kinds.push(kind);
    }
    let rules = config(documented_example()).rules;
    let of_example: Vec<_> = rules.iter().map(|rule| rule.kind.word()).collect();
    assert_eq!(kinds.iter().map(|kind| kind.word).collect::<Vec<_>>(), of_example);
}

#[test]
fn documented_defaults_are_those_of_the_code() {
    let config = config("version: 1\nrules: [{kind: idle}, {kind: max-memory-per-user, limit: 1gi}]\n");
    let breaker = config.breaker;
    let expected = [
        ("mode", "`dry-run`".to_owned()),
        ("interval", format!("`{}`", format_duration(config.interval))),
        (
            "breaker",
            format!("`{}`, `{}`, `{}`", breaker.signals_per_minute, breaker.share_of_users, breaker.at_least_users),
        ),
        ("action", format!("`defaults`, else `{}`", config.rules[0].action.word())),
        ("grace", format!("`defaults`, else `{}s`", config.rules[0].grace.as_secs())),
        ("processes", "`terminate`".to_owned()),
        ("scope", "`host`".to_owned()),
        ("per", "`device`".to_owned()),
        ("below", "`0.05`".to_owned()),
        ("over", "`2h`".to_owned()),
        ("outside", "`pause`".to_owned()),
    ];
    let idle = IdleLimit { below: 0.05, over: Duration::from_secs(7200) };
    assert_eq!(config.rules[0].kind.idle_limit(), Some(idle));
    assert_eq!(config.rules[0].processes, DetachedProcesses::Terminate);
    let limits = config.rules[1].kind.limits().unwrap().clone();
    let memory = MaxMemoryPerUser { limits, per: MemoryPer::Device, scope: Scope::Host };
    assert_eq!(config.rules[1].kind, memory.into());
    assert_eq!(OutsideSchedule::default(), OutsideSchedule::Pause);
    for (key, default) in expected {
        let mut rows = DOCUMENTATION.lines().filter(|line| line.starts_with(&format!("| `{key}` |")));
        let row = rows.next().unwrap_or_else(|| panic!("no row for {key}"));
        assert!(row.ends_with(&format!("| {default} |")), "{row}\n{default}");
    }
}

#[test]
fn promise_04_the_packaged_configuration_is_dry_run_and_only_reports() {
    let config = config(PACKAGED);
    assert_eq!(config.mode, Mode::DryRun);
    assert_eq!(config.rules.len(), 4);
    assert!(config.rules.iter().all(|rule| rule.action == Action::Report), "{config:#?}");
    let accounts = AccountTable { users: BTreeMap::from([("root".to_owned(), BTreeSet::new())]) };
    let warnings = Config::warnings("enforcer.yaml", PACKAGED, &accounts, 0.0).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn what_the_packaged_configuration_shows_in_comments_is_right_too() {
    // Lines that begin with # and no space are configuration; prose has a space.
    let shown: String = PACKAGED
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(line) if !line.starts_with(" ") || line.starts_with("  ") => format!("{line}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = config(&shown);
    assert_eq!(config.rules.len(), 5);
    assert_eq!(config.never.executables.len(), 3);
    assert_eq!((config.waivers.len(), config.maintenance.len()), (1, 1));
    assert_eq!(config.rules[3].action, Action::Detach);
}
