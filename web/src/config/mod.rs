//! The file behind `--web.config.file`, in the format of Prometheus'
//! [exporter-toolkit](https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md).
//!
//! It is re-read as that toolkit does: a changed file counts from the next request (users, headers, rate limit) and the
//! next connection (TLS), and so does a changed certificate. While the file is broken every request is answered
//! 500, and while it or a certificate is broken no new TLS connection succeeds, instead of the last good state being
//! kept: who edits this file may be locking somebody out. Whether TLS is spoken at all is settled at the start.
//!
//! Beyond the toolkit, a file that has not changed costs one `stat` a request, `rate_limit` is re-read as well,
//! and what nobody can mean is refused: a certificate or authority given twice, TLS settings without a
//! certificate, verified client certificates without an authority (Go would take the system's).
//! HTTP/1.1 is all that is spoken: `http2: true`, the toolkit's default, changes nothing. Versions below TLS 1.2,
//! and the curves and cipher suites that rustls lacks, are left out with a warning, as long as something remains.
//! A client's certificate must not be an authority itself (`CA:TRUE`, as `openssl req -x509` makes them): rustls takes
//! none such. Why a handshake failed is logged once a minute, and beyond that at level debug, for anybody can make one fail.

mod client_certificates;
mod file;
mod negotiation;
mod tls;
mod watched;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use genv_core::yaml;
use hyper::header::HeaderMap;
use tokio_rustls::rustls::ServerConfig;

use crate::basic_auth::Users;
use crate::rate_limit::RateLimiter;
use file::{File, RateLimit};
use tls::Tls;
use watched::Watched;

/// The TLS and sign-in of a [`Server`](crate::Server), from a file in the format of Prometheus' exporter-toolkit.
#[derive(Debug)]
pub struct WebConfig {
    speaks_tls: bool,
    state: Mutex<State>,
}

/// Why a file is no [`WebConfig`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum WebConfigError {
    /// The file cannot be read.
    #[error("cannot read the web configuration file {}: {why}. Name a readable one with --web.config.file, \
             or leave the flag out", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The file is not what it should be.
    #[error(
        "cannot use the web configuration file {0}\nIts format: \
             https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md"
    )]
    Malformed(String),
    /// A certificate, a key or an authority cannot be used.
    #[error("cannot speak TLS as {} asks: {why}. Correct the file, or what it names", path.display())]
    Unusable {
        /// The configuration file.
        path: PathBuf,
        /// Which key of it, and what is wrong.
        why: String,
    },
}

/// What a file says, apart from TLS, as requests need it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) users: Users,
    pub(crate) headers: HeaderMap,
    pub(crate) rate_limiter: Option<RateLimiter>,
}

#[derive(Debug)]
struct State {
    file: Watched,
    /// As of the last change; an error was logged then.
    settings: Option<Arc<Settings>>,
    tls: Option<Tls>,
    tls_files: Vec<Watched>,
    /// As of the last change of the file or one it names; an error was logged then.
    server_config: Option<Arc<ServerConfig>>,
}

impl WebConfig {
    /// Reads and checks a file and those it names. Paths in it are relative to its folder.
    pub fn open(path: &Path) -> Result<Self, WebConfigError> {
        let mut state = State {
            file: Watched::new(path.to_owned()),
            settings: None,
            tls: None,
            tls_files: Vec::new(),
            server_config: None,
        };
        state.refresh_file()?;
        state.refresh_tls()?;
        Ok(Self { speaks_tls: state.tls.is_some(), state: Mutex::new(state) })
    }

    /// Whether connections begin with a TLS handshake.
    pub fn speaks_tls(&self) -> bool {
        self.speaks_tls
    }

    /// What the file says now. `None`: it is broken.
    pub(crate) fn settings(&self) -> Option<Arc<Settings>> {
        let mut state = self.state();
        log(state.refresh_file());
        state.settings.clone()
    }

    /// How to shake hands now. `None`: the file, or one it names, is broken, or it asks for TLS no longer.
    pub(crate) fn server_config(&self) -> Option<Arc<ServerConfig>> {
        let mut state = self.state();
        log(state.refresh_file());
        log(state.refresh_tls());
        state.server_config.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Refreshing sets everything to "broken" before it begins.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(result: Result<(), WebConfigError>) {
    if let Err(error) = result {
        tracing::error!(error = error.to_string().lines().next(), "the web configuration is broken");
    }
}

impl State {
    /// Fails once for each change for the worse.
    fn refresh_file(&mut self) -> Result<(), WebConfigError> {
        let Some(bytes) = self.file.changed() else {
            return Ok(());
        };
        (self.settings, self.tls, self.server_config) = (None, None, None);
        self.tls_files.clear();
        let mut notes = Vec::new();
        let (settings, tls) = read(self.file.path(), bytes, &mut notes)?;
        for note in notes {
            tracing::warn!(path = %self.file.path().display(), note, "web configuration");
        }
        self.settings = Some(Arc::new(settings));
        self.tls_files = tls.iter().flat_map(Tls::files).map(Watched::new).collect();
        self.tls = tls;
        if let Some(tls) = &self.tls
            && self.tls_files.is_empty()
        {
            let loaded = tls.load();
            self.server_config = Some(loaded.map_err(|why| self.unusable(why))?);
        }
        Ok(())
    }

    /// Fails once for each change for the worse.
    fn refresh_tls(&mut self) -> Result<(), WebConfigError> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        // Every one of them has to be looked at.
        let changes = self.tls_files.iter_mut().filter_map(Watched::changed).count();
        if changes > 0 {
            self.server_config = None;
            let loaded = tls.load();
            self.server_config = Some(loaded.map_err(|why| self.unusable(why))?);
        }
        Ok(())
    }

    fn unusable(&self, why: String) -> WebConfigError {
        WebConfigError::Unusable { path: self.file.path().to_owned(), why }
    }
}

fn read(
    path: &Path,
    bytes: io::Result<Vec<u8>>,
    notes: &mut Vec<String>,
) -> Result<(Settings, Option<Tls>), WebConfigError> {
    let bytes = bytes.map_err(|error| WebConfigError::Unreadable { path: path.to_owned(), why: error.to_string() })?;
    let name = path.to_string_lossy();
    let whole = |message| WebConfigError::Malformed(yaml::Error::whole(&name, message).to_string());
    let text = String::from_utf8(bytes).map_err(|_| whole("it is not UTF-8".to_owned()))?;
    let file: Option<File> =
        yaml::parse(&name, &text).map_err(|error| WebConfigError::Malformed(without_values(&error.to_string())))?;
    let file = file.unwrap_or_default();
    let http = file.http_server_config.unwrap_or_default();
    if http.http2 == Some(true) {
        notes.push("http2 is not served; clients use HTTP/1.1".to_owned());
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let tls = file.tls_server_config.unwrap_or_default();
    let tls = Tls::new(tls, folder, notes).map_err(whole)?;
    let settings = Settings {
        users: file.basic_auth_users,
        headers: http.headers.unwrap_or_default().into_map(),
        rate_limiter: rate_limiter(file.rate_limit.as_ref()).map_err(whole)?,
    };
    Ok((settings, tls))
}

fn rate_limiter(config: Option<&RateLimit>) -> Result<Option<RateLimiter>, String> {
    match config {
        None => Ok(None),
        Some(config) if config.interval.is_zero() => Ok(None),
        Some(config) if config.burst == 0 => {
            Err("rate_limit with a burst of 0 would refuse every request; set burst to 1 or more".to_owned())
        }
        Some(config) => Ok(Some(RateLimiter::new(config.interval, config.burst))),
    }
}

/// An error whose snippet shows keys and no values: the lines around a mistake may hold a hash or a private key.
fn without_values(error: &str) -> String {
    let mut lines = error.lines();
    let mut shown = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        let (margin, content) = line.split_once("| ").unwrap_or(("", line));
        let is_mark = content.trim_start().chars().all(|c| c == '^');
        let content = match content.split_once(':') {
            _ if is_mark => content.to_owned(),
            Some((key, value)) if value.trim().is_empty() => format!("{key}:"),
            Some((key, _)) => format!("{key}: …"),
            None => "…".to_owned(),
        };
        shown += &format!("\n{margin}| {content}");
    }
    shown
}
