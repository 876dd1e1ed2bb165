use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

/// 2026-11-20T12:00:00Z.
const NOON: f64 = 1_795_176_000.0;

fn line(seconds: i64, result: &str, user: &str, more: serde_json::Value) -> String {
    let time = jiff::Timestamp::from_second(NOON as i64 + seconds).unwrap();
    let mut line = json!({
        "time": time.to_string(), "id": "1", "result": result, "action": "SIGTERM", "mode": "dry-run", "rule": "outside",
        "why": "process 42 uses device 0 outside any environment; allowed: processes in an environment",
        "hostname": "gpu01", "username": user, "uid": 2001, "pid": 42, "comm": "python3",
    });
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    format!("{line}\n")
}

fn told(folder: &Path, days: f64) -> String {
    let from = NOON + 3600.0 - days * SECONDS_OF_A_DAY;
    let mut tally = Tally::default();
    // Whatever the clock of this machine says: a file that was written before is not read.
    for entry in fs::read_dir(folder).unwrap() {
        let file = fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs_f64(NOON)).unwrap();
    }
    for file in audit::files(folder, from).unwrap() {
        let name = file.name.clone();
        file.read(|line| tally.add(line, from)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    text(&tally.report(from, NOON + 3600.0), &TimeZone::UTC)
}

#[test]
fn a_page_tells_of_each_rule_and_user_and_of_the_three_worst_cases() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for pid in 0..5 {
        text += &line(pid, "would", "alice", json!({"pid": 100 + pid}));
    }
    text += &line(100, "intended", "bob", json!({}));
    text += &line(100, "done", "bob", json!({"rule": "idle", "why": "device 3 was used 1% over 2h; allowed: 5%"}));
    let taken = json!({"rule": "idle", "action": "detach", "pid": null, "comm": null, "eid": "7\u{1b}[2J", "gpu": 3,
        "why": "device 3 was used 1% over 2h; allowed: 5%"});
    text += &line(101, "done", "bob", taken);
    text += &line(200, "refused", "carol", json!({"reason": "it ended by itself"}));
    text += &line(201, "failed", "carol", json!({"action": "SIGKILL", "reason": "it may not be signalled"}));
    text += &line(300, "would", "alice", json!({"hostname": "gpu02"}));
    text += &line(400, "would", "alice", json!({}));
    text += "{\"time\": \"2026\n\n[]\n";
    text += &format!("{}\n", "x".repeat(3 << 20));
    text += &line(500, "would", "dave", json!({}));
    // It is being written.
    text += "{\"time\":";
    fs::write(folder.path().join("audit.jsonl"), text).unwrap();
    insta::assert_snapshot!(told(folder.path(), 7.0));
}

#[test]
fn what_logrotate_made_of_the_audit_is_read_too() {
    let folder = tempfile::tempdir().unwrap();
    let of = |days: i64| line(-days * 86_400, "would", "alice", json!({}));
    let path = |name: &str| folder.path().join(name);
    fs::write(path("audit.jsonl"), of(0)).unwrap();
    fs::write(path("audit.jsonl.1"), of(1)).unwrap();
    for (name, days) in [("audit.jsonl.2.gz", 2), ("audit.jsonl-20261117.gz", 3), ("audit.jsonl.9.gz", 30)] {
        let mut gzip = GzEncoder::new(fs::File::create(path(name)).unwrap(), Compression::default());
        gzip.write_all(of(days).as_bytes()).unwrap();
        gzip.finish().unwrap();
    }
    for other in ["audit.jsonl.bak", "history.json", "audit.jsonlx", "audit.jsonl.tmp.gz"] {
        fs::write(path(other), of(0)).unwrap();
    }
    std::os::unix::fs::symlink("/dev/zero", path("audit.jsonl.5")).unwrap_or_default();
    assert!(audit::files(folder.path(), 0.0).is_err(), "a link is no audit");
    fs::remove_file(path("audit.jsonl.5")).unwrap();
    for (days, expected) in [(7.0, 4), (2.5, 3), (60.0, 5)] {
        let told = told(folder.path(), days);
        assert!(told.contains(&format!("outside  alice      {expected}     0")), "{told}");
    }
}

#[test]
fn nothing_to_tell_is_told_and_no_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(told(folder.path(), 7.0));
    let error = audit::files(&folder.path().join("none"), 0.0).unwrap_err().to_string();
    assert!(error.contains("/none: No such file") && error.contains("--state-directory"), "{error}");
}

#[test]
fn memory_is_bounded_however_many_users_and_cases_there_are() {
    let mut tally = Tally::default();
    for user in 0..30_000_u32 {
        let of = line(i64::from(user), "would", &format!("uid:{user}"), json!({}));
        tally.add(Some(of.as_bytes()), 0.0);
    }
    let report = tally.report(0.0, NOON);
    assert_eq!(report.total.would, 30_000);
    assert_eq!(report.rows.len(), 10_001);
    assert_eq!((report.rows[0].username.as_str(), report.rows[0].counts.would), ("(others)", 20_000));
    assert_eq!(report.worst.len(), 3);
    let page = text(&report, &TimeZone::UTC);
    assert!(page.lines().count() < 66 && page.contains("and 9961 more, which --json has"), "{page}");
}
