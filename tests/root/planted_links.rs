//! Links that another user put where root's genv works: only root can make both.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

use anyhow::{Result, ensure};
use genv_tests::patience::output;
use genv_tests::root::{FIRST_UID, require_root};
use genv_tests::shell::{Account, Shell};
use genv_tests::state;

const STRANGER: u32 = FIRST_UID;

#[test]
fn a_state_directory_that_another_user_linked_elsewhere_is_not_followed() -> Result<()> {
    require_root();
    let account = Account::new()?;
    let victim = account.home().join("victim");
    fs::create_dir(&victim)?;
    // A folder where everybody may put something, and where Linux itself does not mind.
    let open = account.home().join("open");
    fs::create_dir(&open)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777))?;
    let planted = open.join("genv");
    symlink(&victim, &planted)?;
    lchown(&planted, Some(STRANGER), Some(STRANGER))?;
    let setup = Shell::Bash.setup();
    for slash in ["", "/"] {
        for line in [
            "genv activate",
            "genv exec -- true",
            "genv exec --gpus 1 -- true",
            "genv envs activate --eid e --uid 0 --pid $$",
            "genv envs --reset",
            "genv devices --reset",
            "genv devices",
            "GENV_ENVIRONMENT_ID=e genv detach",
            "genv doctor",
        ] {
            let mut command = account.command("bash")?;
            command.env("GENV_TMPDIR", format!("{}{slash}", planted.display()));
            let done = output(command.args(["-c", &format!("{setup}; {line}")]))?;
            let said = String::from_utf8(done.stdout)? + &String::from_utf8(done.stderr)?;
            // What only reads need not say so.
            let told = said.contains("it is a symbolic link, made by uid 54321");
            ensure!(told || line == "genv devices", "{line}: {said}");
            let made = fs::read_dir(&victim)?.count();
            ensure!(made == 0, "{line} made {made} files in another folder");
        }
    }
    // One's own is followed.
    lchown(&planted, Some(0), Some(0))?;
    let mut command = account.command("bash")?;
    command.env("GENV_TMPDIR", &planted);
    let done = output(command.args(["-c", "genv exec -- true"]))?;
    ensure!(done.status.success() && victim.join(state::FILE).exists(), "{done:?}");
    Ok(())
}
