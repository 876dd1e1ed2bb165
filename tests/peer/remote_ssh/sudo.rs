//! genv as root there, by the real sudo. Whom it trusts is root's to say.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_remote::FailureKind;
use genv_remote::conversation::ServeOptions;
use genv_remote::session::RunLimits;
use genv_tests::process::copy_program;
use genv_tests::root::{apart, own_mounts, require_root, users};
use genv_tests::shell::installed;
use genv_tests::ssh::{SshClient, SshServer};
use rustix::mount::mount_bind;

use crate::remote_ssh::support::{ask, connect, ensure_failure};

/// The user of the documented lines, and where genv is in them.
const USER: &str = "monitor";
const BIN: &str = "/usr/local/bin";

/// Lines of sudoers that the documentation has: to tell, and to enforce.
fn documented() -> Vec<&'static str> {
    let lines = include_str!("../../../docs/remote.md").lines();
    lines.filter(|line| line.starts_with("monitor ALL=")).collect()
}

/// A new folder that everybody may look into, and that this thread finds at another place.
fn shown_at(folder: &Path, name: &str, at: &str) -> Result<PathBuf> {
    let own = folder.join(name);
    fs::create_dir(&own)?;
    fs::set_permissions(&own, Permissions::from_mode(0o755))?;
    mount_bind(&own, at)?;
    Ok(own)
}

#[test]
#[ignore = "needs root"]
fn the_documented_lines_of_sudoers_let_genv_run_as_root_and_nothing_else() -> Result<()> {
    require_root();
    let sudo = installed("sudo");
    apart(|| {
        own_mounts();
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        users(folder.path(), &[USER], &[])?;
        let bin = shown_at(folder.path(), "bin", BIN)?;
        for program in ["genv", "genv-enforcer"] {
            copy_program(program, &bin.join(program))?;
        }
        let sudoers = shown_at(folder.path(), "sudoers.d", "/etc/sudoers.d")?;
        fs::write(sudoers.join("environment"), "Defaults env_keep += \"GENV_DEVICES GENV_TMPDIR\"\n")?;
        // What root alone may read.
        let state = folder.path().join("state");
        fs::create_dir(&state)?;
        fs::set_permissions(&state, Permissions::from_mode(0o700))?;
        let mut session = Command::new("true");
        session.env("PATH", format!("{BIN}:/usr/bin:/bin")).env("GENV_DEVICES", "2").env("GENV_TMPDIR", &state);
        let server = SshServer::start(&session, &[])?;
        let keys = server.authorized_keys();
        let keys = keys.parent().context("no folder")?;
        fs::set_permissions(keys, Permissions::from_mode(0o755))?;
        let configuration = format!(
            "Host host\n  User {USER}\n  Port {}\n  IdentityFile {}\n  IdentityAgent none\n",
            server.port(),
            server.identity().display()
        );
        let client = SshClient::configured(&configuration, &server.known_hosts_line()?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let session = connect(&client, "host").await?;
            let options = |sudo, enforce| ServeOptions { sudo, enforce, answer_timeout: Duration::from_secs(60) };
            let (alone, _) = ask(&session, options(false, false)).await?;
            ensure!(!alone.collectors["state"].success, "{alone:?}");
            let lines = documented();
            ensure!(lines.len() == 2, "{lines:?}");
            let mut allowed = String::new();
            for (line, enforce) in lines.into_iter().zip([false, true]) {
                let refused = ask(&session, options(true, enforce)).await;
                ensure_failure(
                    &refused.expect_err("nobody allowed it"),
                    FailureKind::Command,
                    &["sudo refuses", &format!("by the line: {line}")],
                )?;
                allowed.push_str(&format!("{line}\n"));
                fs::write(sudoers.join("genv"), &allowed)?;
                let (snapshot, may_enforce) = ask(&session, options(true, enforce)).await?;
                ensure!(snapshot.collectors["state"].success, "{snapshot:?}");
                ensure!(snapshot.devices.len() == 2 && may_enforce == enforce);
            }
            for refused in ["id", "genv status", "genv remote-serve --silence 1h"] {
                let command = format!("{} -n {refused}", sudo.display());
                let output = session.run(&command, b"", &RunLimits::default()).await?;
                ensure!(!output.end.success(), "{command}: {output:?}");
                ensure!(output.stderr.contains("sudo: "), "{command}: {output:?}");
            }
            session.close().await;
            Ok(())
        })
    })
}
