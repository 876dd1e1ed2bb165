//! `genv remote devices`, `envs` and `query`.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::process::Sleeper;
use genv_tests::ssh::SshClient;
use serde_json::Value;

use crate::remote_commands::support::{Host, answer, printed};

const A100: &str = "{name: NVIDIA A100-SXM4-80GB, count: 3, memory: 80gi}";
const T4: &str = "{name: Tesla T4, count: 2, memory: 16gi}";

/// Names that a terminal, a shell or a program that splits lines could trip over.
const HOSTILE: &str = "$(touch x) \u{e9} \"q\" 'w' \\";

#[test]
fn devices_of_all_hosts_are_counted_in_the_order_of_the_list() -> Result<()> {
    let (first, second) = (Host::new(A100, &[])?, Host::new(T4, &[])?);
    let member = Sleeper::start(&[])?;
    first.environment("7", "run", &member, &["--count", "2"])?;
    let client = SshClient::new(&[("gpu01", &first.server), ("gpu02", &second.server)])?;

    let table = printed(&client, &["-H", "gpu02,gpu01", "devices"])?;
    ensure!(
        table
            == "HOST   TOTAL  AVAILABLE  MODELS\n\
                gpu02  2      2          2 Tesla T4 (16.0 GiB)\n\
                gpu01  3      1          3 NVIDIA A100-SXM4-80GB (80.0 GiB)\n\n\
                Total 5 devices with 3 available on 2 hosts\n",
        "{table}"
    );
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("hosts");
    fs::write(&file, "# all\ngpu[01-02]\n")?;
    let file = file.display().to_string();
    let lines = ["--format", "csv", "--no-summary"];
    for flag in ["--hostfile", "-hostfile"] {
        let csv = printed(&client, &[&[flag, &file, "devices"], &lines[..]].concat())?;
        ensure!(csv == "HOST,TOTAL,AVAILABLE\ngpu01,3,1\ngpu02,2,2\n", "{csv}");
    }
    let json = printed(&client, &["-host", "gpu01", "devices", "--json"])?;
    let json: Value = serde_json::from_str(&json)?;
    let host = &json["hosts"][0];
    ensure!(host["hostname"] == "gpu01" && host["total"] == 3 && host["available"] == 1, "{json}");
    let device = &host["devices"][0];
    ensure!(
        device["name"] == "NVIDIA A100-SXM4-80GB" && device["available"] == false && device["environments"] == 1,
        "{json}"
    );
    ensure!(json["failures"].as_array().is_some_and(Vec::is_empty), "{json}");
    Ok(())
}

#[test]
fn environments_of_all_hosts_are_listed_and_hostile_names_do_nothing() -> Result<()> {
    let (first, second) = (Host::new(A100, &[])?, Host::new(T4, &[])?);
    let members = [Sleeper::start(&[])?, Sleeper::start(&[])?];
    first.environment("7", HOSTILE, &members[0], &["--count", "2"])?;
    second.environment("9", "plain", &members[1], &[])?;
    let client = SshClient::new(&[("gpu01", &first.server), ("gpu02", &second.server)])?;

    let table = printed(&client, &["-H", "gpu[01-02]", "envs"])?;
    let lines: Vec<&str> = table.lines().collect();
    ensure!(lines.len() == 5 && lines[1].starts_with("gpu01  7   root  $(touch x) \u{e9} \"q\" 'w' \\"), "{table}");
    ensure!(lines[1].ends_with("0,1") && lines[4] == "Total 2 environments on 2 hosts", "{table}");
    let csv = printed(&client, &["-H", "gpu[01-02]", "envs", "--format", "csv", "--no-header", "--no-summary"])?;
    ensure!(csv.starts_with(&format!("gpu01,7,root,{HOSTILE},")) && csv.lines().count() == 2, "{csv}");
    let json: Value = serde_json::from_str(&printed(&client, &["-H", "gpu[01-02]", "envs", "--json"])?)?;
    let environment = &json["hosts"][0]["environments"][0];
    ensure!(environment["name"] == HOSTILE && environment["pids"][0] == members[0].pid(), "{json}");

    let query = |name| ["-H", "gpu[01-02]", "query", "--name", name, "--query", "eid", "hostname"];
    ensure!(printed(&client, &query(HOSTILE))? == "7,gpu01\n");
    ensure!(printed(&client, &query("nobody"))?.is_empty());
    let json = printed(&client, &[&query("plain")[..], &["--json"]].concat())?;
    let json: Value = serde_json::from_str(&json)?;
    ensure!(json[0]["hostname"] == "gpu02" && json[0]["eid"] == "9", "{json}");
    Ok(())
}

#[test]
fn a_wrong_list_or_flag_is_wrong_usage() -> Result<()> {
    let client = SshClient::configured("", "")?;
    for (words, said) in [
        (&["--hostfile", "/nonexistent/hosts", "envs"][..], "No such file"),
        (&["-H", "gpu01,GPU01", "envs"], "already listed"),
        (&["devices"], "--hostfile"),
        (&["-H", "gpu01", "-l", "a;b", "devices"], "not a login name"),
        (&["-H", "gpu01", "monitor", "-p", "x"], "invalid value"),
        (&["-H", "gpu01,gpu01", "monitor"], "already listed"),
        (&["-H", "gpu01,gpu01", "enforce"], "already listed"),
    ] {
        let answer = answer(&client, words)?;
        ensure!(
            answer.code == Some(2) && answer.stdout.is_empty() && answer.stderr.contains(said),
            "{words:?}: {answer:?}"
        );
    }
    Ok(())
}
