//! What pages tell to type in the source folder: the place `source`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::repository;
use genv_tests::documentation::{Page, Place};
use genv_tests::http::{self, free_port};
use genv_tests::metrics::Scrape;
use genv_tests::patience::{ended, until};
use genv_tests::process::{program, signal, write_script};
use rustix::process::Signal;

/// The commands. The first is run here, the second runs this, and the suite packages needs the third.
const COMMANDS: [&str; 3] = ["scripts/run", "scripts/test", "scripts/package"];

/// What cargo is asked to build. It takes minutes; the same program is built already, without optimization.
const BUILD: &str = "build --profile first --locked --package genv-exporter --manifest-path";

#[test]
fn every_command_for_the_source_folder_is_run() -> Result<()> {
    for page in Page::all()? {
        for line in page.typed(Place::Source) {
            let command = line.text.split('#').next().unwrap_or_default().trim();
            ensure!(COMMANDS.contains(&command), "{}: no test runs it", page.place_of(&line));
        }
    }
    Ok(())
}

#[test]
fn scripts_run_builds_the_exporter_and_serves() -> Result<()> {
    let port = free_port()?;
    let folder = tempfile::tempdir()?;
    let asked = folder.path().join("asked");
    fs::create_dir_all(folder.path().join("first"))?;
    symlink(program("genv-exporter")?, folder.path().join("first/genv-exporter"))?;
    let cargo = format!("#!/bin/sh\necho \"$@\" >{}\n", asked.display());
    write_script(&folder.path().join("cargo"), &cargo)?;
    let path = std::env::var("PATH").context("no PATH")?;
    let mut run = Command::new(repository().join("scripts/run"));
    run.env("CARGO_TARGET_DIR", folder.path())
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        // README's own first command may hold the port that README names.
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let mut run = run.spawn()?;
    let serves = until("it serves", || {
        ensure!(run.try_wait()?.is_none(), "it has ended: is the port {port} taken?");
        Ok(http::get(port, "/-/ready").is_ok_and(|answer| answer.status == 200))
    });
    let scrape = serves.and_then(|()| Scrape::parse(&http::get(port, "/metrics")?.text()?));
    // It may have ended by itself.
    let _ = signal(run.id(), Signal::INT);
    let status = ended(&mut run)?;
    let scrape = scrape?;
    // Those of the simulated lab, or this machine where it has a driver.
    let hosts = scrape.all("genv_host_up", &[]);
    let all_up = hosts.iter().all(|(_, up)| up.to_bits() == 1_f64.to_bits());
    ensure!(!hosts.is_empty() && all_up, "{hosts:?}");
    ensure!(status.success(), "{status}");
    let asked = fs::read_to_string(asked)?;
    ensure!(asked.starts_with(BUILD), "cargo was asked to {asked}");
    Ok(())
}
