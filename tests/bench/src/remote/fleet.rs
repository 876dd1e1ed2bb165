//! Hosts that are none: an SSH server in this process, where each connection is a host with genv.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use genv_core::collect::{CollectOptions, spawn};
use genv_core::model::{Changes, Snapshot};
use genv_remote::protocol::{ChangesReply, Hello, HostProgram, PROTOCOL_VERSION, Request, SnapshotReply, line};
use genv_simulator::{GpuSourceKind, SourceOptions};
use genv_tests::nvml_sim::Simulation;
use genv_tests::ssh::{SshClient, new_key};
use russh::keys::load_secret_key;
use russh::server::{self, Auth, ChannelOpenHandle, Config, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{MissedTickBehavior, interval};

use super::scenario::{HOST_MARK, TIME_MARK, TIME_SECONDS, scenario};
use crate::load::{Change, DEVICES, ENVIRONMENTS, PROCESSES};

/// Moments that follow each other, over and over.
const MOMENTS: usize = 12;

/// How long the collection may take until all of it is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Any number of hosts that answer at once, but for the encryption.
pub(crate) struct Fleet {
    /// Ends all of it.
    _runtime: Runtime,
    client: SshClient,
    snapshot_bytes: usize,
    changes_bytes: usize,
}

impl Fleet {
    /// Starts to listen. Each host has 8 devices, 100 environments and 200 processes, and sends whole snapshots to
    /// whoever asks, as older ones do, or what changed.
    pub(crate) fn start(change: Change, sends: Sends) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["host_key", "identity"] {
            new_key(&folder.path().join(name), "ed25519", "")?;
        }
        let config = Arc::new(Config {
            keys: vec![load_secret_key(folder.path().join("host_key"), None)?],
            inactivity_timeout: None,
            nodelay: true,
            ..Config::default()
        });
        let script = Arc::new(Script::new(&moments(change)?, sends)?);
        let bytes = |templates: &[Template]| {
            let all: usize = templates.iter().map(|it| it.line(1).len()).sum();
            all / templates.len()
        };
        let snapshot_bytes = bytes(&script.whole);
        let changes_bytes = bytes(&script.changes);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(accept(listener, config, script));

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
        Ok(Self { _runtime: runtime, client, snapshot_bytes, changes_bytes })
    }

    /// An `ssh` that reaches a host of any name.
    pub(crate) const fn client(&self) -> &SshClient {
        &self.client
    }

    /// Length of a whole snapshot.
    pub(crate) const fn snapshot_bytes(&self) -> usize {
        self.snapshot_bytes
    }

    /// Length of what makes it into the next one.
    pub(crate) const fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }
}

/// The messages of hosts in each interval after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    Whole,
    Changes,
}

/// Snapshots of the scenario, one after the other, as a host takes them.
fn moments(change: Change) -> Result<Vec<Snapshot>> {
    let simulation = Simulation::new(&scenario(change)?);
    let sources = SourceOptions {
        gpu: GpuSourceKind::Simulated,
        scenario: Some(simulation.scenario()),
        ..SourceOptions::default()
    };
    let options = CollectOptions { interval: Duration::from_millis(100), ..CollectOptions::default() };
    let mut stream = spawn(sources.open()?, options)?;
    let deadline = Instant::now() + PATIENCE;
    let mut moments = Vec::new();
    while moments.len() < MOMENTS {
        ensure!(Instant::now() < deadline, "the scenario became another snapshot");
        let publication = stream.next_blocking()?;
        let host = publication.hosts.first().context("no host")?;
        let mut snapshot = Snapshot::clone(host.snapshot.as_deref().context("no snapshot")?);
        snapshot.timestamp_seconds = TIME_SECONDS;
        let counted = snapshot.counters.user_device_use.iter();
        if snapshot.devices.len() == DEVICES
            && snapshot.environments.len() == ENVIRONMENTS
            && snapshot.processes.len() == PROCESSES
            && counted.filter_map(|it| it.energy_joules).any(|joules| joules > 0.0)
        {
            use_memory(&mut snapshot, change, (moments.len() as u64) << 20);
            moments.push(snapshot);
        }
    }
    Ok(moments)
}

/// Adds memory to what the processes that change use, and their environments: whole percents of utilization, which drivers
/// tell, need not differ from moment to moment.
fn use_memory(snapshot: &mut Snapshot, change: Change, bytes: u64) {
    let mut eids = HashSet::new();
    for (number, process) in snapshot.processes.iter_mut().enumerate() {
        if change.is_of(number) {
            eids.extend(process.attribution.eid().map(str::to_owned));
            for used in &mut Arc::make_mut(process).devices {
                used.memory_used_bytes = used.memory_used_bytes.map(|it| it + bytes);
            }
        }
    }
    for environment in &mut snapshot.environments {
        if eids.contains(&environment.eid) {
            for used in &mut Arc::make_mut(environment).devices {
                used.memory_used_bytes = used.memory_used_bytes.map(|it| it + bytes);
            }
        }
    }
}

/// The messages of every host, without name and time.
struct Script {
    whole: Vec<Template>,
    /// The changes from each to the next one, and from the last to the first.
    changes: Vec<Template>,
    sends: Sends,
}

impl Script {
    fn new(moments: &[Snapshot], sends: Sends) -> Result<Self> {
        let whole = moments.iter().map(|snapshot| Template::new(line(&SnapshotReply { snapshot })?));
        let next = moments.iter().cycle().skip(1);
        let changes = moments.iter().zip(next).map(|(before, now)| {
            let changes = Changes::between(before, now);
            Template::new(line(&ChangesReply { changes })?)
        });
        Ok(Self { whole: whole.collect::<Result<_>>()?, changes: changes.collect::<Result<_>>()?, sends })
    }

    /// The line of a cycle.
    fn line(&self, host: usize, cycle: usize) -> Vec<u8> {
        let template = match self.sends {
            Sends::Changes if cycle > 0 => &self.changes[(cycle - 1) % self.changes.len()],
            _ => &self.whole[cycle % self.whole.len()],
        };
        template.line(host)
    }
}

/// A line, cut where hosts and moments differ.
struct Template {
    before_time: String,
    after_time: Vec<String>,
}

impl Template {
    fn new(line: Vec<u8>) -> Result<Self> {
        let line = String::from_utf8(line)?;
        let Some((before, after)) = line.split_once(TIME_MARK) else {
            bail!("no {TIME_MARK} in {line}");
        };
        let after_time: Vec<String> = after.split(HOST_MARK).map(str::to_owned).collect();
        ensure!(after_time.len() > 1, "no {HOST_MARK} in {line}");
        Ok(Self { before_time: before.to_owned(), after_time })
    }

    /// The current message of a host.
    fn line(&self, host: usize) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let own = format!("{host}h");
        format!("{}{now:.3}{}", self.before_time, self.after_time.join(&own)).into_bytes()
    }
}

async fn accept(listener: TcpListener, config: Arc<Config>, script: Arc<Script>) {
    let hosts = AtomicUsize::new(0);
    while let Ok((stream, _)) = listener.accept().await {
        let host = Host { number: hosts.fetch_add(1, Ordering::Relaxed), script: Arc::clone(&script) };
        let config = Arc::clone(&config);
        tokio::spawn(async move {
            // The client may end the connection at any time.
            if let Ok(session) = server::run_stream(config, stream, host).await {
                let _ = session.await;
            }
        });
    }
}

struct Host {
    number: usize,
    script: Arc<Script>,
}

impl server::Handler for Host {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _user: &str, _key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
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
        let hello =
            Hello { genv_remote: PROTOCOL_VERSION, version: None, answers_with: HostProgram::Genv, may_enforce: false };
        session.channel_success(channel)?;
        session.data(channel, line(&hello).unwrap_or_default())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        for line in data.split(|byte| *byte == b'\n') {
            if let Ok(Request::Follow { interval_seconds, .. }) = serde_json::from_slice(line) {
                let (handle, script, number) = (session.handle(), Arc::clone(&self.script), self.number);
                tokio::spawn(async move {
                    let mut ticks = interval(Duration::from_secs_f64(interval_seconds));
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                    for cycle in 0.. {
                        ticks.tick().await;
                        let line = Bytes::from(script.line(number, cycle));
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
