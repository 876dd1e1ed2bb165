//! The answers of each path.

use std::collections::BTreeSet;
use std::time::Duration;

use genv_core::collect::{self, CollectOptions};
use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use genv_exporter::Usernames;
use genv_exporter::endpoints::Endpoints;
use genv_exporter::families::Limits;
use genv_exporter::instruments::Instruments;
use genv_exporter::render::Renderer;
use genv_simulator::{GpuSourceKind, SourceOptions};
use genv_web::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use genv_web::{Handler, Method, Request, Response};

use crate::{dead_host, exposition, host, publication, snapshot, text, unpacked};

pub(crate) struct Exporter {
    renderer: Renderer,
    endpoints: Endpoints,
}

impl Exporter {
    pub(crate) fn new() -> Self {
        Self::naming(Usernames::Name)
    }

    fn naming(usernames: Usernames) -> Self {
        let (renderer, latest) = Renderer::new(Limits { processes: Some(64) }, usernames, Instruments::new().unwrap());
        let endpoints = Endpoints::new(latest, "/metrics", Duration::from_secs(10));
        Self { renderer, endpoints }
    }

    pub(crate) fn publishing(hosts: Vec<HostSnapshot>) -> Self {
        let exporter = Self::new();
        exporter.renderer.render(publication(hosts));
        exporter
    }

    fn ask(&self, path: &str, headers: &HeaderMap) -> Response {
        let uri = path.parse().unwrap();
        self.endpoints.handle(&Request::new(&Method::GET, &uri, headers))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let response = self.ask(path, &HeaderMap::new());
        (response.status().as_u16(), text(response.body()))
    }
}

fn other_host() -> HostSnapshot {
    let mut other = snapshot();
    other.hostname = "gpu02".to_owned();
    host(other)
}

#[test]
fn metrics_are_text_0_0_4_plain_or_gzip() {
    let exporter = Exporter::publishing(vec![host(snapshot())]);
    let plain = exporter.ask("/metrics", &HeaderMap::new());
    assert_eq!(plain.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    assert!(!plain.headers().contains_key(CONTENT_ENCODING));
    let families = exposition::parse(&text(plain.body()));
    for expected in ["genv_exporter_build_info", "process_resident_memory_bytes", "genv_device_up"] {
        assert!(families.iter().any(|family| family.name == expected), "{expected}");
    }

    let accept = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
    let gzip = exporter.ask("/metrics", &accept);
    assert_eq!(gzip.headers()[CONTENT_TYPE], plain.headers()[CONTENT_TYPE]);
    assert_eq!(gzip.headers()[CONTENT_ENCODING], "gzip");
    assert_eq!(unpacked(gzip.body()), plain.body()[..]);
}

#[test]
fn a_publication_is_rendered_once() {
    let exporter = Exporter::publishing(vec![host(snapshot()), other_host()]);
    let texts = ["/metrics", "/metrics?host=gpu02", "/metrics/genv1", "/snapshot", "/snapshot?host=gpu02"];
    for path in texts.into_iter().chain(["/", "/?host=gpu02", "/?user=alice", "/page.css", "/page.js"]) {
        let body = |path| exporter.ask(path, &HeaderMap::new()).body().as_ptr();
        assert_eq!(body(path), body(path), "{path} was rendered twice");
    }
}

#[test]
fn one_host_of_many_is_served_alone() {
    let exporter = Exporter::publishing(vec![host(snapshot()), other_host(), dead_host("gpu03")]);
    let (status, one) = exporter.get("/metrics?host=gpu02");
    assert_eq!(status, 200);
    for family in exposition::parse(&one) {
        for (labels, _) in family.samples {
            assert_eq!(labels["hostname"], "gpu02", "{}", family.name);
        }
    }
    let (status, down) = exporter.get("/metrics?host=gpu03");
    assert_eq!(status, 503);
    insta::assert_snapshot!(down, @"Host 'gpu03' is down: it delivers no snapshot. The log has the reason.");
    let (status, unknown) = exporter.get("/metrics?host=gpu04");
    assert_eq!(status, 404);
    insta::assert_snapshot!(unknown, @"There is no host 'gpu04'. The hosts are: gpu01, gpu02, gpu03.");
}

#[test]
fn snapshots_are_one_object_or_a_line_for_each_host() {
    let read = |text: &str| serde_json::from_str::<Snapshot>(text).unwrap();
    let exporter = Exporter::publishing(vec![host(snapshot())]);
    let one = exporter.ask("/snapshot", &HeaderMap::new());
    assert_eq!(one.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(read(&text(one.body())), snapshot());

    let exporter = Exporter::publishing(vec![host(snapshot()), dead_host("gpu03"), other_host()]);
    let many = exporter.ask("/snapshot", &HeaderMap::new());
    assert_eq!(many.headers()[CONTENT_TYPE], "application/x-ndjson");
    let many: Vec<_> = text(many.body()).lines().map(|line| read(line).hostname).collect();
    assert_eq!(many, ["gpu01", "gpu02"]);
    assert_eq!(read(&exporter.get("/snapshot?host=gpu02").1).hostname, "gpu02");
    assert_eq!(exporter.get("/snapshot?host=gpu03").0, 503);
    assert_eq!(exporter.get("/snapshot?host=gpu04").0, 404);
}

#[test]
fn before_the_first_publication_the_exporter_serves_itself_and_is_not_ready() {
    let exporter = Exporter::new();
    let (status, own) = exporter.get("/metrics");
    assert_eq!(status, 200);
    assert!(own.contains("process_resident_memory_bytes") && !own.contains("genv_host_up"));
    assert_eq!(exporter.get("/-/ready").0, 503);
    assert_eq!(exporter.get("/-/healthy").0, 200);
    assert_eq!(exporter.get("/snapshot").0, 503);
    assert_eq!(exporter.get("/metrics?host=gpu01").0, 404);
    exporter.renderer.render(publication(vec![host(snapshot())]));
    assert_eq!(exporter.get("/-/ready").0, 200);
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let exporter = Exporter::publishing(vec![host(snapshot()), other_host(), dead_host("gpu03")]);
    let mut links = BTreeSet::new();
    for path in ["/", "/?host=gpu01", "/?user=alice", "/?user=nobody"] {
        let (_, page) = exporter.get(path);
        for attribute in ["href=\"./", "src=\"./"] {
            links.extend(page.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    for expected in
        ["", "metrics", "metrics/genv1", "snapshot", "sd", "runbooks", "-/healthy", "-/ready", "?host=gpu03"]
    {
        assert!(links.contains(expected), "{expected}: {links:?}");
    }
    for link in links {
        assert_eq!(exporter.get(&format!("/{link}")).0, 200, "{link}");
        if let Some((_, section)) = link.split_once("runbooks#") {
            assert!(exporter.get("/runbooks").1.contains(&format!("id=\"{section}\"")), "{link}");
        }
    }
}

fn over_ssh(hostname: &str) -> HostSnapshot {
    let mut remote = snapshot();
    remote.hostname = hostname.to_owned();
    HostSnapshot {
        ssh: Some(CollectorStatus {
            success: true,
            current: true,
            duration_seconds: Some(0.25),
            timestamp_seconds: Some(1_700_000_000.5),
            error: None,
            fault: None,
            withheld: Vec::new(),
        }),
        ..host(remote)
    }
}

#[test]
fn service_discovery_lists_exporters_on_hosts_over_ssh() {
    let none = Exporter::new().ask("/sd", &HeaderMap::new());
    assert_eq!(none.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(none.body()).unwrap(), serde_json::json!([]));
    let hosts = vec![host(snapshot()), over_ssh("gpu07"), over_ssh("fe80::7")];
    let (code, found) = Exporter::publishing(hosts).get("/sd");
    assert_eq!(code, 200);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&found).unwrap(),
        serde_json::json!([
            {"targets": ["gpu07:9820"], "labels": {"__meta_genv_host": "gpu07"}},
            {"targets": ["[fe80::7]:9820"], "labels": {"__meta_genv_host": "fe80::7"}}
        ])
    );
}

#[test]
fn the_ssh_session_is_shown_beside_the_collectors_even_of_a_host_that_is_down() {
    let mut down = over_ssh("gpu07");
    down.up = false;
    down.snapshot = None;
    down.ssh.as_mut().unwrap().success = false;
    let (_, metrics) = Exporter::publishing(vec![down]).get("/metrics");
    for line in [
        r#"genv_host_up{hostname="gpu07"} 0"#,
        r#"genv_collector_success{hostname="gpu07",collector="ssh"} 0"#,
        r#"genv_collector_duration_seconds{hostname="gpu07",collector="ssh"} 0.25"#,
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    let local = Exporter::publishing(vec![host(snapshot())]);
    assert!(!local.get("/metrics").1.contains(r#"collector="ssh""#));
}

#[test]
fn users_of_other_hosts_are_renamed_by_the_exporter() {
    let metrics = |usernames| {
        let exporter = Exporter::naming(usernames);
        exporter.renderer.render(publication(vec![over_ssh("gpu07")]));
        (exporter.get("/metrics").1, exporter.get("/snapshot").1)
    };
    let (plain, _) = metrics(Usernames::Name);
    let names = snapshot().environments.into_iter().map(|environment| environment.username.clone());
    let names: BTreeSet<String> = names.filter(|name| !name.starts_with("uid:")).collect();
    assert!(!names.is_empty());
    let escaped = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let label = |name: &str| format!("username=\"{}\"", escaped(name));
    for name in &names {
        assert!(plain.contains(&label(name)), "{name}");
    }
    for usernames in [Usernames::Uid, Usernames::Hash] {
        let (metrics, _) = metrics(usernames);
        for name in &names {
            assert!(!metrics.contains(&label(name)), "{usernames:?} {name}");
        }
        assert!(metrics.contains(r#"username="(none)""#), "{metrics}");
    }
    let (_, snapshot) = metrics(Usernames::Hash);
    assert!(!snapshot.contains(r#""uid":1"#), "{snapshot}");
}

#[test]
fn other_paths_are_not_found() {
    let exporter = Exporter::publishing(vec![host(snapshot())]);
    for path in ["/metrics/", "/metric", "/snapshots", "/-/", "//", "/metrics/genv1/"] {
        assert_eq!(exporter.get(path).0, 404, "{path}");
    }
}

fn lab(usernames: Usernames) -> String {
    let lab = SourceOptions { gpu: GpuSourceKind::Simulated, ..SourceOptions::default() };
    let hosts = lab.open().unwrap().into_iter();
    let hosts = hosts.map(|host| usernames.applied_to(host)).collect();
    let mut stream = collect::spawn(hosts, CollectOptions::default()).unwrap();
    let exporter = Exporter::naming(usernames);
    exporter.renderer.render(stream.next_blocking().unwrap());
    let paths = ["/metrics", "/metrics?host=gpu01", "/metrics/genv1", "/snapshot", "/", "/?host=gpu01"];
    paths.map(|path| exporter.get(path).1).concat()
}

#[test]
fn hidden_users_are_named_nowhere() {
    let users = [r#""alice""#, r#""bob""#, r#""carol""#, r#""dave""#, r#""erin""#];
    let named = lab(Usernames::Name);
    for name in users {
        assert!(named.contains(name), "{name}");
    }
    assert!(named.contains(r#""uid":20"#));
    for (usernames, uids) in [(Usernames::Uid, true), (Usernames::Hash, false)] {
        let shown = lab(usernames);
        for name in users {
            let on_a_page = format!(">{}<", name.trim_matches('"'));
            assert!(named.contains(&on_a_page) && !shown.contains(&on_a_page), "{usernames:?} {name}");
            assert!(!shown.contains(name), "{usernames:?} {name}");
        }
        assert_eq!(shown.contains("uid:"), uids, "{usernames:?}");
        assert_eq!(shown.contains(r#""uid":20"#), uids, "{usernames:?}");
    }
}
