//! The published files, and the replacement of addresses in them.

use super::address::{Scheme, ServiceAddress};

/// The addresses of all services of one site.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Exporters that Prometheus scrapes; at least one.
    pub(crate) exporters: Vec<ServiceAddress>,
    /// Enforcers that Prometheus scrapes too; there may be none.
    pub(crate) enforcers: Vec<ServiceAddress>,
    /// The address of the exporter for users.
    pub(crate) exporter_url: ServiceAddress,
    /// Prometheus, as Grafana reaches it.
    pub(crate) prometheus: ServiceAddress,
    /// Alertmanager, as Prometheus reaches it.
    pub(crate) alertmanager: ServiceAddress,
    /// Grafana, as Prometheus reaches it.
    pub(crate) grafana: ServiceAddress,
}

macro_rules! files {
    ($($path:literal,)*) => {
        [$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../", $path)))),*]
    };
}

/// Every published file: its path in the repository and below the folder, and its text.
pub(super) const FILES: [(&str, &str); 13] = files![
    "prometheus/prometheus.yml",
    "prometheus/alertmanager.yml",
    "prometheus/rules/genv-recording.yml",
    "prometheus/rules/genv-alerts.yml",
    "prometheus/targets/genv.yml.example",
    "prometheus/targets/enforcers/genv.yml.example",
    "grafana/grafana.ini",
    "grafana/provisioning/datasources/genv.yml",
    "grafana/provisioning/dashboards/genv.yml",
    "grafana/dashboards/enforcement.json",
    "grafana/dashboards/host.json",
    "grafana/dashboards/overview.json",
    "grafana/dashboards/users.json",
];

/// The part of [`FILES`] with the dashboards.
pub(super) const DASHBOARDS: &str = "grafana/dashboards/";

/// A text of the shipped files, which have the addresses of docker-compose.yml, and its replacement. Further lines of
/// the replacement are indented like its first.
type Replacement = (&'static str, String);

/// Every file with the addresses of the site. `folder` is the path where the files will be.
pub(crate) fn rendered(addresses: &Addresses, folder: &str) -> Vec<(String, String)> {
    let replacements = replacements(addresses, folder);
    let files = FILES.iter();
    files.map(|(path, text)| ((*path).to_owned(), replaced(text, &replacements))).collect()
}

/// Recording rules, alerts and dashboards, under the names of the files that are generated from a monitoring mixin.
pub(crate) fn mixin(addresses: &Addresses) -> Vec<(String, String)> {
    // None of these files names the folder.
    let files = rendered(addresses, "").into_iter();
    files.filter_map(|(path, text)| Some((path_in_mixin(&path)?, text))).collect()
}

fn path_in_mixin(path: &str) -> Option<String> {
    match path {
        "prometheus/rules/genv-recording.yml" => Some("prometheus_rules.yaml".to_owned()),
        "prometheus/rules/genv-alerts.yml" => Some("prometheus_alerts.yaml".to_owned()),
        _ => path.strip_prefix(DASHBOARDS).map(|name| format!("dashboards_out/{name}")),
    }
}

fn replacements(addresses: &Addresses, folder: &str) -> Vec<Replacement> {
    let Addresses { exporters, enforcers, exporter_url, prometheus, alertmanager, grafana } = addresses;
    let discovery: Vec<_> = exporters.iter().map(|exporter| format!("- url: {exporter}/sd")).collect();
    let notified = format!(
        "- scheme: {}\n  static_configs:\n    - targets: [\"{}\"]",
        alertmanager.scheme, alertmanager.host_and_port
    );
    let group = |service| target_groups(std::slice::from_ref(service));
    vec![
        ("- targets: [\"exporter:9820\"]", target_groups(exporters)),
        ("static_configs:\n      - targets: [\"enforcer:9821\"]", static_configs(enforcers)),
        ("- url: http://exporter:9820/sd", discovery.join("\n")),
        ("- targets: [\"localhost:9090\"]", group(prometheus)),
        ("- static_configs:\n        - targets: [\"alertmanager:9093\"]", notified),
        ("- targets: [\"alertmanager:9093\"]", group(alertmanager)),
        ("- targets: [\"grafana:3000\"]", group(grafana)),
        ("http://127.0.0.1:9820/runbooks", format!("{exporter_url}/runbooks")),
        ("http://prometheus:9090", prometheus.to_string()),
        ("/etc/grafana/genv", format!("{folder}/grafana")),
        // start.sh runs only in the container.
        (
            "# start.sh takes this folder away from those who did not sign in.",
            "# Take this folder away from viewers before anybody may look without signing in: see grafana.ini."
                .to_owned(),
        ),
    ]
}

/// `static_configs` of any number of services.
fn static_configs(services: &[ServiceAddress]) -> String {
    if services.is_empty() {
        return "static_configs: []".to_owned();
    }
    let groups = target_groups(services).replace('\n', "\n  ");
    format!("static_configs:\n  {groups}")
}

/// Entries of `static_configs`, one for each set of labels.
fn target_groups(services: &[ServiceAddress]) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for service in services {
        let target = format!("\"{}\"", service.host_and_port);
        let labels = target_labels(service);
        match groups.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, targets)) => targets.push(target),
            None => groups.push((labels, vec![target])),
        }
    }
    let groups = groups.iter().map(|(labels, targets)| format!("- targets: [{}]{labels}", targets.join(", ")));
    groups.collect::<Vec<_>>().join("\n")
}

/// The labels of a target with TLS or a path before `/metrics`.
fn target_labels(service: &ServiceAddress) -> String {
    let mut labels = Vec::new();
    if service.scheme == Scheme::Https {
        labels.push("__scheme__: https".to_owned());
    }
    if !service.path.is_empty() {
        labels.push(format!("__metrics_path__: {}/metrics", service.path));
    }
    if labels.is_empty() {
        return String::new();
    }
    format!("\n  labels: {{{}}}", labels.join(", "))
}

/// Replaces all occurrences of the texts. Replacements are not replaced again.
fn replaced(text: &str, replacements: &[Replacement]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, (known, new))) = replacements
        .iter()
        .filter_map(|replacement| Some((rest.find(replacement.0)?, replacement)))
        .min_by_key(|(at, _)| *at)
    {
        result.push_str(&rest[..at]);
        let line = result.rfind('\n').map_or(0, |end| end + 1);
        let indentation = format!("\n{}", " ".repeat(result.len() - line));
        result.push_str(&new.replace('\n', &indentation));
        rest = &rest[at + known.len()..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn elsewhere(exporters: &[&str]) -> Addresses {
        Addresses {
            exporters: exporters.iter().map(|text| text.parse().unwrap()).collect(),
            enforcers: Vec::new(),
            exporter_url: "https://lab.example.org/exporter".parse().unwrap(),
            prometheus: "https://lab.example.org/prometheus".parse().unwrap(),
            alertmanager: "https://watch:9999".parse().unwrap(),
            grafana: "pictures:3333".parse().unwrap(),
        }
    }

    fn file(addresses: &Addresses, path: &str) -> String {
        let files = rendered(addresses, "/etc/genv");
        let found = files.into_iter().find(|(known, _)| *known == path);
        found.unwrap().1
    }

    fn list(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                list(&path, root, found);
            } else {
                let name = path.strip_prefix(root).unwrap();
                found.push(name.to_str().unwrap().to_owned());
            }
        }
    }

    /// Whether .gitignore matches the path. The patterns of these folders have at most one star.
    fn is_ignored(path: &str) -> bool {
        let patterns = include_str!("../../../.gitignore").lines();
        let mut patterns = patterns.filter_map(|pattern| pattern.strip_prefix('/'));
        patterns.any(|pattern| match pattern.split_once('*') {
            None => path == pattern,
            Some((start, end)) => {
                let rest = path.strip_prefix(start);
                let star = rest.and_then(|rest| rest.strip_suffix(end));
                star.is_some_and(|star| !star.contains('/'))
            }
        })
    }

    #[test]
    fn files_of_one_installation_are_ignored() {
        for (path, wanted) in [
            ("prometheus/targets/genv.yml", true),
            ("prometheus/smtp-password", true),
            ("prometheus/prometheus.local.yml", true),
            ("prometheus/prometheus.yml", false),
            ("prometheus/rules/more.yml", false),
            ("prometheus/targets/enforcers/genv.yml", true),
            ("prometheus/targets/genv.yml.example", false),
            ("prometheus/targets/enforcers/genv.yml.example", false),
            ("prometheus/targets/more/genv.yml", false),
        ] {
            assert_eq!(is_ignored(path), wanted, "{path}");
        }
    }

    #[test]
    fn every_file_of_prometheus_and_grafana_is_published() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for folder in ["prometheus", "grafana"] {
            list(&root.join(folder), &root, &mut found);
        }
        // promtool's tests are for developers, and scripts only for Grafana's container.
        found.retain(|path| !path.starts_with("prometheus/tests/") && !path.ends_with(".sh"));
        // Files of one installation are not in a fresh clone.
        found.retain(|path| !is_ignored(path));
        found.sort();
        let mut published: Vec<_> = FILES.iter().map(|(path, _)| *path).collect();
        published.sort_unstable();
        assert_eq!(published, found);
    }

    #[test]
    fn every_address_is_used_and_none_of_docker_compose_remains() {
        let addresses = elsewhere(&["gpu01:1"]);
        for (known, _) in replacements(&addresses, "/etc/genv") {
            assert!(FILES.iter().any(|(_, text)| text.contains(known)), "no file holds {known:?} any more");
        }
        for (path, text) in rendered(&addresses, "/etc/genv") {
            for of_compose in [
                "exporter:9820",
                "enforcer:9821",
                "prometheus:9090",
                "localhost:9090",
                "alertmanager:9093",
                "grafana:3000",
                "127.0.0.1:9820/",
                "/etc/grafana",
                "/etc/prometheus",
                "start.sh",
            ] {
                assert!(!text.contains(of_compose), "{path}: {of_compose}");
            }
        }
    }

    #[test]
    fn replacements_are_not_replaced_again() {
        let replacements = [("a", "b\na".to_owned()), ("b", "c".to_owned())];
        assert_eq!(replaced("- a, b\n", &replacements), "- b\n  a, c\n");
    }

    #[test]
    fn prometheus_scrapes_every_exporter_with_its_scheme() {
        let addresses = elsewhere(&["gpu01:9820", "https://gpu02:9820", "[::1]:9821"]);
        insta::assert_snapshot!(file(&addresses, "prometheus/prometheus.yml"));
    }

    #[test]
    fn prometheus_scrapes_every_enforcer_and_none_by_default() {
        let job = |enforcers: &[&str]| {
            let addresses = Addresses {
                enforcers: enforcers.iter().map(|text| text.parse().unwrap()).collect(),
                ..elsewhere(&["gpu01:9820"])
            };
            let text = file(&addresses, "prometheus/prometheus.yml");
            let (_, job) = text.split_once("job_name: genv-enforcer").unwrap();
            let (job, _) = job.split_once("  - job_name:").unwrap();
            let (_, targets) = job.split_once("scrape_interval: 10s\n").unwrap();
            targets.split_once("    #").unwrap().0.to_owned()
        };
        insta::assert_snapshot!(job(&[]), @"    static_configs: []");
        insta::assert_snapshot!(job(&["gpu01:9821", "https://gpu02:9821"]), @r#"
        static_configs:
          - targets: ["gpu01:9821"]
          - targets: ["gpu02:9821"]
            labels: {__scheme__: https}
        "#);
    }

    #[test]
    fn grafana_has_the_addresses_of_prometheus_and_its_files() {
        let addresses = elsewhere(&["gpu01:9820"]);
        let texts: String = ["datasources/genv.yml", "dashboards/genv.yml"]
            .iter()
            .map(|name| file(&addresses, &format!("grafana/provisioning/{name}")))
            .chain([file(&addresses, "grafana/grafana.ini")])
            .collect();
        for line in [
            "url: https://lab.example.org:443/prometheus",
            "path: /etc/genv/grafana/dashboards/overview.json",
            "path: /etc/genv/grafana/dashboards/users.json",
            "path: /etc/genv/grafana/dashboards/enforcement.json",
            "path: /etc/genv/grafana/dashboards/host.json",
            "provisioning = /etc/genv/grafana/provisioning",
            "default_home_dashboard_path = /etc/genv/grafana/dashboards/overview.json",
        ] {
            assert!(texts.lines().any(|there| there.trim() == line), "{line}");
        }
    }
}
