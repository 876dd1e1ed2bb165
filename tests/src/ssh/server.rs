//! OpenSSH's server, with keys and a home directory of its own.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use super::new_key;
use crate::http::free_port;
use crate::patience::until;
use crate::process::{Running, children, signal};

/// An sshd with a key of its own, which lets only the holder of [`SshServer::identity`] in; it ends with the value, and
/// its connections with it.
pub struct SshServer {
    child: Running,
    port: u16,
    folder: TempDir,
}

impl SshServer {
    /// Starts one. Whoever logs in has a new home directory and the variables of this command, of which only those are
    /// used; `GENV_*` that clients send are accepted. `options` are further lines of sshd_config, and come first, so
    /// that they count.
    pub fn start(session: &Command, options: &[&str]) -> Result<Self> {
        Self::start_by(session, options, |sshd| sshd)
    }

    /// One on a machine of its own, as far as processes go: a namespace of pids with a `/proc` of its own, in which this
    /// shell script runs first. Its background processes have the pids from 2 on, in their order. Only root can.
    pub fn start_apart(session: &Command, options: &[&str], script: &str) -> Result<Self> {
        Self::start_by(session, options, |sshd| {
            let mut unshare = Command::new("unshare");
            unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
            unshare.arg(format!("{script}\nexec \"$@\"")).arg("sh").arg(sshd.get_program()).args(sshd.get_args());
            unshare
        })
    }

    fn start_by(session: &Command, options: &[&str], wrap: impl FnOnce(Command) -> Command) -> Result<Self> {
        let program = sshd();
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("home"))?;
        for name in ["host_key", "identity"] {
            new_key(&at(name), "ed25519", "")?;
        }
        let port = free_port()?;
        let configuration = configuration(folder.path(), port, session, options);
        fs::write(at("sshd_config"), configuration)?;
        if rustix::process::geteuid().is_root() {
            // Its own start-up scripts make it.
            let mut run = fs::DirBuilder::new();
            run.recursive(true).mode(0o755).create("/run/sshd")?;
        }
        let mut sshd = Command::new(program);
        sshd.arg("-D").arg("-f").arg(at("sshd_config"));
        sshd.arg("-E").arg(at("log"));
        let mut command = wrap(sshd);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        let child = Running::spawn(command.stdin(Stdio::null()))?;
        let mut server = Self { child, port, folder };
        until("sshd answers", || {
            ensure!(server.child.try_wait()?.is_none(), "it has ended");
            Ok(server.answers())
        })
        .with_context(|| server.log())?;
        Ok(server)
    }

    fn answers(&self) -> bool {
        let mut banner = [0; 4];
        TcpStream::connect(("127.0.0.1", self.port))
            .and_then(|mut connection| connection.read_exact(&mut banner))
            .is_ok_and(|()| banner == *b"SSH-")
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The private key that it lets in.
    pub fn identity(&self) -> PathBuf {
        self.folder.path().join("identity")
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub fn known_hosts_line(&self) -> Result<String> {
        let key = fs::read_to_string(self.folder.path().join("host_key.pub"))?;
        Ok(format!("[127.0.0.1]:{} {key}", self.port))
    }

    /// The file of public keys that it lets in.
    pub fn authorized_keys(&self) -> PathBuf {
        self.folder.path().join("identity.pub")
    }

    /// Its own key: the private one, beside the public.
    pub fn host_key(&self) -> PathBuf {
        self.folder.path().join("host_key")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The pid here of the process that has this one on the machine of [`SshServer::start_apart`].
    pub fn pid_of(&self, pid: u32) -> Result<u32> {
        let init = *self.connections().first().context("no first process")?;
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children"))?;
        let mut children = children.split_whitespace();
        let found = children.find(|child| {
            let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            let mut lines = status.lines();
            let inner = lines.find_map(|line| line.strip_prefix("NSpid:"));
            inner.and_then(|pids| pids.split_whitespace().last()) == Some(&pid.to_string())
        });
        let found = found.with_context(|| format!("no process {pid} there"))?;
        Ok(found.parse()?)
    }

    pub fn connections(&self) -> Vec<u32> {
        children(self.child.id())
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        // Any of them may have ended by itself.
        for pid in self.connections() {
            let _ = signal(pid, Signal::TERM);
        }
    }
}

fn configuration(folder: &Path, port: u16, session: &Command, options: &[&str]) -> String {
    let folder = folder.display();
    let variables = session.get_envs().filter_map(|(name, value)| {
        let assignment = format!("{}={}", name.display(), value?.display());
        Some(format!(" \"{}\"", assignment.replace('\\', r"\\").replace('"', "\\\"")))
    });
    let variables: String = variables.collect();
    let options = options.join("\n");
    format!(
        "{options}
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/identity.pub
PidFile none
LogLevel VERBOSE
# All is in a temporary directory, which everybody may write.
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
AcceptEnv GENV_*
SetEnv \"HOME={folder}/home\"{variables}
"
    )
}

/// It is not on everybody's PATH, and has to be started by its whole path.
fn sshd() -> PathBuf {
    let path = Path::new("/usr/sbin/sshd");
    assert!(
        path.exists(),
        "there is no {}: install the Debian package openssh-server, or run 'scripts/need openssh-server'",
        path.display()
    );
    path.to_owned()
}
