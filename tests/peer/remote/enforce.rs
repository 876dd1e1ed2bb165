//! genv 1.4.3 enforces on a host that is ours.

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{ends, is_alive, sleeper, victim};
use genv_tests::process::program;
use genv_tests::ssh::{SshClient, SshServer};
use serde_json::Value;

use crate::remote::host::{Host, login, printed};

#[test]
fn its_enforcer_ends_what_is_outside_of_environments_on_a_host_of_ours_and_nothing_else() -> Result<()> {
    let outside = sleeper(&[("A", "1")])?;
    let of_no_device = sleeper(&[("A", "1")])?;
    let host = Host::new(2, "")?;
    host.genv(&format!("envs activate --eid 7 --uid {} --username somebody --pid {}", victim(), of_no_device.pid()))?;
    host.genv("devices attach --eid 7 --index 0")?;
    // Not older than its environment.
    let inside = sleeper(&[("GENV_ENVIRONMENT_ID", "7")])?;
    let processes =
        [&outside, &inside].map(|it| format!("{{pid: {}, devices: [{{index: 0, memory: 1gi}}]}}", it.pid()));
    host.uses(2, &processes.join(", "));

    // Where a host has the enforcer, it stands next to genv.
    let genv = program("genv")?;
    ensure!(genv.with_file_name("genv-enforcer").exists());
    let programs = genv.parent().context("no folder")?;
    let mut session = host.peer.our_command("genv")?;
    let system = format!("{}/bin:/usr/bin:/bin", host.peer.folder().display());
    let own = host.peer.folder().join("enforcer");
    session.env("PATH", format!("{}:{system}", programs.display())).env("STATE_DIRECTORY", &own);
    let server = SshServer::start(&session, &[])?;
    let client = SshClient::new(&[("gpu01", &server)])?;
    let line = "-H gpu01 enforce --interval 0 --non-env-processes";
    let said = printed(&mut login(&client, &host, line)?)?;
    let done = format!("process {} (sleep): done", outside.pid());
    ensure!(said.contains(&done), "{said}");
    ends(outside.pid())?;
    ensure!(is_alive(inside.pid()) && is_alive(of_no_device.pid()), "{said}");

    // It was ours that did it.
    let audit = std::fs::read_to_string(own.join("audit.jsonl"))?;
    let lines: Vec<Value> = audit.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let acts: Vec<_> = lines.iter().map(|line| (line["pid"].as_u64(), line["result"].as_str())).collect();
    let pid = Some(u64::from(outside.pid()));
    assert_eq!(acts, [(pid, Some("intended")), (pid, Some("done"))]);
    Ok(())
}
