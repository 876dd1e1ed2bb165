//! Shells and programs of genv 1.4.3 and of this project in one environment.

use anyhow::{Context as _, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::{Peer, Shell};

fn lab() -> Result<(Simulation, Peer)> {
    let simulation = Simulation::new("version: 1\nhosts:\n- devices: [{count: 4, memory: 16gi}]\n");
    let peer = Peer::new(&simulation)?;
    Ok((simulation, peer))
}

/// What a shell's programs see of the devices and of the configuration.
fn shows(shell: &mut Shell, expected: &str) -> Result<()> {
    let shown = shell.run("echo $CUDA_VISIBLE_DEVICES ${GENV_ENVIRONMENT_NAME-} ${GENV_GPUS-}")?;
    ensure!(shown.trim() == expected, "{shown}");
    Ok(())
}

/// The first shell starts an environment, the second joins and changes it, and each sees the changes of the other.
fn shared(peer: &Peer, first: &mut Shell, second: &mut Shell) -> Result<()> {
    let eid = first.pid().to_string();
    first.run("genv activate --name training --gpus 2")?;
    shows(first, "0,1 training 2")?;
    second.run(&format!("genv activate --id {eid} --no-load --no-attach --no-prompt"))?;
    second.run("genv attach --refresh; genv config --refresh")?;
    shows(second, "0,1 training 2")?;

    second.run("genv attach --count 3")?;
    first.run("genv attach --refresh")?;
    shows(first, "0,1,2 training 2")?;
    first.run("genv config name renamed; genv detach --index 0")?;
    second.run("genv config --refresh; genv attach --refresh")?;
    shows(second, "1,2 renamed 2")?;

    // The second shell stays in the environment, with the devices.
    first.run("genv deactivate")?;
    ensure!(peer.our_genv(&["envs", "find", "--pid", &second.pid().to_string()])?.trim() == eid);
    ensure!(peer.our_genv(&["devices", "find", "--eid", &eid])?.trim() == "1,2");
    second.run("genv deactivate")?;
    ensure!(peer.our_genv(&["envs", "query", "--query", "eid"])?.is_empty());
    ensure!(peer.our_genv(&["devices", "find", "--eid", &eid])?.trim().is_empty());
    Ok(())
}

#[test]
fn an_environment_of_one_is_joined_changed_and_left_by_the_other() -> Result<()> {
    let (_simulation, peer) = lab()?;
    shared(&peer, &mut peer.shell()?, &mut peer.our_shell()?)?;
    shared(&peer, &mut peer.our_shell()?, &mut peer.shell()?)
}

#[test]
fn a_python_program_works_within_our_environment() -> Result<()> {
    let (_simulation, peer) = lab()?;
    // Its own python3, with our variables.
    let python = peer.command("python3");
    let path = python.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, value)| value).context("no PATH")?;
    let mut bash = peer.our_shell()?;
    bash.run("genv activate --name 'my env' --gpus 2 --gpu-memory 4g")?;
    let program = r#"python3 -c "
import genv.sdk as s
print(s.active(), s.eid(), list(s.attached()), s.configuration())
print(list(s.attach(gpus=3)), list(s.detach(1)))
with s.lock(): print('locked')
""#;
    let printed = bash.run(&format!("PATH={}:$PATH {program}", path.to_string_lossy()))?;
    let mut lines = printed.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(
        first.starts_with(&format!("True {} [0, 1] ", bash.pid()))
            && ["'my env'", "'4g'", "gpus=2"].iter().all(|it| first.contains(it)),
        "{printed}"
    );
    ensure!(lines.eq(["[0, 1, 2] [0, 2]", "locked"]), "{printed}");
    ensure!(bash.run("genv attach --refresh; echo $CUDA_VISIBLE_DEVICES")? == "0,2\n");
    Ok(())
}
