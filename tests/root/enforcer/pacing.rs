//! Devices that cannot be taken.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root};
use genv_tests::state::{self, Environment};
use rustix::mount::{MountFlags, mount};
use serde_json::Value;

use crate::ANYTHING;

#[test]
fn devices_that_cannot_be_taken_use_up_no_pace_and_each_intention_has_an_outcome() -> Result<()> {
    require_root();
    apart(on_a_full_disk)
}

fn on_a_full_disk() -> Result<()> {
    own_mounts();
    let setup = Setup::new(
        &used_by(&[]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1, signals_per_minute: 4}\n\
         rules:\n- {kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}\n\
         - {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n",
    )?;
    // The disk of genv's state is full.
    let genv = setup.genv_directory();
    fs::create_dir_all(&genv)?;
    mount("tmpfs", &genv, "tmpfs", MountFlags::empty(), c"mode=777,size=64k")?;
    let mut members = Vec::new();
    let mut environments = Vec::new();
    for (uid, device) in (FIRST_UID..).zip(0..2) {
        let member = sleeper_of(uid, &ANYTHING)?;
        environments.push(Environment::new(&format!("e{uid}"), uid, member.pid(), &[device]));
        members.push(member);
    }
    state::write(&genv, 2, &environments)?;
    fs::write(genv.join("genv.lock"), "")?;
    let mut filler = File::create(genv.join("filler"))?;
    while filler.write_all(&[0; 512]).is_ok() {}
    let enforcer = setup.start()?;
    let audit = enforcer.setup().state_directory().join("audit.jsonl");
    let intended = || fs::read_to_string(&audit).unwrap_or_default().matches(r#""result":"intended""#).count();
    until("more was tried than the pace allows", || Ok(intended() > 10))?;
    let outside = sleeper_of(FIRST_UID + 2, &ANYTHING)?;
    enforcer.setup().rewrite_scenario(&used_by(&[outside.pid()]))?;
    ends(outside.pid())?;
    let (_, _setup) = enforcer.terminate()?;
    let audit = fs::read_to_string(audit)?;
    let lines = audit.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let ids = |intended: bool| -> BTreeSet<String> {
        let lines = lines.iter().filter(|it| (it["result"] == "intended") == intended);
        lines.map(|it| it["id"].to_string()).collect()
    };
    ensure!(ids(true).is_subset(&ids(false)), "{audit}");
    ensure!(!audit.contains("paced"), "{audit}");
    Ok(())
}
