//! `grafana/start.sh` and the provisioning of the stack, with a stub in Grafana's place.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::repository;
use genv_tests::http::free_port;
use genv_tests::patience::{ended, until};
use genv_tests::process::Running;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// The request that takes the folder of the pages about people away from the role Viewer.
const CLOSES: &str =
    r#"/api/folders/genv-private/permissions application/json {"items":[{"role":"Editor","permission":1}]}"#;

/// Returns only when the process has ended that a signal ends. The shell takes its status while `tail` runs.
const KILL: &str = r#"kill() {
    command kill "$@" || return
    [ "$1" != -TERM ] || tail --pid="$2" --sleep-interval=0.05 -f /dev/null
}"#;

/// Starts Grafana over a folder of data, waits until the stub has noted exactly this and the log has `line`, and ends both.
fn run(data: &Path, password: &str, noted: &[String], line: &str) -> Result<()> {
    let port = free_port()?.to_string();
    let stub = repository().join("tests/docker/grafana-stub.py");
    let script = fs::read_to_string(repository().join("grafana/start.sh"))?;
    let script = script.replace("/run.sh", &format!("python3 {}", stub.display()));
    let script = script.replace("127.0.0.1:3000", &format!("127.0.0.1:{port}"));
    // Grafana has ended before the trap returns, and so before the script waits again.
    let script = format!("{KILL}\n{script}");
    let [notes, log] = ["noted", "log"].map(|name| data.join(name));
    let _ = fs::remove_file(&notes);
    let mut sh = Command::new("sh");
    sh.args(["-c", &script]).process_group(0).envs([
        ("GF_AUTH_ANONYMOUS_ENABLED", "true"),
        ("GF_SERVER_HTTP_ADDR", "127.0.0.1"),
        ("GF_SERVER_HTTP_PORT", &port),
        ("GRAFANA_ADMIN_PASSWORD", password),
        ("no_proxy", "127.0.0.1"),
    ]);
    sh.env("GF_PATHS_DATA", data).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut grafana = Running::spawn(&mut sh)?;
    let group = Pid::from_child(&grafana);
    let (mut found, mut logged) = (String::new(), String::new());
    let waited = until("the stub has noted it", || {
        found = fs::read_to_string(&notes).unwrap_or_default();
        logged = fs::read_to_string(&log)?;
        Ok(found.lines().eq(noted) && logged.contains(line))
    });
    // As Docker does: to the script alone.
    kill_process(group, Signal::TERM)?;
    let status = ended(&mut grafana);
    let _ = kill_process_group(group, Signal::KILL);
    waited.with_context(|| format!("{found}{logged}"))?;
    let status = status?;
    ensure!(status.success(), "Grafana ended with status 0, and the script with {status}");
    Ok(())
}

#[test]
fn all_of_grafana_asks_for_a_login_until_the_folder_about_people_does() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path();
    let closed = data.join("genv-private-closed");
    let (locked, open) = ("anonymous false".to_owned(), "anonymous true".to_owned());
    let closes = [locked.clone(), format!("200 {CLOSES}"), open.clone()];
    run(data, "", &closes, "the pages about people ask for a login now")?;
    ensure!(closed.exists(), "it is not called healthy");
    let password_file = data.join("genv-admin-password");
    let password = fs::read_to_string(&password_file)?;
    ensure!(password.trim().len() >= 16, "a password of {} letters", password.trim().len());
    ensure!(password_file.metadata()?.permissions().mode() & 0o777 == 0o600, "others may read the password");
    // Once: what an admin changes later stays.
    run(data, "", &[open], "")?;

    // An older volume has another password of the admin.
    fs::remove_file(&closed)?;
    run(data, "another", &[locked, format!("401 {CLOSES}")], "Grafana refuses the admin's password")?;
    ensure!(!closed.exists(), "it is called healthy");
    // As the log says.
    run(data, password.trim(), &closes, "the pages about people ask for a login now")
}

#[test]
fn the_pages_about_people_are_in_the_folder_that_asks_for_a_login() -> Result<()> {
    let read = |name: &str| -> Result<Value> {
        let text = fs::read_to_string(repository().join("grafana/provisioning").join(name))?;
        serde_saphyr::from_str(&text).with_context(|| name.to_owned())
    };
    let dashboards = read("dashboards/genv.yml")?;
    let mut open = Vec::new();
    for provider in dashboards["providers"].as_array().context("no providers")? {
        let path = provider["options"]["path"].as_str().context("no path")?;
        // Where docker-compose.yml mounts the folder grafana.
        let name = path.strip_prefix("/etc/grafana/genv/").with_context(|| path.to_owned())?;
        ensure!(repository().join("grafana").join(name).is_file(), "there is no {path}");
        if provider["folderUid"] != "genv-private" {
            open.push(name);
        }
    }
    assert_eq!(open, ["dashboards/overview.json"]);
    assert_eq!(read("datasources/genv.yml")?["datasources"][0]["url"], "http://prometheus:9090");
    Ok(())
}
