//! The pages for people.

use std::sync::Arc;

use genv_core::model::{DeviceIndex, HostSnapshot, Snapshot};
use serde_json::Value;

use crate::endpoints::Exporter;
use crate::{dead_host, host, snapshot};

/// What a reader of a page sees below the name of the program, a line for each block, and `|` after each cell.
fn words(page: &str) -> String {
    let (_, page) = page.split_once("<h1>").unwrap();
    let (page, _) = page.split_once("</main>").unwrap();
    let mut page = page.replace("</td>", " |").replace("</th>", " |");
    for end in ["</p>", "</li>", "</tr>", "</h1>", "</h2>", "</dt>", "</dd>", "</summary>"] {
        page = page.replace(end, "\n");
    }
    let mut words = String::new();
    let mut in_tag = false;
    for character in page.chars() {
        match character {
            '<' => in_tag = true,
            '>' => in_tag = false,
            _ if !in_tag => words.push(character),
            _ => {}
        }
    }
    let lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

fn lab() -> Exporter {
    let mut simulated = snapshot();
    simulated.hostname = "gpu02".to_owned();
    simulated.simulated = true;
    simulated.collectors.values_mut().for_each(|it| it.error = None);
    simulated.devices.truncate(1);
    Arc::make_mut(&mut simulated.devices[0].attachments).clear();
    simulated.processes.clear();
    simulated.timestamp_seconds += 3600.0;
    simulated.queue.clear();
    simulated.counters.device_xid_errors.clear();
    Exporter::publishing(vec![host(snapshot()), host(simulated), dead_host("gpu03")])
}

#[test]
fn a_page_shows_all_hosts() {
    insta::assert_snapshot!(words(&lab().get("/").1));
}

#[test]
fn a_page_shows_one_host() {
    insta::assert_snapshot!(words(&lab().get("/?host=gpu01").1));
    insta::assert_snapshot!(words(&lab().get("/?host=gpu03").1), @"
    gpu03
    host
    Broken
    ✕ gpu03 delivers no snapshot what to do
    Its GPUs, environments and processes are not known.
    Collectors
    Name |State |Age of the values |Error |
    ");
}

#[test]
fn a_page_shows_one_user() {
    insta::assert_snapshot!(words(&lab().get("/?user=alice").1));
    let grace = words(&lab().get("/?user=grace").1);
    assert!(grace.contains("Waits for GPUs") && grace.contains("Environments\nNone is known.\n"), "{grace}");
}

#[test]
fn a_page_of_what_does_not_exist_names_what_does() {
    let of = |path| {
        let (status, page) = lab().get(path);
        assert_eq!(status, 404, "{path}");
        words(&page)
    };
    insta::assert_snapshot!(of("/?host=%3Cb%3E"), @"
    Not found
    as of 2023-11-14T22:13:21Z
    There is no host '&lt;b&gt;'.
    The hosts are
    gpu01
    gpu02
    gpu03
    ");
    insta::assert_snapshot!(of("/?user=mallory"), @"
    Not found
    as of 2023-11-14T22:13:21Z
    No environment, process or use of a user 'mallory' is known.
    The users are
    alice
    bob
    grace
    uid:1001
    ");
    insta::assert_snapshot!(words(&Exporter::new().get("/").1), @"
    Lab
    No data was collected yet: the first values come in a moment.
    ");
}

/// The snapshot with this text wherever a user or a host chooses one.
fn with_text(value: &mut Value, text: &str) {
    const CHOSEN: [&str; 9] =
        ["username", "name", "comm", "eid", "hostname", "error", "profile", "driver_version", "reason"];
    match value {
        Value::Array(items) => items.iter_mut().for_each(|it| with_text(it, text)),
        Value::Object(members) => {
            for (key, it) in members {
                match it {
                    Value::String(old) if CHOSEN.contains(&&**key) => text.clone_into(old),
                    _ => with_text(it, text),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn no_text_of_a_user_or_a_host_is_markup_or_moves_the_text_around_it() {
    let hostile = "<x onx=\"'&\u{202e}\u{1b}\n";
    let mut snapshot = serde_json::to_value(snapshot()).unwrap();
    with_text(&mut snapshot, hostile);
    let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
    let exporter = Exporter::publishing(vec![host(snapshot)]);
    let name: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let of_host = format!("/?host={name}");
    let of_user = format!("/?user={name}");
    for (path, expected) in [("/", 200), (&*of_host, 200), (&*of_user, 200), ("/?host=%3Cx+onx%3D%22%E2%80%AE", 404)] {
        let (status, page) = exporter.get(path);
        assert_eq!(status, expected, "{path}");
        assert!(page.contains("&lt;x onx=&quot;"), "{path}: {page}");
        for part in ["<x", "\"'", "'&\\", "\u{202e}", "\u{1b}"] {
            assert!(!page.contains(part), "{path} has {part:?}: {page}");
        }
    }
}

/// Hosts with 8 GPUs each, held by users of their own.
fn hosts(count: usize) -> Vec<HostSnapshot> {
    let of = |number: usize| {
        let mut snapshot = snapshot();
        snapshot.hostname = format!("gpu{number:04}");
        let device = snapshot.devices[0].clone();
        snapshot.devices =
            (0..8).map(DeviceIndex::gpu).map(|index| genv_core::model::Device { index, ..device.clone() }).collect();
        let environment = Arc::make_mut(&mut snapshot.environments[0]);
        environment.username = format!("user{number:04}");
        let usage = environment.devices[0].clone();
        environment.devices = (0..8)
            .map(DeviceIndex::gpu)
            .map(|index| genv_core::model::EnvironmentDevice { index, ..usage.clone() })
            .collect();
        host(snapshot)
    };
    (0..count).map(of).collect()
}

#[test]
fn a_page_of_two_hosts_is_small_and_one_of_a_thousand_bounded() {
    let size = |exporter: &Exporter, path| exporter.get(path).1.len();
    let small = Exporter::publishing(hosts(2));
    let all: usize = ["/", "/page.css", "/page.js"].into_iter().map(|path| size(&small, path)).sum();
    assert!(all <= 60_000, "{all}");
    let large = size(&Exporter::publishing(hosts(1000)), "/");
    assert!(large <= 5_000_000, "{large}");
}
