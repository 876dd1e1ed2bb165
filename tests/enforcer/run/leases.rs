//! Leases: devices go back once the lease of their user has ended, and by no other user's lease.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use anyhow::{Result, ensure};
use genv_tests::enforcer::{ends, is_alive, victim};

use crate::run::disputed::{Lab, genv};

const RULE: &str = "kind: max-age, leases: true, action: terminate";

/// The content of a file of leases, in which that of `e1` ended long ago.
fn ended() -> Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let now = now.as_secs();
    Ok(format!(r#"{{"version":1,"leases":[{{"eid":"e1","granted_seconds":{now},"end_seconds":{}}}]}}"#, now - 3600))
}

#[test]
fn devices_go_back_when_the_lease_of_their_user_has_ended() -> Result<()> {
    let lab = Lab::new(RULE, |_| ())?;
    let setup = lab.enforcer.setup();
    genv(setup, Some("e1"), "UTC", "genv extend 1h >/dev/null")?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    genv(setup, None, "UTC", "genv activate --id e1 --for 1s")?;
    ends(lab.process.pid())?;
    let done = fs::read_to_string(setup.state_directory().join("audit.jsonl"))?;
    ensure!(done.contains("the lease of environment e1 ended"), "{done}");
    Ok(())
}

#[test]
fn a_lease_that_others_may_have_written_ends_nothing() -> Result<()> {
    let lab = Lab::new(RULE, |_| ())?;
    let folder = lab.genv_directory();
    let file = folder.join(format!("genv-leases-{}.json", victim()));
    let elsewhere = folder.join("elsewhere");
    fs::write(&elsewhere, ended()?)?;
    // Everybody may write it; without this right it is the victim's own where the tests run as that user.
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o666))?;
    fs::copy(&elsewhere, &file)?;
    lab.enforcer.wait_for_cycles(3)?;
    fs::remove_file(&file)?;
    symlink(&elsewhere, &file)?;
    lab.enforcer.wait_for_cycles(3)?;
    fs::remove_file(&file)?;
    fs::write(&file, vec![b' '; 100 << 20])?;
    lab.enforcer.wait_for_cycles(3)?;
    ensure!(is_alive(lab.process.pid()), "{}", lab.enforcer.log());
    Ok(())
}
