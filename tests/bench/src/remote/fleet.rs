//! Hosts that are none: an SSH server in this process, where each connection is a host with genv.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use genv_core::collect::once;
use genv_core::model::Snapshot;
use genv_core::sources::{GpuSourceKind, SourceOptions};
use genv_remote::protocol::{Answers, Hello, PROTOCOL_VERSION, Request, SnapshotReply, line};
use genv_tests::nvml_sim::Simulation;
use genv_tests::shell::installed;
use genv_tests::ssh::SshClient;
use russh::keys::load_secret_key;
use russh::server::{self, Auth, ChannelOpenHandle, Config, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{MissedTickBehavior, interval};

use super::scenario::{HOST_MARK, TIME_MARK, TIME_SECONDS, scenario};

/// Any number of hosts that tell what they are asked, in the time that it takes to encrypt it.
pub(crate) struct Fleet {
    /// Ends all of it.
    _runtime: Runtime,
    client: SshClient,
    snapshot_bytes: usize,
}

impl Fleet {
    /// Starts to listen. Each host has 8 devices, 100 environments and 200 processes.
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["host_key", "identity"] {
            let mut keygen = Command::new(installed("ssh-keygen"));
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]);
            let status = keygen
                .arg(folder.path().join(name))
                .stdin(Stdio::null())
                .status()?;
            ensure!(status.success(), "ssh-keygen ended with {status}");
        }
        let config = Arc::new(Config {
            keys: vec![load_secret_key(folder.path().join("host_key"), None)?],
            inactivity_timeout: None,
            nodelay: true,
            ..Config::default()
        });
        let template = Arc::new(Template::new(&snapshot()?)?);
        let snapshot_bytes = template.line(1).len();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(accept(listener, config, template));

        let key = fs::read_to_string(folder.path().join("host_key.pub"))?;
        let client = SshClient::configured(
            &format!("Host *\n  Port {port}\n  IdentityAgent none\n  IdentitiesOnly yes\n"),
            &format!("[127.0.0.1]:{port} {key}"),
        )?;
        // Where `ssh` itself would look for it: the client's folder lasts as long as the fleet.
        let identity = client.bin().join("identity");
        fs::copy(folder.path().join("identity"), &identity)?;
        let configuration = client.configuration();
        let mut text = fs::read_to_string(&configuration)?;
        text.push_str(&format!("  IdentityFile {}\n", identity.display()));
        fs::write(configuration, text)?;
        Ok(Self {
            _runtime: runtime,
            client,
            snapshot_bytes,
        })
    }

    /// An `ssh` that reaches a host of any name.
    pub(crate) const fn client(&self) -> &SshClient {
        &self.client
    }

    /// What a host sends each interval.
    pub(crate) const fn snapshot_bytes(&self) -> usize {
        self.snapshot_bytes
    }
}

/// A snapshot of the scenario, as a host takes it.
fn snapshot() -> Result<Snapshot> {
    let simulation = Simulation::new(&scenario()?);
    let sources = SourceOptions {
        gpu: GpuSourceKind::Simulated,
        scenario: Some(simulation.scenario()),
        ..SourceOptions::default()
    };
    let publication = once(sources.open()?, Duration::from_secs(10))?;
    let host = publication.hosts.first().context("no host")?;
    let mut snapshot = Snapshot::clone(host.snapshot.as_deref().context("no snapshot")?);
    ensure!(
        snapshot.devices.len() == super::scenario::DEVICES
            && snapshot.environments.len() == super::scenario::ENVIRONMENTS
            && snapshot.processes.len() == super::scenario::PROCESSES,
        "the scenario became another snapshot"
    );
    snapshot.timestamp_seconds = TIME_SECONDS;
    Ok(snapshot)
}

/// The line of a snapshot, cut where hosts and moments differ.
struct Template {
    before_time: String,
    after_time: Vec<String>,
}

impl Template {
    fn new(snapshot: &Snapshot) -> Result<Self> {
        let line = String::from_utf8(line(&SnapshotReply { snapshot })?)?;
        let Some((before, after)) = line.split_once(TIME_MARK) else {
            bail!("no {TIME_MARK} in {line}");
        };
        let after_time: Vec<String> = after.split(HOST_MARK).map(str::to_owned).collect();
        ensure!(after_time.len() > 1, "no {HOST_MARK} in {line}");
        Ok(Self {
            before_time: before.to_owned(),
            after_time,
        })
    }

    /// What a host says now.
    fn line(&self, host: usize) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let own = format!("{host}h");
        format!("{}{now:.3}{}", self.before_time, self.after_time.join(&own)).into_bytes()
    }
}

async fn accept(listener: TcpListener, config: Arc<Config>, template: Arc<Template>) {
    let hosts = AtomicUsize::new(0);
    while let Ok((stream, _)) = listener.accept().await {
        let host = Host {
            number: hosts.fetch_add(1, Ordering::Relaxed),
            template: Arc::clone(&template),
        };
        let config = Arc::clone(&config);
        tokio::spawn(async move {
            // Who asks may end the connection whenever it likes.
            if let Ok(session) = server::run_stream(config, stream, host).await {
                let _ = session.await;
            }
        });
    }
}

struct Host {
    number: usize,
    template: Arc<Template>,
}

impl server::Handler for Host {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let hello = Hello {
            genv_remote: PROTOCOL_VERSION,
            version: None,
            answers_with: Answers::Genv,
            may_enforce: false,
        };
        session.channel_success(channel)?;
        session.data(channel, line(&hello).unwrap_or_default())
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        for line in data.split(|byte| *byte == b'\n') {
            if let Ok(Request::Follow { interval_seconds }) = serde_json::from_slice(line) {
                let (handle, template, number) =
                    (session.handle(), Arc::clone(&self.template), self.number);
                tokio::spawn(async move {
                    let mut ticks = interval(Duration::from_secs_f64(interval_seconds));
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                    loop {
                        ticks.tick().await;
                        let line = Bytes::from(template.line(number));
                        if handle.data(channel, line).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
        Ok(())
    }
}
