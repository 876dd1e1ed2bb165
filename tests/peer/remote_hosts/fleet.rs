//! 12 hosts, of which six are in trouble, each in another; and what heals each.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::http::free_port;
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::write_script;
use genv_tests::shell;
use genv_tests::ssh::{SshClient, SshServer};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use tempfile::TempDir;

pub(crate) const HOSTS: usize = 12;

/// How long each step may take until a session with a host has begun.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Sessions that may be at one server's door at the same time.
const MANY: &str = "MaxStartups 200";

const REFUSES: &str = "refuses";
const DROPS: &str = "drops";
const OTHER_KEY: &str = "other-key";
pub(crate) const CLOSES: &str = "closes";
const FLOOD: &str = "flood";
const NOTHING: &str = "nothing";
/// Hosts that are read in another way.
pub(crate) const GENV_1: &str = "genv1";
pub(crate) const NO_GENV: &str = "no-genv";
/// A host that greets, whose profile talks, and whose clock is three hours behind.
pub(crate) const TALKS: &str = "talks";

/// Those that never deliver as long as their trouble lasts, with what the log must say of it.
pub(crate) const DOWN: [(&str, &str); 5] = [
    (REFUSES, "Connection refused"),
    (DROPS, "no answer in"),
    (OTHER_KEY, "ssh-keygen"),
    (FLOOD, "a line of more than"),
    (NOTHING, "neither genv nor nvidia-smi"),
];

/// What a session of a well host runs: what it was asked.
const AS_ASKED: &str = "exec sh -c \"$SSH_ORIGINAL_COMMAND\"";

const HELLO: &str = r#"{"genv_remote":1,"answers_with":"genv"}"#;

/// All that they need; it ends with the value.
pub(crate) struct Fleet {
    folder: TempDir,
    client: SshClient,
    /// That nothing ever happens to.
    well: Vec<(String, SshServer)>,
    /// Whose sessions run a script, by host.
    scripted: Vec<(&'static str, SshServer)>,
    other: Vec<(&'static str, SshServer)>,
    /// Where nothing gets through: a listener whose queue is full.
    _full: (TcpListener, TcpStream),
    _peer: Peer,
    _simulation: Simulation,
    ports: Vec<(&'static str, u16)>,
}

impl Fleet {
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let simulation =
            Simulation::new("version: 1\nhosts:\n- devices: [{count: 2, memory: 16gi}]\n  processes: []\n");
        let peer = Peer::new(&simulation)?;
        write_script(&peer.folder().join("bin/sudo"), "#!/bin/sh\nexec \"$@\"\n")?;
        let system = "/usr/bin:/bin";
        let ours = shell::installation()?.join("bin");
        let session = |path: &str| {
            let mut session = Command::new("sh");
            session.env("PATH", path).env("GENV_DEVICES", "2").env("GENV_TMPDIR", folder.path().join("state"));
            session
        };
        let with_genv = format!("{}:{system}", ours.display());

        let mut scripted = Vec::new();
        for (host, script) in scripts() {
            let path = folder.path().join(host);
            write_script(&path, &format!("#!/bin/sh\n{script}\n"))?;
            let banner = folder.path().join("banner");
            fs::write(&banner, "Authorized use only\n{\"genv_remote\":\n")?;
            let options = [MANY, &format!("ForceCommand {}", path.display()), &format!("Banner {}", banner.display())];
            scripted.push((host, SshServer::start(&session(&with_genv), &options)?));
        }
        // A genv that somebody installed for all would be found there.
        let bare = folder.path().join("bare");
        fs::create_dir(&bare)?;
        let mut no_genv = peer.command("sh");
        no_genv.env("PATH", format!("{}:{system}", peer.folder().join("bin").display()));
        let other = vec![
            (OTHER_KEY, SshServer::start(&session(&with_genv), &[MANY])?),
            (GENV_1, SshServer::start(&peer.command("sh"), &[MANY])?),
            (NO_GENV, SshServer::start(&no_genv, &[MANY])?),
            (NOTHING, SshServer::start(&session(&format!("{}:{system}", bare.display())), &[MANY])?),
        ];
        let full = full_listener()?;
        let ports = vec![(REFUSES, free_port()?), (DROPS, full.0.local_addr()?.port())];
        let in_trouble = scripted.len() + other.len() + ports.len();
        let well = (1..=HOSTS - in_trouble).map(|number| {
            let server = SshServer::start(&session(&with_genv), &[])?;
            Ok((format!("gpu{number:02}"), server))
        });
        let fleet = Self {
            client: SshClient::configured("", "")?,
            well: well.collect::<Result<_>>()?,
            folder,
            scripted,
            other,
            _full: full,
            _peer: peer,
            _simulation: simulation,
            ports,
        };
        fleet.configure(false)?;
        Ok(fleet)
    }

    /// All in their order: those in trouble stand between those that are well.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.special().map(str::to_owned).collect();
        names.extend(self.well());
        names.sort_by_key(|name| name.len() % 5);
        names
    }

    pub(crate) fn well(&self) -> Vec<String> {
        self.well.iter().map(|(name, _)| name.clone()).collect()
    }

    fn special(&self) -> impl Iterator<Item = &'static str> {
        let servers = self.scripted.iter().chain(&self.other);
        let servers = servers.map(|(name, _)| *name);
        servers.chain(self.ports.iter().map(|(name, _)| *name))
    }

    /// Ends each trouble's cause, but for the ways in which two hosts are read.
    pub(crate) fn heal(&self) -> Result<()> {
        for (host, _) in &self.scripted {
            write_script(&self.folder.path().join(host), &format!("#!/bin/sh\n{AS_ASKED}\n"))?;
        }
        self.configure(true)
    }

    /// Writes what `ssh` here knows of the hosts.
    fn configure(&self, healed: bool) -> Result<()> {
        let mut configuration = String::new();
        let mut known_hosts = String::new();
        let mut host = |name: &str, port: u16, identity: &Path| {
            configuration.push_str(&format!("Host {name}\n  Port {port}\n  IdentityFile {}\n", identity.display()));
        };
        // Where those are from now on that only another server heals.
        let (_, well) = self.well.first().context("no host is well")?;
        for (name, server) in &self.well {
            host(name, server.port(), &server.identity());
            known_hosts.push_str(&server.known_hosts_line()?);
        }
        for (name, server) in self.scripted.iter().chain(&self.other) {
            let moved = healed && *name == NOTHING;
            let at = if moved { well } else { server };
            host(name, at.port(), &at.identity());
            let mut line = server.known_hosts_line()?;
            if *name == OTHER_KEY && !healed {
                let key = well.known_hosts_line()?;
                let (_, key) = key.split_once(' ').context("no key")?;
                line = format!("[127.0.0.1]:{} {key}", server.port());
            }
            known_hosts.push_str(&line);
        }
        for (name, port) in &self.ports {
            let port = if healed { well.port() } else { *port };
            host(name, port, &well.identity());
        }
        configuration.push_str(&format!(
            "Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n  HostName 127.0.0.1\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n",
            self.client.known_hosts().display()
        ));
        replace(&self.client.known_hosts(), &known_hosts)?;
        replace(&self.client.configuration(), &configuration)
    }

    pub(crate) fn host_file(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    pub(crate) fn exporter(&self, interval: Duration) -> Result<Exporter> {
        replace(&self.host_file(), &self.names().join("\n"))?;
        let path = std::env::var("PATH")?;
        Setup::new()?
            .env("PATH", format!("{}:{path}", self.client.bin().display()))
            .flag(&format!("--interval={}ms", interval.as_millis()))
            .flag(&format!("--hostfile={}", self.host_file().display()))
            .flag(&format!("--ssh.connect-timeout={}s", CONNECT_TIMEOUT.as_secs()))
            .start()
    }
}

/// What the sessions of hosts in trouble run.
fn scripts() -> [(&'static str, String); 3] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let behind = now.unwrap_or_default().as_secs().saturating_sub(3 * 3600);
    [
        // sshd's own process of the session is killed after one to two seconds.
        (CLOSES, format!("(sleep 1.$(($$ % 10)); kill -9 $PPID) & {AS_ASKED}")),
        (FLOOD, format!("printf '%s\\n' '{HELLO}'; head -c 100000000 /dev/zero | tr '\\0' x; cat")),
        (
            TALKS,
            format!(
                "echo 'Welcome to the lab'; echo 'Quota: {{}}'; printf 'last login: today> '; \
                 {AS_ASKED} | sed -u -E 's/(\"timestamp_seconds\":)[0-9]+/\\1{behind}/g'"
            ),
        ),
    ]
}

/// Writes a file that others read meanwhile.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, path)?)
}

/// A port at which further connections are dropped without a word: its queue of one is full.
fn full_listener() -> Result<(TcpListener, TcpStream)> {
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&listener, &"127.0.0.1:0".parse::<std::net::SocketAddr>()?)?;
    listen(&listener, 0)?;
    let listener = TcpListener::from(listener);
    let first = TcpStream::connect(listener.local_addr()?)?;
    Ok((listener, first))
}
