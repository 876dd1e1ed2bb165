//! Names, types and helps of metrics follow Prometheus' conventions.

use genv_enforcer::metrics::FAMILIES;
use genv_web::metrics::Kind;

#[test]
fn names_types_and_helps_follow_prometheus_conventions() {
    for family in FAMILIES {
        let counter = family.kind == Kind::Counter;
        assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
        // What is wrong with the state is the state's, whoever found it.
        let prefixes = ["genv_enforcer_", "genv_state_"];
        assert!(prefixes.iter().any(|prefix| family.name.starts_with(prefix)));
        assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{}", family.name);
    }
}
