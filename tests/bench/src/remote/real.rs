//! Real sshd with `genv remote-serve`, and with the commands of genv 1.4.3.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use genv_tests::http::free_port;
use genv_tests::peer::Peer;
use genv_tests::process::{signal, tree_cpu_seconds, write_script};
use genv_tests::shell;
use genv_tests::ssh::{SshClient, SshServer};
use rustix::process::Signal;

use super::{PATIENCE, THERE_BUDGET_SECONDS, exporter, wait_until_up};
use crate::load::{Change, Load};
use crate::table::{Table, milliseconds, verdict};

/// Numbers of hosts, all of which are this machine: genv 1.4.3 starts some programs for each, here and there.
const SIZES: [usize; 3] = [1, 8, 32];

const INTERVAL: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(20);

/// As many as sshd may have at the door while all of them come at once.
const OPTIONS: [&str; 1] = ["MaxStartups 200"];

/// Connections of genv 1.4.3 to a host in one cycle: what the machine has, and what is in use.
const SESSIONS: usize = 2;

/// CPU of one cycle and host, in seconds.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    here: f64,
    there: f64,
}

/// The measurements on hosts under load.
pub(crate) fn there() -> Result<Table> {
    let load = Load::start(Change::OneInTen)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;
    let mut session = Command::new("genv");
    session
        .env("PATH", format!("{}:/usr/bin:/bin", shell::installation()?.join("bin").display()))
        .env("GENV_NVML_LIBRARY", load.simulation.library())
        .env("GENV_SCENARIO", load.simulation.scenario())
        .env("GENV_TMPDIR", &state);
    let server = SshServer::start(&session, &OPTIONS)?;
    let cycle = ours(&server, 4)?;
    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    table.row(&[
        &"CPU on a host, per cycle, sshd included: 8 devices, 100 environments, 200 processes on all devices",
        &milliseconds(cycle.there),
        &milliseconds(THERE_BUDGET_SECONDS),
        &verdict(cycle.there <= THERE_BUDGET_SECONDS),
    ]);
    Ok(table)
}

/// Reads the same hosts with both.
pub(crate) fn pair() -> Result<Table> {
    let load = Load::start(Change::OneInTen)?;
    let peer = Peer::new(&load.simulation)?;
    load.write_state(&peer.state_directory())?;
    // genv 1.4.3 runs its commands there by sudo.
    write_script(&peer.folder().join("bin/sudo"), "#!/bin/sh\nexec \"$@\"\n")?;
    let our_server = SshServer::start(&peer.our_command("genv")?, &OPTIONS)?;
    let their_server = SshServer::start(&peer.command("genv"), &OPTIONS)?;
    let mut table = Table::new(&["hosts", "what, per host and cycle", "genv-exporter", "genv 1.4.3", "times better"]);
    for hosts in SIZES {
        let ours = ours(&our_server, hosts)?;
        let theirs = theirs(&their_server, &peer, hosts)?;
        for (what, ours, theirs) in
            [("CPU here", ours.here, theirs.here), ("CPU on the host", ours.there, theirs.there)]
        {
            table.row(&[&hosts, &what, &milliseconds(ours), &milliseconds(theirs), &format!("{:.0}", theirs / ours)]);
        }
    }
    Ok(table)
}

/// Names of one server.
fn names(server: &SshServer, hosts: usize) -> Result<(Vec<String>, SshClient)> {
    let names: Vec<String> = (0..hosts).map(|number| format!("gpu{number:02}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), server)).collect();
    let client = SshClient::new(&pairs)?;
    Ok((names, client))
}

fn ours(server: &SshServer, hosts: usize) -> Result<Cycle> {
    let (names, client) = names(server, hosts)?;
    let exporter = exporter(&client, &names, INTERVAL)?;
    wait_until_up(&exporter, hosts)?;
    std::thread::sleep(INTERVAL * 2);
    let cycles = WATCHED.as_secs_f64() / INTERVAL.as_secs_f64();
    let (here, there) = (tree_cpu_seconds(exporter.pid())?, tree_cpu_seconds(server.pid())?);
    super::watch(&exporter, INTERVAL, cycles as u32)?;
    let (here, there) = (tree_cpu_seconds(exporter.pid())? - here, tree_cpu_seconds(server.pid())? - there);
    wait_until_up(&exporter, hosts)?;
    let cycles = cycles * hosts as f64;
    Ok(Cycle { here: here / cycles, there: there / cycles })
}

/// `genv remote … monitor`; it ends with the value.
struct Monitor(Child);

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = signal(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn theirs(server: &SshServer, peer: &Peer, hosts: usize) -> Result<Cycle> {
    let (names, client) = names(server, hosts)?;
    let port = free_port()?;
    let mut command = peer.command("genv");
    client.on_path(&mut command)?;
    let errors = peer.folder().join("monitor.log");
    command
        .args(["remote", "-t", "30", "-H", &names.join(",")])
        .args(["monitor", "--interval", "1", "--port", &port.to_string()])
        .arg("--config-dir")
        .arg(peer.folder().join("metrics"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors)?);
    let monitor = Monitor(command.spawn()?);
    let deadline = Instant::now() + PATIENCE;
    while sessions(server) < SESSIONS * hosts * 2 {
        ensure!(
            Instant::now() < deadline,
            "genv 1.4.3 has asked nothing twice: {}",
            std::fs::read_to_string(&errors).unwrap_or_default()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let read =
        || -> Result<_> { Ok((tree_cpu_seconds(monitor.0.id())?, tree_cpu_seconds(server.pid())?, sessions(server))) };
    let before = read()?;
    std::thread::sleep(WATCHED);
    let after = read()?;
    let done = (after.2 - before.2) as f64 / SESSIONS as f64;
    ensure!(done > 0.0, "genv 1.4.3 asked nothing in {WATCHED:?}");
    Ok(Cycle { here: (after.0 - before.0) / done, there: (after.1 - before.1) / done })
}

/// Connections that a server has let in so far.
fn sessions(server: &SshServer) -> usize {
    let log = server.log();
    log.lines().filter(|line| line.contains("Accepted publickey")).count()
}
