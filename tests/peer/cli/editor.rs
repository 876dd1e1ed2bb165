//! Calls as editors make them, of which some reach genv 1.4.3 and others ours.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::process::write_script;

use crate::cli::lab::{file, holders, lab, members, peer_reads};

#[test]
fn an_editor_may_call_either_for_every_step() -> Result<()> {
    let (_simulation, peer) = lab(3)?;
    let me = std::process::id().to_string();
    let run = |ours: bool, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        match ours {
            true => peer.our_genv(&words),
            false => peer.genv(&words),
        }
    };
    // Every mixture of two programs in the steps of one environment.
    for mixture in 0..16_usize {
        let step = |number: usize, line: &str| run(mixture >> number & 1 == 1, line);
        let eid = format!("mixture-{mixture}");
        step(0, &format!("envs activate --pid {me} --eid {eid} --uid 0 --username root"))?;
        step(1, &format!("envs config --eid {eid} gpus --count 2"))?;
        let printed = step(2, &format!("devices attach --eid {eid}"))?;
        ensure!(printed == "0,1\n", "{mixture}: {printed}");
        let printed = step(3, &format!("devices detach --eid {eid} --index 0"))?;
        ensure!(printed == "1\n", "{mixture}: {printed}");
        ensure!(holders(&peer)? == [(1, vec![eid.clone()])].into());
        ensure!(members(&peer, &eid)? == Some(vec![u64::from(std::process::id())]));
        step(0, &format!("envs deactivate --pid {me}"))?;
        // Ours only leaves out what it finds there, and theirs writes it.
        for ours in [true, false] {
            let printed = run(ours, &format!("devices find --eid {eid}"))?;
            ensure!(printed == "\n", "{mixture}: {printed}");
        }
        ensure!(holders(&peer)?.is_empty(), "{mixture}");
    }
    peer_reads(&peer)
}

#[test]
fn a_kernel_of_jupyter_is_a_member_to_both_until_it_ends() -> Result<()> {
    let (_simulation, peer) = lab(2)?;
    // genv 1.4.3 asks `jupyter` where kernels are. Ours starts no program, and looks where that would look.
    let runtime = peer.folder().join("runtime");
    fs::create_dir(&runtime)?;
    write_script(&peer.folder().join("bin/jupyter"), &format!("#!/bin/sh\necho '{}'\n", runtime.display()))?;
    let uid = rustix::process::geteuid().as_raw();
    let run = |ours: bool, line: &str| -> Result<String> {
        let mut command = if ours { peer.our_command("genv")? } else { peer.command("genv") };
        let output = command.args(line.split(' ')).env("JUPYTER_RUNTIME_DIR", &runtime).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{ours} {line}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    };
    for ours in [true, false] {
        let kernel = runtime.join("kernel-0123-abcd.json");
        fs::write(&kernel, "{}")?;
        run(ours, &format!("envs activate --eid e --uid {uid} --kernel-id 0123-abcd"))?;
        ensure!(run(!ours, "devices attach --eid e --count 1")? == "0\n");
        for either in [true, false] {
            ensure!(run(either, "envs find --kernel-id 0123-abcd")? == "e\n");
            ensure!(run(either, "devices find --eid e")? == "0\n");
        }
        ensure!(file(&peer, "envs.json")?["envs"][0]["kernel_ids"][0] == "0123-abcd");

        fs::remove_file(&kernel)?;
        for either in [true, false] {
            ensure!(run(either, "envs find --kernel-id 0123-abcd")?.trim().is_empty());
        }
        // The next of both that changes something clears up.
        let me = std::process::id();
        run(!ours, &format!("envs activate --eid next --uid {uid} --pid {me}"))?;
        ensure!(members(&peer, "e")?.is_none());
        for either in [true, false] {
            ensure!(run(either, "devices find --eid e")? == "\n");
        }
        run(ours, &format!("envs deactivate --pid {me}"))?;
    }
    peer_reads(&peer)
}
