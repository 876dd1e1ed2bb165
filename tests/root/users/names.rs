//! Lookups of user names, which may take long: a user database can hang.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use genv_tests::patience::output;
use genv_tests::process::copy_program;
use genv_tests::root::{apart, own_mounts, require_root, users};
use genv_tests::state::{self, Environment};
use rustix::mount::{MountFlags, mount};

use super::{command, process_of};
use crate::{ALICE, BOB};

#[test]
fn nobody_waits_for_the_state_while_a_name_is_looked_up() -> Result<()> {
    require_root();
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
    let folder = folder.path();
    copy_program("genv", &folder.join("genv"))?;
    let member = process_of(ALICE, "e1")?;
    let environment = Environment::new("e1", ALICE, member.pid(), &[0]);
    let state = folder.join("state");
    state::write(&state, 2, &[environment])?;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777))?;
    apart(|| refused_by_name(folder))
}

/// genv refuses Bob's command on Alice's environment. The user database answers only after root has changed the state.
fn refused_by_name(folder: &Path) -> Result<()> {
    own_mounts();
    users(folder, &["alice"], &[])?;
    let database = silent_database()?;
    let detach = ["./genv", "devices", "detach", "--eid", "e1"];
    let mut refused = command(folder, BOB, &detach).stderr(Stdio::piped()).spawn()?;
    let (asked, _) = database.accept()?;
    let changed = output(&mut command(folder, 0, &detach))?;
    ensure!(changed.status.success(), "{changed:?}");
    ensure!(refused.try_wait()?.is_none(), "the change waited for the name");
    drop((asked, database));
    let refused = refused.wait_with_output()?;
    let stderr = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1), "{stderr}");
    let expected = format!("of the user alice({ALICE}): only this user and root may do so");
    ensure!(stderr.contains(&expected), "{stderr}");
    Ok(())
}

/// A user database that the C library asks first (nscd(8)) and that does not answer: the C library waits seconds for
/// it.
fn silent_database() -> Result<UnixListener> {
    mount("own", "/run", "tmpfs", MountFlags::empty(), None)?;
    fs::create_dir("/run/nscd")?;
    let socket = "/run/nscd/socket";
    let database = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666))?;
    Ok(database)
}
