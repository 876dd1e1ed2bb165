//! The first of README's two commands; the second is what runs this.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::docker::repository;
use genv_tests::documentation::{PORT_HERE, Page, Place};
use genv_tests::http;
use genv_tests::metrics::Scrape;
use genv_tests::patience::{ended, until};
use genv_tests::process::{program, signal, write_script};
use rustix::process::Signal;

/// What cargo is asked to build. It takes minutes; the same program is built already, without optimization.
const BUILD: &str = "build --release --locked --package genv-exporter --manifest-path";

#[test]
fn scripts_run_serves_on_the_address_that_readme_tells() -> Result<()> {
    let _alone = crate::documented::alone()?;
    let pages = Page::all()?;
    let mut lines = pages.iter().flat_map(|page| page.typed(Place::Source));
    let port = *PORT_HERE;
    let url = format!("http://127.0.0.1:{port}/metrics");
    let documented = lines.any(|it| it.text.starts_with("scripts/run ") && it.text.contains(&url));
    ensure!(documented, "no page says that scripts/run serves {url}");

    let folder = tempfile::tempdir()?;
    let asked = folder.path().join("asked");
    fs::create_dir_all(folder.path().join("release"))?;
    symlink(program("genv-exporter")?, folder.path().join("release/genv-exporter"))?;
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
