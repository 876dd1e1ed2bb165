//! What the documentation says of tests of rules is whole and true.

use super::*;

const DOCUMENTATION: &str = include_str!("../../../../docs/enforcement.md");

/// The first two blocks of YAML in a section.
fn documented(section: &str) -> (&'static str, &'static str) {
    let (_, section) = DOCUMENTATION.split_once(section).unwrap();
    let mut blocks = section.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    (blocks.next().unwrap(), blocks.next().unwrap())
}

/// The documented file of tests, and the configuration that goes with it.
fn documented_example() -> (&'static str, &'static str) {
    documented("## Tests of rules")
}

/// Both files are in one folder; all of so many tests pass.
fn pass((tests, config): (&str, &str), config_name: &str, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules_test.yaml");
    fs::write(folder.path().join(config_name), config).unwrap();
    fs::write(&file, tests).unwrap();
    let mut out = Vec::new();
    let passed = test(&[file], &mut out).unwrap();
    let printed = String::from_utf8(out).unwrap();
    assert!(passed, "{printed}");
    assert!(printed.ends_with(&format!("\n{count} tests, 0 failed\n")), "{printed}");
}

#[test]
fn the_documented_tests_pass() {
    pass(documented_example(), "enforcer.yaml", 3);
}

#[test]
fn the_documented_policy_does_what_its_tests_say() {
    let (policy, tests) = documented("## A first policy");
    pass((tests, policy), "policy.yaml", 3);
}

#[test]
fn every_key_of_the_format_is_documented_and_in_the_example() {
    let (tests, _) = documented_example();
    let (_, section) = DOCUMENTATION.split_once("## Tests of rules").unwrap();
    let mut keys = 0;
    for line in include_str!("../file.rs").lines() {
        let field = line.trim().strip_prefix("pub(super) ");
        let Some((key, _)) = field.and_then(|field| field.split_once(": ")) else {
            continue;
        };
        keys += 1;
        assert!(tests.contains(&format!("{key}:")), "the example lacks {key}");
        assert!(section.contains(&format!("`{key}`")), "no table tells of {key}");
    }
    assert!(keys > 25, "{keys}");
}

proptest::proptest! {
    /// What an editor left of the documented file.
    #[test]
    fn damaged_tests_are_tests_or_an_error(
        from in 0..2500_usize, length in 0..60_usize, instead in "\\PC{0,8}|[{}\\[\\]:,#&*!|>'\"%@`\n\t -]{0,8}",
    ) {
        let (tests, config) = documented_example();
        let config: String = config.lines().map(|line| format!("  {line}\n")).collect();
        let whole = tests.replacen("config_file: enforcer.yaml", &format!("config:\n{config}\n"), 1);
        proptest::prop_assert_ne!(&whole, &tests, "another file is named");
        let whole: Vec<char> = whole.chars().collect();
        let from = from.min(whole.len());
        let until = (from + length).min(whole.len());
        let text: String = whole[..from].iter().copied().chain(instead.chars()).chain(whole[until..].iter().copied()).collect();
        let read = TestFile::parse("rules_test.yaml", &text, Path::new("/nonexistent"));
        proptest::prop_assert!(read.is_ok() || until > from || !instead.is_empty(), "{}", text);
        if let Err(error) = read {
            let error = error.to_string();
            // Either of the file, or of one that it names.
            proptest::prop_assert!(error.starts_with("rules_test.yaml:") || error.starts_with("/nonexistent"), "{}", error);
            proptest::prop_assert!(error.chars().all(|c| !c.is_control() || c == '\n'), "{:?}", error);
        }
    }
}
