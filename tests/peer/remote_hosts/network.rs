//! A host whose network fails in the middle of its session. Networks are made by root.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::root::{apart, own_network, require_root};
use genv_tests::shell::search_path;
use genv_tests::ssh::{SshClient, SshServer};

use crate::remote_hosts::{INTERVAL, is_up, lines, wait};

/// Cycles that the others have to deliver while it is gone.
const CYCLES: usize = 10;

#[test]
#[ignore = "needs root"]
fn a_host_whose_packets_are_dropped_is_named_and_comes_back_while_others_go_on() -> Result<()> {
    require_root();
    apart(|| {
        own_network()?;
        let folder = tempfile::tempdir()?;
        let mut session = Command::new("true");
        session.env("PATH", search_path()?).env("GENV_DEVICES", "2").env("GENV_TMPDIR", folder.path().join("state"));
        let near = SshServer::start(&session, &[])?;
        let far = SshServer::start_afar(&session, &[])?;
        let mut configuration = String::new();
        for (host, server) in [("near", &near), ("far", &far)] {
            configuration.push_str(&format!(
                "Host {host}\n  HostName {}\n  Port {}\n  IdentityFile {}\n  IdentityAgent none\n",
                server.address(),
                server.port(),
                server.identity().display()
            ));
        }
        let keys = near.known_hosts_line()? + &far.known_hosts_line()?;
        let client = SshClient::configured(&configuration, &keys)?;
        let path = std::env::var("PATH")?;
        let exporter = Setup::new()?
            .env("PATH", format!("{}:{path}", client.bin().display()))
            .flag(&format!("--interval={}s", INTERVAL.as_secs()))
            .flag("--snapshot.max-age=30s")
            .flag("--host=far,near")
            .flag("--ssh.connect-timeout=10s")
            .start()?;
        let both_up = |what: &str| wait(&exporter, what, |scrape| is_up(scrape, "far") && is_up(scrape, "near"));
        both_up("both hosts")?;
        let sessions = far.connections();
        ensure!(sessions.len() == 1, "{sessions:?}");

        far.cut(true)?;
        let mut taken = BTreeSet::new();
        let mut is_named = false;
        wait(&exporter, "far to be down, and ten cycles of near", |scrape| {
            assert!(is_up(scrape, "near"), "{}", exporter.log());
            let labels = [("collector", "gpu"), ("hostname", "near")];
            if let Ok(at) = scrape.value("genv_collector_timestamp_seconds", &labels) {
                taken.insert((at * 1000.0) as u64);
            }
            // The session first, and then each attempt at another.
            let log = exporter.log();
            is_named = lines(&log, "far", "sent no snapshot for 30 s") == 1
                && lines(&log, "far", "cannot connect to 198.18.0.2") == 1;
            is_named && !is_up(scrape, "far") && taken.len() > CYCLES
        })?;
        let answer = exporter.get("/metrics?host=far")?;
        ensure!(answer.status == 503, "{}", answer.status);

        far.cut(false)?;
        both_up("far to be back")?;
        let log = exporter.log();
        ensure!(lines(&log, "far", "works again") == 1, "{log}");
        ensure!(lines(&log, "near", "collector") == 0, "{log}");
        Ok(())
    })
}
