//! Leases: devices go back once the lease of their user has ended.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{ends, is_alive};

use crate::run::disputed::{Lab, genv};

#[test]
fn devices_go_back_when_the_lease_of_their_user_has_ended() -> Result<()> {
    let lab = Lab::new("kind: max-age, leases: true, action: terminate")?;
    let setup = lab.enforcer.setup();
    genv(setup, Some("e1"), "genv extend 1h >/dev/null")?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    genv(setup, None, "genv activate --id e1 --for 1s")?;
    ends(lab.process.pid())?;
    let done = fs::read_to_string(setup.state_directory().join("audit.jsonl"))?;
    ensure!(done.contains("the lease of environment e1 ended"), "{done}");
    Ok(())
}
