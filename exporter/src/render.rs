//! The bytes that are served: rendered once per publication, then shared by every request.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use genv_core::model::{HostSnapshot, Publication, Snapshot};
use genv_core::stream::{Ended, SnapshotStream};
use genv_web::HealthLog;
use genv_web::metrics::{OwnProcess, Text, append, exposition};
use tokio::sync::watch;

use crate::Usernames;
use crate::families::{self, Family, Limits, genv1, own};

/// Everything that can be served of one publication.
#[derive(Debug)]
pub struct Rendering {
    publication: Arc<Publication>,
    limits: Limits,
    at: Instant,
    metrics: Text,
    genv1: OnceLock<Text>,
    snapshots: OnceLock<Text>,
    hosts: Vec<HostRendering>,
}

/// What is rendered of one host only when it is asked for.
#[derive(Debug, Default)]
struct HostRendering {
    metrics: OnceLock<Text>,
    snapshot: OnceLock<Text>,
}

/// Why there is nothing to serve of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoText {
    /// No host has this name.
    UnknownHost,
    /// The host delivers nothing now, or has not delivered anything yet.
    HostDown,
}

impl Rendering {
    /// Renders what is scraped; the rest follows when it is asked for.
    #[must_use]
    pub fn new(publication: Arc<Publication>, limits: Limits, own: &OwnProcess) -> Self {
        let families = own::of_process(own).chain(families::of_hosts(&publication.hosts, limits));
        let metrics = Text::new(exposition(families));
        let hosts = publication
            .hosts
            .iter()
            .map(|_| HostRendering::default())
            .collect();
        Self {
            publication,
            limits,
            at: Instant::now(),
            metrics,
            genv1: OnceLock::new(),
            snapshots: OnceLock::new(),
            hosts,
        }
    }

    /// Whether this is of a publication, and not from before the first.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.publication.sequence > 0
    }

    /// What it is a rendering of.
    #[must_use]
    pub fn publication(&self) -> &Publication {
        &self.publication
    }

    /// How long ago it was rendered.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Metrics of the exporter and of all hosts.
    #[must_use]
    pub fn metrics(&self) -> &Text {
        &self.metrics
    }

    /// Metrics of one host alone.
    ///
    /// # Errors
    /// There is no such host, or it is down.
    pub fn host_metrics(&self, hostname: &str) -> Result<&Text, NoText> {
        let (host, rendering) = self.host(hostname)?;
        if !host.up {
            return Err(NoText::HostDown);
        }
        Ok(rendering
            .metrics
            .get_or_init(|| Text::new(exposition(families::of_hosts([host], self.limits)))))
    }

    /// The metrics of genv 1.4.3.
    #[must_use]
    pub fn genv1(&self) -> &Text {
        self.genv1.get_or_init(|| {
            let mut text = String::new();
            for (family, samples) in genv1::of_hosts(&self.publication.hosts) {
                match samples {
                    Some(samples) => append(&mut text, samples),
                    // All of them are gauges.
                    None => {
                        let Family { name, help, .. } = family;
                        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
                    }
                }
            }
            Text::new(text)
        })
    }

    /// The names of the hosts.
    pub fn hostnames(&self) -> impl ExactSizeIterator<Item = &str> {
        self.publication
            .hosts
            .iter()
            .map(|host| host.hostname.as_str())
    }

    /// The names of the hosts that are reached over SSH.
    pub fn remote_hostnames(&self) -> impl Iterator<Item = &str> {
        let hosts = self.publication.hosts.iter();
        let remote = hosts.filter(|host| host.ssh.is_some());
        remote.map(|host| host.hostname.as_str())
    }

    /// The snapshots of all hosts that have one, a line of JSON each.
    #[must_use]
    pub fn snapshots(&self) -> &Text {
        self.snapshots.get_or_init(|| {
            let snapshots = self
                .publication
                .hosts
                .iter()
                .filter_map(|host| host.snapshot.as_deref());
            Text::new(snapshots.map(json_line).collect::<String>())
        })
    }

    /// The snapshot of one host as a line of JSON.
    ///
    /// # Errors
    /// There is no such host, or it has no snapshot.
    pub fn host_snapshot(&self, hostname: &str) -> Result<&Text, NoText> {
        let (host, rendering) = self.host(hostname)?;
        let snapshot = host.snapshot.as_deref().ok_or(NoText::HostDown)?;
        Ok(rendering
            .snapshot
            .get_or_init(|| Text::new(json_line(snapshot))))
    }

    fn host(&self, hostname: &str) -> Result<(&HostSnapshot, &HostRendering), NoText> {
        let mut hosts = self.publication.hosts.iter().zip(&self.hosts);
        hosts
            .find(|(host, _)| host.hostname == hostname)
            .ok_or(NoText::UnknownHost)
    }
}

fn json_line(snapshot: &Snapshot) -> String {
    let mut line = serde_json::to_string(snapshot).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot write a snapshot as JSON");
        "null".to_owned()
    });
    line.push('\n');
    line
}

/// Holds the rendering of the latest publication.
#[derive(Debug)]
pub struct Renderer {
    limits: Limits,
    usernames: Usernames,
    latest: watch::Sender<Arc<Rendering>>,
}

impl Renderer {
    /// A renderer of publications whose sources on this machine had `usernames` applied, and where its latest rendering is found: at
    /// first that of no publication.
    #[must_use]
    pub fn new(limits: Limits, usernames: Usernames) -> (Self, watch::Receiver<Arc<Rendering>>) {
        let nothing = Rendering::new(Arc::default(), limits, &OwnProcess::read());
        let (latest, receiver) = watch::channel(Arc::new(nothing));
        let this = Self {
            limits,
            usernames,
            latest,
        };
        (this, receiver)
    }

    /// Renders a publication and replaces the one before.
    pub fn render(&self, publication: Arc<Publication>) {
        let publication = self.usernames.shown(publication);
        let rendering = Rendering::new(publication, self.limits, &OwnProcess::read());
        self.latest.send_replace(Arc::new(rendering));
    }

    /// Renders every publication and logs what fails, away from the threads that answer requests. Returns when the collection ended.
    pub async fn follow(self, mut stream: SnapshotStream) -> Ended {
        let this = Arc::new(self);
        let mut health = HealthLog::default();
        loop {
            let publication = match stream.next().await {
                Ok(publication) => publication,
                Err(ended) => return ended,
            };
            health.note(&publication);
            let renderer = Arc::clone(&this);
            let rendered = tokio::task::spawn_blocking(move || renderer.render(publication)).await;
            if let Err(error) = rendered {
                tracing::error!(%error, "cannot render a publication; the one before is served");
            }
        }
    }
}
