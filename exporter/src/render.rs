//! The served bytes: rendered once per publication at the first request, and shared by all requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use genv_core::lab::{self, UserTotals};
use genv_core::model::{HostSnapshot, Publication, Snapshot};
use genv_core::stream::{Ended, SnapshotStream};
use genv_web::metrics::{self, GzipPieces, LazyText, MetricFamily, OwnProcess, Samples, TextSink};
use genv_web::{Encoding, HealthLog};
use tokio::sync::watch;

use crate::Usernames;
use crate::families::{self, Limits, genv1, own};
use crate::host::PublishedHost;
use crate::instruments::Instruments;
use crate::page::Site;

/// Hosts that have common pieces of the compressed page: enough text to compress, and few samples to make again when one host
/// alone has changed. The page of no more hosts than that is compressed as one text: its few pieces would cost more than they
/// save.
const HOSTS_PER_PIECE: usize = 16;

/// The served texts of one publication.
#[derive(Debug)]
pub struct Rendering {
    publication: Arc<Publication>,
    limits: Limits,
    own: OwnState,
    at: Instant,
    /// The pieces of the last compressed page. They keep its memory, also while nobody asks for gzip.
    pieces: Arc<Mutex<GzipPieces>>,
    metrics: LazyText,
    genv1: LazyText,
    snapshots: LazyText,
    hosts: Vec<HostRendering>,
    overview: LazyText,
    /// Made at the first request for the page of a user.
    users: OnceLock<BTreeMap<String, UserRendering>>,
}

/// The state of the exporter itself when it rendered.
#[derive(Debug, Default)]
pub struct OwnState {
    /// The process, by the kernel.
    pub process: OwnProcess,
    /// The metrics of [`Instruments`] in the text format.
    pub instruments: String,
}

/// The served texts of one host.
#[derive(Debug, Default)]
struct HostRendering {
    metrics: LazyText,
    snapshot: LazyText,
    page: LazyText,
}

/// The served text of one user.
#[derive(Debug)]
struct UserRendering {
    totals: UserTotals,
    page: LazyText,
}

/// The reason why a host has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No host has this name.
    UnknownHost,
    /// The host delivers no snapshot now, or has not delivered one yet.
    HostDown,
}

impl Rendering {
    /// A rendering without texts: they are made on request. It reuses and replaces `pieces`, those of
    /// the last compressed page.
    pub fn new(publication: Arc<Publication>, limits: Limits, own: OwnState, pieces: Arc<Mutex<GzipPieces>>) -> Self {
        let hosts = publication.hosts.iter();
        let hosts = hosts.map(|_| HostRendering::default()).collect();
        Self {
            publication,
            limits,
            own,
            at: Instant::now(),
            pieces,
            metrics: LazyText::default(),
            genv1: LazyText::default(),
            snapshots: LazyText::default(),
            hosts,
            overview: LazyText::default(),
            users: OnceLock::new(),
        }
    }

    /// Whether there is a publication; at the start there is none.
    pub fn is_published(&self) -> bool {
        self.publication.sequence > 0
    }

    /// The rendered publication.
    pub fn publication(&self) -> &Publication {
        &self.publication
    }

    /// How long ago it was published.
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Metrics of the exporter and of all hosts.
    pub fn metrics(&self, encoding: Encoding) -> Bytes {
        self.metrics.made(encoding, || self.encoded(encoding, 0, &mut Samples::default()))
    }

    /// Renders in advance in the encodings that were requested of the previous rendering.
    fn prepare(&self, before: &Self, samples: &mut Samples) {
        self.metrics.prepare(&before.metrics, |encoding, bytes| self.encoded(encoding, bytes, samples));
    }

    fn encoded(&self, encoding: Encoding, expected_bytes: usize, samples: &mut Samples) -> Bytes {
        let hosts = &self.publication.hosts;
        if encoding == Encoding::Plain || hosts.len() <= HOSTS_PER_PIECE {
            return metrics::encode(encoding, expected_bytes, |out| self.write(samples, out));
        }
        let mut process = String::new();
        own::of_process(&self.own.process, samples, |family| process.push_str(family.text()));
        let families: Vec<_> = families::all().collect();
        let groups = hosts.chunks(HOSTS_PER_PIECE);
        let groups = groups.map(|hosts| hosts.iter().map(|host| PublishedHost::new(host, self.limits)).collect());
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.page(samples, &process, &families, groups, families::add_of_host, &self.own.instruments)
    }

    fn write(&self, samples: &mut Samples, out: TextSink<'_>) {
        let mut each = |family: &MetricFamily| out(family.text().as_bytes());
        own::of_process(&self.own.process, samples, &mut each);
        families::of_hosts(&self.publication.hosts, self.limits, samples, each);
        out(self.own.instruments.as_bytes());
    }

    /// Metrics of one host alone.
    ///
    /// # Errors
    /// There is no such host, or it is down.
    pub fn host_metrics(&self, hostname: &str, encoding: Encoding) -> Result<Bytes, Unavailable> {
        let (host, rendering) = self.host(hostname)?;
        if !host.up {
            return Err(Unavailable::HostDown);
        }
        Ok(rendering.metrics.encoded(encoding, |out| {
            families::of_hosts([host], self.limits, &mut Samples::default(), |family| {
                out(family.text().as_bytes());
            });
        }))
    }

    /// The metrics of genv 1.4.3.
    pub fn genv1(&self, encoding: Encoding) -> Bytes {
        self.genv1.encoded(encoding, |out| {
            genv1::of_hosts(&self.publication.hosts, |family| {
                out(family.text().as_bytes());
            });
        })
    }

    /// The names of the hosts.
    pub fn hostnames(&self) -> impl ExactSizeIterator<Item = &str> {
        self.publication.hosts.iter().map(|host| host.hostname.as_str())
    }

    /// The names of the hosts that are reached over SSH.
    pub fn remote_hostnames(&self) -> impl Iterator<Item = &str> {
        let hosts = self.publication.hosts.iter();
        let remote = hosts.filter(|host| host.ssh.is_some());
        remote.map(|host| host.hostname.as_str())
    }

    /// The snapshots of all hosts that have one, a line of JSON each.
    pub fn snapshots(&self, encoding: Encoding) -> Bytes {
        self.snapshots.encoded(encoding, |out| {
            let hosts = self.publication.hosts.iter();
            let snapshots = hosts.filter_map(|host| host.snapshot.as_deref());
            snapshots.for_each(|snapshot| out(json_line(snapshot).as_bytes()));
        })
    }

    /// The snapshot of one host as a line of JSON.
    ///
    /// # Errors
    /// There is no such host, or it has no snapshot.
    pub fn host_snapshot(&self, hostname: &str, encoding: Encoding) -> Result<Bytes, Unavailable> {
        let (host, rendering) = self.host(hostname)?;
        let snapshot = host.snapshot.as_deref().ok_or(Unavailable::HostDown)?;
        Ok(rendering.snapshot.encoded(encoding, |out| {
            out(json_line(snapshot).as_bytes());
        }))
    }

    /// The page of all hosts.
    pub fn overview(&self, site: &Site, encoding: Encoding) -> Bytes {
        self.overview.encoded(encoding, |out| out(site.overview(&self.publication).as_bytes()))
    }

    /// The page of one host, also of one that is down.
    ///
    /// # Errors
    /// There is no such host: the page that says so.
    pub fn host_page(&self, hostname: &str, site: &Site, encoding: Encoding) -> Result<Bytes, String> {
        match self.host(hostname) {
            Ok((host, rendering)) => {
                let write = |out: TextSink<'_>| out(site.host(&self.publication, host).as_bytes());
                Ok(rendering.page.encoded(encoding, write))
            }
            Err(_) => Err(site.no_host(&self.publication, hostname)),
        }
    }

    /// The page of one user.
    ///
    /// # Errors
    /// Nothing of such a user is known: the page that says so.
    pub fn user_page(&self, username: &str, site: &Site, encoding: Encoding) -> Result<Bytes, String> {
        let users = self.users.get_or_init(|| {
            let users = lab::users(&self.publication.hosts).into_iter();
            let page =
                |(name, totals): (&str, _)| (name.to_owned(), UserRendering { totals, page: LazyText::default() });
            users.map(page).collect()
        });
        let Some(UserRendering { totals, page }) = users.get(username) else {
            return Err(site.no_user(&self.publication, username, users));
        };
        let write = |out: TextSink<'_>| out(site.user(&self.publication, username, totals).as_bytes());
        Ok(page.encoded(encoding, write))
    }

    fn host(&self, hostname: &str) -> Result<(&HostSnapshot, &HostRendering), Unavailable> {
        let mut hosts = self.publication.hosts.iter().zip(&self.hosts);
        hosts.find(|(host, _)| host.hostname == hostname).ok_or(Unavailable::UnknownHost)
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

fn own(instruments: &Instruments) -> OwnState {
    OwnState { process: OwnProcess::read(), instruments: instruments.text() }
}

/// Renders publications and publishes the latest rendering.
#[derive(Debug)]
pub struct Renderer {
    limits: Limits,
    usernames: Usernames,
    instruments: Instruments,
    /// Reused memory.
    samples: Mutex<Samples>,
    latest: watch::Sender<Arc<Rendering>>,
}

impl Renderer {
    /// A renderer, and the receiver of its latest rendering, which is at first without a publication. The sources on this
    /// machine must have `usernames` applied.
    pub fn new(
        limits: Limits,
        usernames: Usernames,
        instruments: Instruments,
    ) -> (Self, watch::Receiver<Arc<Rendering>>) {
        let nothing = Rendering::new(Arc::default(), limits, own(&instruments), Arc::default());
        let (latest, receiver) = watch::channel(Arc::new(nothing));
        let this = Self { limits, usernames, instruments, samples: Mutex::default(), latest };
        (this, receiver)
    }

    /// Renders a publication as the latest one.
    pub fn render(&self, publication: Arc<Publication>) {
        let publication = self.usernames.shown(publication);
        let before = Arc::clone(&self.latest.borrow());
        self.instruments.collected(&before.publication, &publication);
        let began = Instant::now();
        let pieces = Arc::clone(&before.pieces);
        let rendering = Rendering::new(publication, self.limits, own(&self.instruments), pieces);
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        rendering.prepare(&before, &mut samples);
        self.instruments.rendered(began.elapsed());
        self.latest.send_replace(Arc::new(rendering));
    }

    /// Renders every publication and logs failures, outside of the threads that answer requests. Returns when the
    /// collection has ended.
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
                tracing::error!(%error, "cannot render a publication; the previous one is served");
            }
        }
    }
}
