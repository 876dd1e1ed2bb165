//! The web configuration file (`--web.config.file`), in the format of Prometheus'
//! [exporter-toolkit](https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md).
//!
//! As in the toolkit, a changed file counts from the next request (users, headers, rate limit) and the next connection
//! (TLS), and so does a changed certificate. While the file is broken, every request is answered 500. While the file or
//! a certificate is broken, no new TLS connection succeeds. The last good state is not kept, since the edit may be
//! meant to lock a user out. Whether the server uses TLS is decided at the start.
//!
//! Differences from the toolkit:
//! - A file counts once it has settled ([`genv_core::files::Watched`]), at most 200 ms after it was closed.
//! - An unchanged file costs one `stat` a request, and `rate_limit` is re-read too.
//! - Certain mistakes are refused: a certificate or authority given twice, TLS settings without a certificate, verified
//!   client certificates without an authority (Go would take the system's).
//! - The server has only HTTP/1.1: `http2: true`, the toolkit's default, changes nothing.
//! - Versions below TLS 1.2, and curves and cipher suites that rustls lacks, are left out with a warning, as long as
//!   another one remains.
//! - A client's certificate must not be an authority (`CA:TRUE`, as `openssl req -x509` makes it): rustls refuses it.
//! - Any client can make a handshake fail, so only one failure a minute is logged above level debug.

mod client_certificates;
mod format;
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
use format::{RateLimit, WebConfigFile};
use tls::TlsSettings;
use watched::Watched;

/// The TLS and sign-in of a [`Server`](crate::Server), from a file in the format of Prometheus' exporter-toolkit.
#[derive(Debug)]
pub struct WebConfig {
    speaks_tls: bool,
    state: Mutex<ConfigState>,
}

/// A web configuration file cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WebConfigError {
    /// The file cannot be read.
    #[error("cannot read the web configuration file {}: {why}. Name a readable one with --web.config.file, \
             or leave the flag out", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        why: String,
    },
    /// The content of the file is not a web configuration.
    #[error(
        "cannot use the web configuration file {0}\nIts format: \
             https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md"
    )]
    Malformed(String),
    /// A certificate, a key or an authority cannot be used.
    #[error("cannot use the TLS settings of {}: {why}. Correct this file or the named one", path.display())]
    Unusable {
        /// The configuration file.
        path: PathBuf,
        /// The key, and its mistake.
        why: String,
    },
}

/// The settings of a file for requests: all but TLS.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) users: Users,
    pub(crate) headers: HeaderMap,
    pub(crate) rate_limiter: Option<RateLimiter>,
}

#[derive(Debug)]
struct ConfigState {
    file: Watched,
    /// `None` after a change to a broken file, whose error was logged.
    settings: Option<Arc<Settings>>,
    tls: Option<TlsSettings>,
    tls_files: Vec<Watched>,
    /// `None` after a change to a broken file or certificate, whose error was logged.
    server_config: Option<Arc<ServerConfig>>,
}

impl WebConfig {
    /// Reads and checks a file and the files that it names. Paths in it are relative to its folder.
    pub fn open(path: &Path) -> Result<Self, WebConfigError> {
        let mut state = ConfigState {
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

    /// The settings of the file now. `None`: the file is broken.
    pub(crate) fn settings(&self) -> Option<Arc<Settings>> {
        let mut state = self.state();
        log(state.refresh_file());
        state.settings.clone()
    }

    /// The TLS configuration now. `None`: the file or one that it names is broken, or the file no longer asks for TLS.
    pub(crate) fn server_config(&self) -> Option<Arc<ServerConfig>> {
        let mut state = self.state();
        log(state.refresh_file());
        log(state.refresh_tls());
        state.server_config.clone()
    }

    fn state(&self) -> MutexGuard<'_, ConfigState> {
        // A refresh sets everything to "broken" first, so a panic leaves no mixed state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(result: Result<(), WebConfigError>) {
    if let Err(error) = result {
        tracing::error!(error = error.to_string().lines().next(), "the web configuration is broken");
    }
}

impl ConfigState {
    /// Returns an error only at the change that causes it.
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
        self.tls_files = tls.iter().flat_map(TlsSettings::files).map(Watched::new).collect();
        self.tls = tls;
        if let Some(tls) = &self.tls
            && self.tls_files.is_empty()
        {
            let loaded = tls.load();
            self.server_config = Some(loaded.map_err(|why| self.unusable(why))?);
        }
        Ok(())
    }

    /// Returns an error only at the change that causes it.
    fn refresh_tls(&mut self) -> Result<(), WebConfigError> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        // `count` checks every file; `any` would stop at the first change.
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
) -> Result<(Settings, Option<TlsSettings>), WebConfigError> {
    let bytes = bytes.map_err(|error| WebConfigError::Unreadable { path: path.to_owned(), why: error.to_string() })?;
    let name = path.to_string_lossy();
    let malformed = |message| WebConfigError::Malformed(yaml::Error::whole(&name, message).to_string());
    let text = String::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8".to_owned()))?;
    let file: Option<WebConfigFile> =
        yaml::parse(&name, &text).map_err(|error| WebConfigError::Malformed(without_values(&error.to_string())))?;
    let file = file.unwrap_or_default();
    let http = file.http_server_config.unwrap_or_default();
    if http.http2 == Some(true) {
        notes.push("http2 is not served; clients use HTTP/1.1".to_owned());
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let tls = file.tls_server_config.unwrap_or_default();
    let tls = TlsSettings::new(tls, folder, notes).map_err(malformed)?;
    let settings = Settings {
        users: file.basic_auth_users,
        headers: http.headers.unwrap_or_default().into_map(),
        rate_limiter: rate_limiter(file.rate_limit.as_ref()).map_err(malformed)?,
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

/// The error with its snippet reduced to keys: the values around a mistake may be a hash or a private key.
fn without_values(error: &str) -> String {
    let mut lines = error.lines();
    let mut shown = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        let (margin, content) = line.split_once("| ").unwrap_or(("", line));
        let is_marker = content.trim_start().chars().all(|c| c == '^');
        let content = match content.split_once(':') {
            _ if is_marker => content.to_owned(),
            Some((key, value)) if value.trim().is_empty() => format!("{key}:"),
            Some((key, _)) => format!("{key}: …"),
            None => "…".to_owned(),
        };
        shown += &format!("\n{margin}| {content}");
    }
    shown
}
