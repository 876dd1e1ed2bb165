//! The file behind `--web.config.file`.

use std::path::{Path, PathBuf};

/// The TLS and sign-in of a [`Server`](crate::Server), from a file in the format of Prometheus' exporter-toolkit.
#[derive(Debug)]
pub struct WebConfig {}

/// Why a file is no [`WebConfig`].
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: web configuration files are not read yet. Leave --web.config.file out", path.display())]
pub struct WebConfigError {
    path: PathBuf,
}

impl WebConfig {
    /// Reads and checks a file, and the certificates that it names.
    pub fn open(path: &Path) -> Result<Self, WebConfigError> {
        Err(WebConfigError {
            path: path.to_owned(),
        })
    }
}
