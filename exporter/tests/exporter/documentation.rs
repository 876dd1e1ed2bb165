//! `docs/metrics.md` lists every family that the code has, and no other.

use std::fmt::Write;

use genv_exporter::families::{Family, GROUPS, Kind, genv1, own};

const BEGIN: &str = "<!-- What follows is made from the code: UPDATE_DOCS=1 cargo test -p genv-exporter documentation -->\n";

fn table<S: 'static>(
    page: &mut String,
    title: &str,
    families: impl IntoIterator<Item = &'static Family<S>>,
) {
    let _ = writeln!(
        page,
        "\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|"
    );
    for family in families {
        let kind = match family.kind {
            Kind::Gauge | Kind::Largest => "gauge",
            Kind::Counter => "counter",
        };
        let labels: Vec<_> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let _ = writeln!(
            page,
            "| `{}` | {kind} | {} | {} |",
            family.name,
            labels.join(", "),
            family.help
        );
    }
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let known = std::fs::read_to_string(path).unwrap();
    let (head, lists) = known
        .split_once(BEGIN)
        .expect("the line that begins the lists");
    // What follows is another program's.
    let (_, rest) = lists
        .split_once("\n# ")
        .expect("the heading after the lists");
    let mut page = format!("{head}{BEGIN}");
    for (title, families) in GROUPS {
        table(&mut page, title, *families);
    }
    table(&mut page, "The exporter itself", own::families());
    table(
        &mut page,
        "Metrics of genv 1.x (`/metrics/genv1`)",
        genv1::FAMILIES,
    );
    page = format!("{page}\n# {rest}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert!(
        known == page,
        "docs/metrics.md is not what the code says: UPDATE_DOCS=1 cargo test -p genv-exporter documentation"
    );
}

#[test]
fn names_types_and_helps_follow_prometheus_conventions() {
    fn check<S: 'static>(families: impl IntoIterator<Item = &'static Family<S>>) {
        for family in families {
            let counter = family.kind == Kind::Counter;
            assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
            assert!(
                family.help.ends_with('.') && !family.help.contains('\n'),
                "{}",
                family.name
            );
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
