//! Names, types and helps of metrics follow Prometheus' conventions.

use genv_exporter::families::{Family, GROUPS, Kind, own};

#[test]
fn names_types_and_helps_follow_prometheus_conventions() {
    fn check<S: 'static>(families: impl IntoIterator<Item = &'static Family<S>>) {
        for family in families {
            let counter = family.kind == Kind::Counter;
            assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{}", family.name);
            assert_eq!(
                family.name.ends_with("_info"),
                family.labels.len() > 2 && family.help.starts_with("Always 1"),
                "{}",
                family.name
            );
            for target_label in ["env", "environment", "owner", "job", "instance", "hostname"] {
                assert!(!family.labels.contains(&target_label), "{}", family.name);
            }
        }
    }
    for (_, families) in GROUPS {
        check(*families);
    }
    check(own::families());
}
