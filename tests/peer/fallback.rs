//! A host with the real genv 1.4.3, polled.

use anyhow::{Context, Result};
use genv_core::model::Attribution;
use genv_remote::protocol::HostProgram;
use genv_tests::local_commands::{poll, poller};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::Sleeper;

#[test]
fn environments_attachments_and_processes_are_those_that_genv_1_tells() -> Result<()> {
    let inside = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    let outside = Sleeper::start(&[])?;
    let forged = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "nosuch")])?;
    let rows: String = [&inside, &outside, &forged]
        .iter()
        .map(|it| {
            format!("  - {{pid: {}, comm: sleep, user: alice, devices: [{{index: \"0\", memory: 2gi}}]}}\n", it.pid())
        })
        .collect();
    let simulation = Simulation::new(&format!(
        "version: 1
users: {{alice: 1001}}
hosts:
- name: gpu01
  driver_version: 550.163.01
  cuda_version: \"12.4\"
  environments: []
  devices:
  - {{name: NVIDIA A100-SXM4-40GB, memory: 40gi, utilization: 0.5, power: 100}}
  - {{name: NVIDIA A100-SXM4-40GB, memory: 40gi}}
  processes:
{rows}"
    ));
    let peer = Peer::new(&simulation)?;
    let member = Sleeper::start(&[])?;
    let pid = member.pid().to_string();
    let uid = rustix::process::geteuid().as_raw();
    let user = uid.to_string();
    peer.genv(&["envs", "activate", "--pid", &pid, "--eid", "e1", "--uid", &user, "--username", "x"])?;
    peer.genv(&["envs", "config", "--eid", "e1", "name", "--name", "my env"])?;
    peer.genv(&["envs", "config", "--eid", "e1", "gpu-memory", "--gpu-memory", "10gi"])?;
    peer.genv(&["devices", "attach", "--eid", "e1", "--count", "1"])?;

    let mut poller = poller(HostProgram::Genv1);
    let snapshot = poll(&mut poller, || peer.command("sh"))?;
    let wrong = format!("{snapshot:#?}");
    assert!(snapshot.collectors.values().all(|it| it.success && it.current), "{wrong}");
    assert!(snapshot.installed, "{wrong}");
    let environment = snapshot.environment("e1").context(wrong.clone())?;
    assert_eq!(environment.uid, Some(uid));
    assert_eq!(environment.name.as_deref(), Some("my env"));
    assert_eq!(environment.members[0].pid, member.pid());
    // Written as local time, to the second.
    let created = environment.created_timestamp_seconds.context("no time")?;
    assert!((snapshot.timestamp_seconds - created).abs() < 300.0, "{wrong}");
    let attachment = &snapshot.devices[0].attachments[0];
    assert_eq!((attachment.eid.as_str(), attachment.share_ratio), ("e1", 0.25));
    let attribution = |sleeper: &Sleeper| {
        let process = snapshot.processes.iter().find(|it| it.pid == sleeper.pid());
        process.map(|process| process.attribution.clone())
    };
    let eid = "e1".to_owned();
    assert_eq!(attribution(&inside), Some(Attribution::Environment { eid }), "{wrong}");
    for (process, reason) in [(&outside, "no_claim"), (&forged, "no_such_environment")] {
        let reason = reason.to_owned();
        assert_eq!(attribution(process), Some(Attribution::Outside { reason }), "{wrong}");
    }

    // Time with it is accounted, though its utilization is not told.
    let later = poll(&mut poller, || peer.command("sh"))?;
    let uses = later.counters.user_device_use.iter();
    let mut seconds = uses.filter_map(|it| it.device_seconds.as_ref());
    let used = seconds.find(|it| it.unmeasured > 0.0);
    let used = used.with_context(|| format!("{:#?}", later.counters))?;
    assert_eq!((used.busy, used.idle), (0.0, 0.0));
    Ok(())
}
