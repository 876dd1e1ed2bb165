//! `genv-exporter publish DIR`: the files that it writes, and those that it keeps.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use assert_cmd::Command;

const PROMETHEUS: &str = "prometheus/prometheus.yml";
const RULES: &str = "prometheus/rules/genv-recording.yml";

struct PublishOutcome {
    code: i32,
    written: Vec<String>,
    stderr: String,
}

fn publish(folder: &Path, flags: &[&str]) -> PublishOutcome {
    let mut command = Command::cargo_bin("genv-exporter").unwrap();
    command.env_clear().arg("publish").arg(folder).args(flags);
    let output = command.output().unwrap();
    let prefix = format!("{}/", folder.display());
    let written = String::from_utf8(output.stdout).unwrap();
    PublishOutcome {
        code: output.status.code().unwrap(),
        written: written.lines().map(|line| line.strip_prefix(&prefix).unwrap().to_owned()).collect(),
        stderr: String::from_utf8_lossy(&output.stderr).replace(&prefix[..prefix.len() - 1], "DIR"),
    }
}

fn succeeds(folder: &Path, flags: &[&str]) -> Vec<String> {
    let output = publish(folder, flags);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    output.written
}

/// Every file below a folder, the manifest and what a killed run may leave included.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                files.insert(name.to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    let mut files_found = BTreeMap::new();
    walk(folder, folder, &mut files_found);
    files_found
}

fn append(path: &Path, text: &str) {
    let before = fs::read_to_string(path).unwrap();
    fs::write(path, before + text).unwrap();
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("etc/genv");
    (temporary, folder)
}

#[test]
fn every_file_is_written_and_printed_and_a_second_run_touches_what_changes() {
    let (_temporary, folder) = folder();
    let written = succeeds(&folder, &[]);
    let mut there: Vec<_> = files(&folder).into_keys().collect();
    there.retain(|name| name != ".genv-published");
    let mut sorted = written.clone();
    sorted.sort();
    assert_eq!(sorted, there);
    assert!(written.iter().any(|name| name == RULES), "{written:?}");

    let inodes = || {
        let names = files(&folder).into_keys();
        let inode = |name| fs::metadata(folder.join(name)).unwrap().ino();
        names.map(inode).collect::<Vec<_>>()
    };
    let before = inodes();
    assert!(succeeds(&folder, &[]).is_empty());
    assert_eq!(inodes(), before);

    // A file that is missing or as published follows the addresses.
    assert_eq!(succeeds(&folder, &["--alertmanager-address=watch:9093"]), [PROMETHEUS]);
    fs::remove_file(folder.join(RULES)).unwrap();
    assert_eq!(succeeds(&folder, &["--alertmanager-address=watch:9093"]), [RULES]);
}

#[test]
fn an_edited_file_is_kept_and_stops_everything_where_it_would_change_unless_forced() {
    let (_temporary, folder) = folder();
    succeeds(&folder, &[]);
    append(&folder.join(PROMETHEUS), "# mine\n");
    let edited = files(&folder);
    let kept = publish(&folder, &[]);
    assert_eq!(kept.code, 0);
    insta::assert_snapshot!(kept.stderr, @"genv-exporter: kept as edited in DIR: prometheus/prometheus.yml. --force replaces them.");
    assert_eq!(files(&folder), edited);

    assert_eq!(succeeds(&folder, &["--force"]), [PROMETHEUS]);
    assert!(succeeds(&folder, &[]).is_empty());

    // One that would change stops everything.
    append(&folder.join(PROMETHEUS), "# mine\n");
    fs::remove_file(folder.join(RULES)).unwrap();
    let edited = files(&folder);
    let elsewhere = "--alertmanager-address=watch:9093";
    let refused = publish(&folder, &[elsewhere]);
    assert_eq!((refused.code, refused.written.len()), (1, 0));
    insta::assert_snapshot!(refused.stderr, @"genv-exporter: cannot publish to DIR: these files were edited, or come from elsewhere, and would change: prometheus/prometheus.yml. Nothing was written. Publish to another folder to compare, or replace them with --force");
    assert_eq!(files(&folder), edited);

    let mut written = succeeds(&folder, &[elsewhere, "--force"]);
    written.sort();
    assert_eq!(written, [PROMETHEUS, RULES]);
}

#[test]
fn a_mixin_and_dashboards_for_grafana_com_are_published_alone() {
    // No file names the folder, so that each name is supported.
    let (_temporary, folder) = folder();
    let folder = folder.with_file_name("a$b");
    let mut written = succeeds(&folder.join("mixin"), &["--mixin", "--exporter-url=https://lab.example.org"]);
    written.sort();
    insta::assert_snapshot!(written.join("\n"), @r"
    dashboards_out/enforcement.json
    dashboards_out/host.json
    dashboards_out/overview.json
    dashboards_out/users.json
    prometheus_alerts.yaml
    prometheus_rules.yaml
    ");
    let alerts = fs::read_to_string(folder.join("mixin/prometheus_alerts.yaml")).unwrap();
    assert!(alerts.contains("runbook_url: https://lab.example.org:443/runbooks#"));
    assert_eq!(succeeds(&folder.join("com"), &["--for-grafana-com"]), ["overview.json", "users.json"]);
    // Neither has files or folders of anything else.
    assert_eq!(files(&folder).len(), written.len() + 2 + 2);
    assert_eq!(fs::read_dir(folder.join("mixin")).unwrap().count(), 4);
}

#[test]
fn files_of_others_are_neither_replaced_nor_removed() {
    let (_temporary, folder) = folder();
    fs::create_dir_all(folder.join("prometheus/rules")).unwrap();
    fs::write(folder.join("prometheus/rules/mine.yml"), "groups: []\n").unwrap();
    fs::write(folder.join(RULES), "groups: []\n").unwrap();
    let before = files(&folder);
    let refused = publish(&folder, &[]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains(RULES) && !refused.stderr.contains("mine.yml"));
    assert_eq!(files(&folder), before);

    assert!(succeeds(&folder, &["--force"]).contains(&RULES.to_owned()));
    let mine = fs::read(folder.join("prometheus/rules/mine.yml")).unwrap();
    assert_eq!(mine, b"groups: []\n");
}

#[test]
fn files_of_genv_1_for_grafana_are_named() {
    let (_temporary, folder) = folder();
    let left = "grafana/provisioning/datasources/default.yml";
    fs::create_dir_all(folder.join(left).parent().unwrap()).unwrap();
    fs::write(folder.join(left), "datasources: []\n").unwrap();
    let output = publish(&folder, &[]);
    assert_eq!(output.code, 0);
    insta::assert_snapshot!(output.stderr, @"genv-exporter: Grafana will also read DIR/grafana/provisioning/datasources/default.yml of genv 1.x, and may not start with both. Remove that file.");
    assert!(folder.join(left).exists());
}

#[test]
fn no_link_is_followed_out_of_the_folder() {
    let (temporary, folder) = folder();
    let outside = temporary.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("victim"), "mine").unwrap();
    let links: [(&str, &Path); 3] =
        [(PROMETHEUS, &outside.join("victim")), (PROMETHEUS, Path::new("/nonexistent")), ("prometheus", &outside)];
    for (link, target) in links {
        let _ = fs::remove_dir_all(&folder);
        let link = folder.join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(target, &link).unwrap();
        for flags in [&[][..], &["--force"]] {
            let refused = publish(&folder, flags);
            assert_eq!(refused.code, 1, "{link:?}: {}", refused.stderr);
            assert!(refused.stderr.contains("link"), "{}", refused.stderr);
            assert_eq!(fs::read_link(&link).unwrap(), *target);
        }
    }
    let untouched = files(&outside);
    assert_eq!(untouched.len(), 1);
    assert_eq!(untouched["victim"], b"mine");
}

#[test]
fn the_manifest_is_what_sha256sum_checks() {
    let (_temporary, folder) = folder();
    succeeds(&folder, &[]);
    let check = |folder: &Path| {
        let mut command = std::process::Command::new("sha256sum");
        let command = command.args(["--check", "--strict", "--quiet", ".genv-published"]);
        command.current_dir(folder).output().unwrap().status.success()
    };
    assert!(check(&folder));
    succeeds(&folder, &["--exporter-address=gpu01:9820"]);
    assert!(check(&folder));
    append(&folder.join(RULES), "# mine\n");
    assert!(!check(&folder));
}

#[test]
fn failed_writes_are_reported_with_the_next_step() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path();
    fs::write(root.join("file"), "").unwrap();
    fs::create_dir_all(root.join("pipe/prometheus")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe").join(PROMETHEUS),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    fs::create_dir_all(root.join("folder").join(PROMETHEUS)).unwrap();
    let not_utf_8 = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let mut all = String::new();
    for folder in [
        root.join("file"),
        root.join("file/below"),
        root.join("pipe"),
        root.join("folder"),
        "/proc/genv".into(),
        root.join(not_utf_8),
        root.join("a$HOME"),
        root.join("a\nb"),
    ] {
        let refused = publish(&folder, &[]);
        assert_eq!(refused.code, 1, "{folder:?}: {}", refused.stderr);
        all += &refused.stderr.replace(root.to_str().unwrap(), "TMP");
        assert!(!root.join(not_utf_8).exists());
    }
    insta::assert_snapshot!(all);
}

#[test]
fn wrong_usage_is_refused_with_what_to_write() {
    let mut all = String::new();
    for arguments in [
        &["publish"][..],
        &["publish", ""],
        &["publish", "a", "b"],
        &["publish", "a", "--exporter-address=gpu01"],
        &["publish", "a", "--exporter-address=gpu01:9820/metrics"],
        &["publish", "a", "--prometheus-url=ftp://gpu01"],
        &["publish", "a", "--alertmanager-address="],
        &["publish", "a", "--mixin", "--for-grafana-com"],
        &["publish", "a", "--mixin", "--prometheus-url=http://gpu01:9090"],
        &["publish", "a", "--for-grafana-com", "--exporter-url=http://gpu01:9820"],
        &["--interval=1s", "publish", "a"],
    ] {
        let mut command = Command::cargo_bin("genv-exporter").unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let output = command.current_dir(temporary.path()).args(arguments).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
        let output = String::from_utf8(output.stderr).unwrap();
        all += output.split("\n\nFor more").next().unwrap();
        all += "\n\n";
    }
    insta::assert_snapshot!(all);
}

#[test]
fn a_full_disk_leaves_every_file_whole_and_the_rest_for_the_next_run() {
    const ALERTS: &str = "prometheus/rules/genv-alerts.yml";
    let (_temporary, folder) = folder();
    succeeds(&folder, &[]);
    let before = files(&folder);
    // No file may grow beyond 8 KiB, as if the disk were full after that.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 16; exec "$@""#, "sh"]);
    limited.arg(assert_cmd::cargo::cargo_bin!("genv-exporter"));
    limited.arg("publish").arg(&folder);
    let output = limited.arg("--exporter-address=other:9820").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    insta::assert_snapshot!(stderr.replace(folder.to_str().unwrap(), "DIR"), @"genv-exporter: cannot write DIR/prometheus/rules/genv-alerts.yml: File too large (os error 27). Free some space there and publish again: this file is as it was");

    let after = files(&folder);
    assert!(after.keys().eq(before.keys()));
    assert_ne!(after[PROMETHEUS], before[PROMETHEUS]);
    assert_eq!(after[ALERTS], before[ALERTS]);
    // Two dashboards link to the runbooks.
    let changed = [PROMETHEUS, ALERTS, "grafana/dashboards/host.json", "grafana/dashboards/overview.json"];
    assert_eq!(succeeds(&folder, &["--exporter-address=third:9820"]), changed);
}

/// Settings that docker-compose.yml makes by environment variables, under the names of these.
fn settings_of_compose() -> BTreeMap<String, String> {
    let compose = include_str!("../../../docker-compose.yml").lines();
    let settings = compose.filter_map(|line| line.trim().strip_prefix("GF_")?.split_once(": "));
    let value_or_default = |value: &str| {
        let value = value.trim_matches('"');
        let default = value.strip_prefix("${").and_then(|rest| rest.split_once(":-"));
        default.map_or(value, |(_, rest)| rest.trim_end_matches('}')).to_owned()
    };
    settings.map(|(name, value)| (name.to_owned(), value_or_default(value))).collect()
}

#[test]
fn grafana_is_set_up_as_in_docker_compose() {
    let mut settings = BTreeMap::new();
    let mut section = String::new();
    for line in include_str!("../../../grafana/grafana.ini").lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').replace('.', "_");
        } else if let Some((key, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            let name = format!("{section}_{key}").to_uppercase();
            settings.insert(name, value.to_owned());
        }
    }
    // Docker itself publishes the port and mounts the folder.
    for ours in ["SERVER_HTTP_ADDR", "SERVER_HTTP_PORT", "PATHS_PROVISIONING"] {
        assert!(settings.remove(ours).is_some(), "{ours}");
    }
    let mut of_compose = settings_of_compose();
    assert!(of_compose.remove("SERVER_ROOT_URL").is_some());
    // Access without sign-in is only for the container, whose start.sh closes the folder with users' dashboards.
    let anonymous = "AUTH_ANONYMOUS_ENABLED";
    assert_eq!(settings.remove(anonymous).as_deref(), Some("false"));
    assert_eq!(of_compose.remove(anonymous).as_deref(), Some("true"));
    assert_eq!(settings, of_compose);
}
