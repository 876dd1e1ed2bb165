//! What is installed first.

use std::path::Path;

use genv_enforcer::config::{Action, Config, Mode};

#[test]
fn promise_04_the_configuration_that_is_shipped_only_reports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/enforcer.yaml");
    let config = Config::load(&path).unwrap();
    assert_eq!(config.mode, Mode::DryRun);
    assert!(!config.rules.is_empty());
    for rule in &config.rules {
        assert_eq!(rule.action, Action::Report, "{}", rule.name);
    }
}
