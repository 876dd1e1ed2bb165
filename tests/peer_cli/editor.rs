//! Calls as editors make them, of which some reach genv 1.4.3 and others ours.

use anyhow::{Result, ensure};

use crate::lab::{holders, lab, members, peer_reads};

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
        step(
            0,
            &format!("envs activate --pid {me} --eid {eid} --uid 0 --username root"),
        )?;
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
