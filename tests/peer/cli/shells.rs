//! Terminals side by side: in some the functions of genv 1.4.3, in the others ours.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use genv_tests::peer::{Peer, Shell};
use genv_tests::process::{Sleeper, program, wait_for_lock};

use crate::cli::lab::{file, holders, lab, members, peer_reads};

/// What a shell's programs see of the devices and of the configuration.
const SHOW: &str = "echo $CUDA_VISIBLE_DEVICES ${GENV_ENVIRONMENT_NAME-} ${GENV_GPUS-} ${GENV_GPU_MEMORY-}";

fn shows(shell: &mut Shell, expected: &str) -> Result<()> {
    let shown = shell.run(SHOW)?;
    ensure!(shown.trim() == expected, "{shown}");
    Ok(())
}

/// One of both starts an environment, the other one joins and changes it, and each sees what the other did.
fn shared(peer: &Peer, first: &mut Shell, second: &mut Shell) -> Result<()> {
    let eid = first.pid().to_string();
    let pids = [u64::from(first.pid()), u64::from(second.pid())];
    first.run("genv activate --name training --gpus 2")?;
    peer_reads(peer)?;
    shows(first, "0,1 training 2")?;

    second.run(&format!("genv activate --id {eid} --no-load --no-attach --no-prompt"))?;
    peer_reads(peer)?;
    ensure!(members(peer, &eid)? == Some(pids.to_vec()));
    second.run("genv attach --refresh; genv config --refresh")?;
    shows(second, "0,1 training 2")?;

    second.run("genv attach --count 3")?;
    peer_reads(peer)?;
    shows(second, "0,1,2 training 2")?;
    first.run("genv attach --refresh")?;
    shows(first, "0,1,2 training 2")?;

    first.run("genv config name renamed; genv config gpus 1; genv config gpu-memory 4g")?;
    peer_reads(peer)?;
    second.run("genv config --refresh")?;
    shows(second, "0,1,2 renamed 1 4g")?;
    second.run("genv config --clear gpu-memory")?;
    peer_reads(peer)?;
    first.run("genv config --refresh")?;
    shows(first, "0,1,2 renamed 1")?;

    first.run("genv detach --index 0")?;
    peer_reads(peer)?;
    second.run("genv attach --refresh")?;
    shows(second, "1,2 renamed 1")?;

    // Whoever leaves leaves the other one in it, with its devices.
    first.run("genv deactivate")?;
    peer_reads(peer)?;
    ensure!(members(peer, &eid)? == Some(pids[1..].to_vec()));
    ensure!(holders(peer)? == [(1, vec![eid.clone()]), (2, vec![eid.clone()])].into());
    second.run("genv deactivate")?;
    peer_reads(peer)?;
    ensure!(members(peer, &eid)?.is_none());
    ensure!(holders(peer)?.is_empty());
    Ok(())
}

#[test]
fn an_environment_of_one_is_joined_changed_and_left_by_the_other() -> Result<()> {
    let (_simulation, peer) = lab(4)?;
    shared(&peer, &mut peer.shell()?, &mut peer.our_shell()?)?;
    shared(&peer, &mut peer.our_shell()?, &mut peer.shell()?)
}

#[test]
fn what_one_holds_the_other_is_not_given() -> Result<()> {
    let (_simulation, peer) = lab(3)?;
    let (mut ours, mut theirs) = (peer.our_shell()?, peer.shell()?);
    ours.run("genv activate --gpus 1")?;
    theirs.run("genv activate --gpus 1")?;
    shows(&mut ours, "0 1")?;
    shows(&mut theirs, "1 1")?;
    // Its function returns 0, ours the code.
    let said = theirs.run("genv attach --count 3 2>&1")?;
    ensure!(said.contains("No available devices"), "{said}");
    ensure!(ours.run("genv attach --count 3 2>/dev/null || echo $?")? == "4\n");
    let (our_eid, their_eid) = (ours.pid().to_string(), theirs.pid().to_string());
    let before = [(0, vec![our_eid.clone()]), (1, vec![their_eid.clone()])];
    ensure!(holders(&peer)? == before.into());

    // Parts of devices are shared, up to their memory.
    ours.run("genv detach; genv config gpu-memory 10gi; genv attach --index 2")?;
    theirs.run("genv detach; genv config gpu-memory 6gi; genv attach --index 2")?;
    peer_reads(&peer)?;
    ensure!(holders(&peer)? == [(2, vec![our_eid, their_eid])].into());
    let mut third = peer.our_shell()?;
    third.run("genv activate --gpu-memory 1mi")?;
    ensure!(third.run("genv attach --index 2 2>/dev/null || echo $?")? == "4\n");
    third.run("genv attach --count 2")?;
    ensure!(third.run("echo $CUDA_VISIBLE_DEVICES")? == "0,1\n");
    peer_reads(&peer)
}

#[test]
fn a_shell_that_was_killed_is_cleaned_up_by_the_other() -> Result<()> {
    let (_simulation, peer) = lab(2)?;
    let (mut ours, mut theirs) = (peer.our_shell()?, peer.shell()?);
    let (our_eid, their_eid) = (ours.pid().to_string(), theirs.pid().to_string());
    ours.run("genv activate --gpus 1")?;
    theirs.run("genv activate --gpus 1")?;

    theirs.kill()?;
    let mut next = peer.our_shell()?;
    next.run("genv activate --gpus 1")?;
    shows(&mut next, "1 1")?;
    ensure!(members(&peer, &their_eid)?.is_none());
    peer_reads(&peer)?;

    ours.kill()?;
    let mut next = peer.shell()?;
    next.run("genv activate --gpus 1")?;
    shows(&mut next, "0 1")?;
    ensure!(members(&peer, &our_eid)?.is_none());
    peer_reads(&peer)
}

#[test]
fn the_members_of_our_own_file_are_those_that_genv_1_4_3_left() -> Result<()> {
    let (_simulation, peer) = lab(2)?;
    let (mut first, mut second) = (peer.shell()?, peer.shell()?);
    let eid = first.pid().to_string();
    first.run("genv activate --gpus 1")?;
    second.run(&format!("genv activate --id {eid}"))?;
    let recorded = || -> Result<BTreeSet<u64>> {
        // Any change of ours reconciles the file.
        peer.our_genv(&["envs", "deactivate", "--pid", "1"])?;
        let content = file(&peer, "genv-members.json")?;
        let members = content["members"].as_array().context("no members")?;
        Ok(members.iter().filter_map(|it| it["pid"].as_u64()).collect())
    };
    let pids = [u64::from(first.pid()), u64::from(second.pid())];
    ensure!(recorded()? == pids.into());
    first.run("genv deactivate")?;
    ensure!(recorded()? == [pids[1]].into());
    ensure!(members(&peer, &eid)? == Some(vec![pids[1]]));

    // A pid in a file that is older than the process is not that process.
    let later = Sleeper::start(&[])?;
    let pid = later.pid().to_string();
    let activate = ["envs", "activate", "--uid", "0", "--pid", &pid, "--eid"];
    peer.genv(&[&activate[..], &["reused"]].concat())?;
    let envs = peer.state_directory().join("envs.json");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&envs)?.set_modified(long_ago)?;
    recorded()?;
    ensure!(members(&peer, "reused")?.is_none());
    // One that was there before is.
    peer.genv(&[&activate[..], &["kept"]].concat())?;
    recorded()?;
    ensure!(members(&peer, "kept")? == Some(vec![u64::from(later.pid())]));
    peer_reads(&peer)
}

/// A command under the device locks of one waits for that of the other.
fn lock_excludes(peer: &Peer, eid: &str, ours_first: bool) -> Result<()> {
    // Both hold the same environment's devices, and the first one's command lasts until its input ends.
    let holding = ["lock", "sh", "-c", "echo held; cat"];
    let waiting = ["lock", "sh", "-c", "echo had; exit 7"];
    let (ours, theirs) = (peer.our_command("genv")?, peer.command("genv"));
    let (mut holder, mut waiter): (Command, Command) = match ours_first {
        true => (ours, theirs),
        false => (theirs, ours),
    };
    for (command, arguments) in [(&mut holder, holding), (&mut waiter, waiting)] {
        command
            .args(arguments)
            .env("GENV_ENVIRONMENT_ID", eid)
            .env("GENV_SHELL", "1")
            .env("CUDA_VISIBLE_DEVICES", "0,1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
    }
    let mut holder = holder.spawn()?;
    let mut line = String::new();
    let output = holder.stdout.as_mut().context("no stdout")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    ensure!(line == "held\n", "{line}");
    let mut waiter = waiter.spawn()?;
    wait_for_lock(&mut waiter).context(if ours_first { "theirs" } else { "ours" })?;
    drop(holder.stdin.take());
    ensure!(holder.wait()?.success());
    let output = waiter.wait_with_output()?;
    ensure!(output.stdout == b"had\n");
    if !ours_first {
        ensure!(output.status.code() == Some(7), "{}", output.status);
    }
    Ok(())
}

#[test]
fn our_lock_and_theirs_exclude_each_other() -> Result<()> {
    let (_simulation, peer) = lab(3)?;
    let mut shell = peer.our_shell()?;
    shell.run("genv activate --gpus 2")?;
    let eid = shell.pid().to_string();
    lock_excludes(&peer, &eid, true)?;
    lock_excludes(&peer, &eid, false)
}

#[test]
fn the_stand_ins_of_both_on_one_path_find_the_real_program() -> Result<()> {
    let (_simulation, peer) = lab(3)?;
    let shims = peer.folder().join("lib/genv/shims");
    std::fs::create_dir_all(&shims)?;
    std::os::unix::fs::symlink(program("genv-shim")?, shims.join("nvidia-smi"))?;
    let shims = shims.display();
    let mut shell = peer.shell()?;
    shell.run("genv activate --gpus 2")?;
    let theirs = shell.run("type -p nvidia-smi")?;
    ensure!(theirs.trim_end().ends_with("site-packages/genv/shims/nvidia-smi"));
    // Entering the environment from there puts ours in front.
    let query = "nvidia-smi --query-gpu=index --format=csv,noheader";
    let ours_first = format!("PATH={shims}:$PATH");
    let shown = shell.run(&format!("{ours_first} {query}"))?;
    ensure!(shown == "0\n1\n", "{shown}");
    let table = shell.run(&format!("{ours_first} nvidia-smi"))?;
    ensure!(table.matches("MiB / ").count() == 2, "{table}");
    // And from ours theirs, which loses lines now and then, as it does alone.
    let shown = shell.run(&format!("PATH=${{PATH%%:*}}:{shims}:${{PATH#*:}} {query}"))?;
    ensure!(shown.lines().all(|line| ["0", "1"].contains(&line)), "{shown}");
    Ok(())
}
