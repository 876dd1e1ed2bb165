use std::collections::BTreeMap;

use super::*;

const DOCUMENTATION: &str = include_str!("../../../../docs/enforcement.md");
const PACKAGED: &str = include_str!("../../../../packaging/enforcer.yaml");

fn documented_after(sentence: &str) -> &'static str {
    let (_, rest) = DOCUMENTATION.split_once(sentence).unwrap();
    let (_, rest) = rest.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_documented_policy_and_the_example_of_every_key_give_no_warning() {
    let texts = ["## A first policy", "This example uses every key."].map(documented_after);
    assert_eq!(texts.map(|text| config(text).rules.len()), [3, KIND_WORDS.len()]);
    let users = [
        ("alice", ["alice", "students", "assistants"]),
        ("bob", ["bob", "staff", "students"]),
        ("carol", ["carol", "students", "staff"]),
        ("root", ["root", "staff", "students"]),
        ("backup", ["backup", "staff", "students"]),
    ];
    let accounts =
        AccountTable { users: users.map(|(user, groups)| (user.to_owned(), groups.map(str::to_owned).into())).into() };
    for text in texts {
        let warnings = Config::warnings("policy.yaml", text, &accounts, 0.0).unwrap();
        let warnings = warnings.iter().map(Warning::to_string);
        // Which programs of never this machine has, differs.
        let warnings: Vec<_> = warnings.filter(|it| !it.contains("on this machine")).collect();
        assert!(warnings.is_empty(), "{warnings:#?}");
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
    let is_configuration = |line: &&str| !line.starts_with(' ') || line.starts_with("  ");
    let lines = PACKAGED.lines().map(|line| line.strip_prefix('#').filter(is_configuration).unwrap_or(line));
    let shown: String = lines.flat_map(|line| [line, "\n"]).collect();
    let config = config(&shown);
    assert_eq!(config.rules.len(), 5);
    assert_eq!(config.never.executables.len(), 3);
    assert_eq!((config.waivers.len(), config.maintenance.len()), (1, 1));
    assert_eq!(config.rules[3].action, Action::Detach);
}
