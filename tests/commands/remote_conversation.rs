//! How a conversation with a host begins, through every login shell that its user may have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use genv_remote::conversation::{Conversation, ServeOptions, StreamTransport, serve_command};
use genv_remote::protocol::{Hello, HostProgram, Reply, Request};
use genv_tests::process::{Running, copy_program, write_script};
use genv_tests::shell::installed;
use tempfile::TempDir;

const SHELLS: [&str; 5] = ["sh", "bash", "zsh", "fish", "tcsh"];

/// A genv that knows no `remote-serve`, as 1.4.3.
const OLDER: &str = "#!/bin/sh\n[ \"$1\" = usage ] && exit 0\necho 'invalid choice' >&2\nexit 2\n";

/// A host with two simulated devices, whose user has a home directory with a space in its name, and a PATH.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new() -> Result<Self> {
        let host = Self { folder: tempfile::tempdir()? };
        for folder in [host.home().join(".local/bin"), host.path()] {
            fs::create_dir_all(folder)?;
        }
        Ok(host)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("a home")
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// What sshd runs for its user.
    fn login(&self, shell: &Path, options: &ServeOptions) -> Command {
        let mut command = Command::new(shell);
        command
            .arg("-c")
            .arg(serve_command(options))
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", format!("{}:/usr/bin:/bin", self.path().display()))
            .env("GENV_DEVICES", "2")
            .env("GENV_TMPDIR", self.folder.path().join("state"));
        command
    }
}

fn options() -> ServeOptions {
    ServeOptions { sudo: false, enforce: false, answer_timeout: Duration::from_secs(60) }
}

fn talk(host: &Host, shell: &str, options: &ServeOptions) -> Result<(Hello, usize)> {
    let mut command = host.login(&installed(shell), options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running::spawn(piped.stderr(Stdio::null()))?;
    let stdin = running.stdin.take().context("no stdin")?;
    let stdout = running.stdout.take().context("no stdout")?;
    runtime.block_on(async {
        let lines = StreamTransport::new(
            tokio::process::ChildStdout::from_std(stdout)?,
            tokio::process::ChildStdin::from_std(stdin)?,
        );
        let (mut conversation, hello) = Conversation::with(lines, options).await?;
        if hello.answers_with != HostProgram::Genv {
            return Ok((hello, 0));
        }
        conversation.request(&Request::Once).await?;
        match conversation.next_reply().await? {
            Reply::Snapshot { snapshot } => Ok((hello, snapshot.devices.len())),
            other => anyhow::bail!("{other:?}"),
        }
    })
}

#[test]
fn genv_is_found_and_started_by_every_login_shell() -> Result<()> {
    let host = Host::new()?;
    // An older one comes first on PATH, and ours is where only its user looks for programs.
    write_script(&host.path().join("genv"), OLDER)?;
    copy_program("genv", &host.home().join(".local/bin/genv"))?;
    write_script(&host.home().join(".local/bin/genv-enforcer"), "#!/bin/sh\n")?;
    for (shell, enforce) in SHELLS.iter().flat_map(|shell| [(*shell, false), (*shell, true)]) {
        let options = ServeOptions { enforce, ..options() };
        let (hello, devices) = talk(&host, shell, &options).context(shell)?;
        assert_eq!((hello.answers_with, hello.may_enforce, devices), (HostProgram::Genv, enforce, 2), "{shell}");
    }
    Ok(())
}

#[test]
fn what_there_is_instead_is_told_by_every_login_shell() -> Result<()> {
    let older = Host::new()?;
    write_script(&older.path().join("genv"), OLDER)?;
    let bare = Host::new()?;
    write_script(&bare.path().join("nvidia-smi"), "#!/bin/sh\n")?;
    // A folder, and a file that is no program, are none.
    fs::create_dir(bare.path().join("genv"))?;
    fs::write(bare.home().join(".local/bin/genv"), "")?;
    let nothing = Host::new()?;
    let here = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/snap/bin", "/usr/lib/wsl/lib", "/opt/bin"];
    let here = here.map(|folder| Path::new(folder).join("nvidia-smi").exists());
    let without = if here.contains(&true) { HostProgram::NvidiaSmi } else { HostProgram::Nothing };
    for (host, expected) in [(&older, HostProgram::Genv1), (&bare, HostProgram::NvidiaSmi), (&nothing, without)] {
        for shell in SHELLS {
            let (hello, _) = talk(host, shell, &options()).context(shell)?;
            assert_eq!(hello.answers_with, expected, "{shell}");
            assert_eq!(hello.version, None);
        }
    }
    Ok(())
}
