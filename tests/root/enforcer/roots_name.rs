//! Devices that users hold in root's name, and devices of root's own environments.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::{Enforcer, Setup, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Running;
use genv_tests::root::require_root;
use genv_tests::state::{self, Environment};

use crate::ALICE;

/// This rule takes devices beyond the limit. No rule reaches root's own environments.
const NO_DEVICE: &str = "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\nnever: {users: [root]}\n\
     rules:\n- {kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}\n";

/// The environments that hold a device, by the state.
fn holders(setup: &Setup) -> Result<Vec<String>> {
    let state = state::read(&setup.genv_directory())?;
    let devices = state["devices"].as_array().context("no devices")?;
    let held = devices.iter().filter_map(|it| it["attachments"].as_array());
    let eids = held.flatten().filter_map(|it| it["eid"].as_str());
    Ok(eids.map(str::to_owned).collect())
}

fn disputed(enforcer: &Enforcer) -> Result<String> {
    Ok(enforcer.status()?["disputed_records"].to_string())
}

#[test]
fn devices_that_a_user_holds_in_the_name_of_root_are_taken_back() -> Result<()> {
    require_root();
    let of_alice = sleeper_of(ALICE, &[])?;
    // These processes are like su and sudo waiting for a password, with their caller's variables.
    let named = [("GENV_ENVIRONMENT_ID", "parked"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    let su = ChangedUser::with_real_user(ALICE, 0, ALICE, &named)?;
    let sudo = ChangedUser::start(ALICE, 0, &named)?;
    for (member, is_there_before) in
        [(1, true), (1, false), (of_alice.pid(), true), (su.child(), false), (sudo.child(), false)]
    {
        let setup = Setup::new(&used_by(&[]), NO_DEVICE)?;
        let folder = setup.genv_directory();
        let parked = [Environment::new("parked", 0, member, &[0, 1])];
        state::write(&folder, 2, if is_there_before { &parked } else { &[] })?;
        let enforcer = setup.start()?;
        enforcer.wait_for_facts()?;
        if !is_there_before {
            state::write(&folder, 2, &parked)?;
        }
        until("both devices are taken back", || Ok(holders(enforcer.setup())?.is_empty()))?;
        let log = enforcer.log();
        ensure!(log.contains("nothing shows that its user made it"), "{log}");
    }
    Ok(())
}

#[test]
fn roots_own_environments_keep_their_devices() -> Result<()> {
    require_root();
    let before = sleeper_of(0, &[])?;
    let setup = Setup::new(&used_by(&[]), NO_DEVICE)?;
    let folder = setup.genv_directory();
    let mut all = vec![Environment::new("before", 0, before.pid(), &[0])];
    state::write(&folder, 2, &all)?;
    let enforcer = setup.start()?;
    enforcer.wait_for_facts()?;
    // A shell of root in a terminal, in an environment of genv 1.4.3.
    let file = folder.join("shell");
    let line = format!("echo $$ > {}; exec sleep 1000000", file.display());
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--command", &line, "/dev/null"]);
    let _terminal = Running::spawn(terminal.stdin(Stdio::null()).stdout(Stdio::null()))?;
    let pid = until("the shell runs", || Ok(fs::read_to_string(&file).is_ok_and(|it| it.ends_with('\n'))))
        .and_then(|()| Ok(fs::read_to_string(&file)?.trim().parse()?))?;
    all.push(Environment::new("later", 0, pid, &[1]));
    state::write(&folder, 2, &all)?;
    enforcer.wait_for_cycles(5)?;
    ensure!(holders(enforcer.setup())? == ["before", "later"], "{}", enforcer.log());
    ensure!(disputed(&enforcer)? == "[]", "{}", disputed(&enforcer)?);
    // A shell of root in an environment of this genv.
    state::write(&folder, 2, &all[..1])?;
    // Where genv is killed, the command that it has started goes on.
    let exec = ["exec", "--gpus=1", "--", "setpriv", "--pdeathsig=KILL", "sleep", "1000000"];
    let mut genv = enforcer.setup().program("genv", &exec)?;
    let _genv = Running::spawn(genv.stdin(Stdio::null()))?;
    until("its environment has a device", || Ok(holders(enforcer.setup())?.len() == 2))?;
    enforcer.wait_for_cycles(5)?;
    ensure!(holders(enforcer.setup())?.len() == 2, "{}", enforcer.log());
    ensure!(disputed(&enforcer)? == "[]", "{}", disputed(&enforcer)?);
    Ok(())
}
