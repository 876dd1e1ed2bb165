//! `docs/metrics.md` lists every family that the code has, and no other.

use std::fmt::Write;

use genv_enforcer::metrics::{BUILD_INFO, FAMILIES};
use genv_web::metrics::{Family, Kind, PROCESS_FAMILIES};

const BEGIN: &str = "<!-- What follows is made from the code: UPDATE_DOCS=1 cargo test -p genv-enforcer documentation -->\n";

/// Families with the label hostname.
const OF_HOSTS: [&str; 6] = [
    "genv_enforcer_violations",
    "genv_enforcer_violation_stages",
    "genv_enforcer_warnings_total",
    "genv_enforcer_actions_total",
    "genv_enforcer_unkillable_processes_total",
    "genv_enforcer_unknown_processes",
];

fn line<S>(family: &Family<S>) -> String {
    let kind = match family.kind {
        Kind::Gauge | Kind::Largest => "gauge",
        Kind::Counter => "counter",
    };
    let hostname = OF_HOSTS.contains(&family.name).then_some("hostname");
    let labels: Vec<_> = hostname
        .iter()
        .chain(family.labels)
        .map(|label| format!("`{label}`"))
        .collect();
    let (name, labels, help) = (family.name, labels.join(", "), family.help);
    format!("| `{name}` | {kind} | {labels} | {help} |\n")
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let known = std::fs::read_to_string(path).unwrap();
    let (head, _) = known
        .split_once(BEGIN)
        .expect("the line that begins the list");
    let mut page =
        format!("{head}{BEGIN}\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    let all = FAMILIES.iter().map(line);
    let all = all.chain([line(&BUILD_INFO)]);
    for line in all.chain(PROCESS_FAMILIES.iter().map(line)) {
        let _ = write!(page, "{line}");
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert!(
        known == page,
        "docs/metrics.md is not what the code says: UPDATE_DOCS=1 cargo test -p genv-enforcer documentation"
    );
}

#[test]
fn names_types_and_helps_follow_prometheus_conventions() {
    for family in FAMILIES {
        let counter = family.kind == Kind::Counter;
        assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
        assert!(family.name.starts_with("genv_enforcer_"));
        assert!(
            family.help.ends_with('.') && !family.help.contains('\n'),
            "{}",
            family.name
        );
    }
}

#[test]
fn the_documentation_lists_every_message_id() {
    let page = include_str!("../../docs/enforcement.md");
    for (event, id) in genv_enforcer::tell::journal::MESSAGE_IDS {
        assert!(
            page.contains(&format!("| `{event}` | `{id}` |\n")),
            "{event}"
        );
    }
}
