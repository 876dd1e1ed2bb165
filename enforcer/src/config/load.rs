//! Reading a configuration.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use genv_core::model::system_time_zone;
use genv_core::yaml;
use jiff::tz::TimeZone;
use sha2::{Digest as _, Sha256};

use super::{Config, format, resolve};

/// Nobody writes more than this by hand, and no ConfigMap holds it.
const LARGEST_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads a configuration from its text; `source_name` is what errors call it.
    ///
    /// # Errors
    /// It is not YAML, has an unknown key, a wrong type or a value that cannot be, or is larger than 1 MiB.
    pub fn parse(source_name: &str, text: &str) -> Result<Self, yaml::Error> {
        Self::of_machine(source_name, text, system_time_zone())
    }

    /// The same, of a machine whose time zone counts where the text names none.
    pub fn of_machine(source_name: &str, text: &str, timezone: TimeZone) -> Result<Self, yaml::Error> {
        resolve::config(source_name, text, &file(source_name, text)?, timezone)
    }

    /// Takes a configuration that stands within another file; `text` is all of that file.
    pub fn within(source_name: &str, text: &str, written: &WrittenConfig) -> Result<Self, yaml::Error> {
        resolve::config(source_name, text, &written.0, system_time_zone())
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// As [`Config::parse`]; and it cannot be read, is no file, or is not UTF-8.
    pub fn load(path: &Path) -> Result<Self, yaml::Error> {
        let source_name = path.display().to_string();
        Self::parse(&source_name, &read(path)?)
    }
}

/// A configuration as it is written, for files that have one in them: see [`Config::within`].
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub struct WrittenConfig(format::ConfigFile);

/// The configuration as it is written, unchecked.
pub(super) fn file(source_name: &str, text: &str) -> Result<format::ConfigFile, yaml::Error> {
    if text.len() as u64 > LARGEST_BYTES {
        return Err(too_large(source_name));
    }
    yaml::parse(source_name, text)
}

/// The text of a configuration file. Symbolic links are followed, as those of a ConfigMap must be.
///
/// # Errors
/// It cannot be read, is no file (a pipe could keep the reader waiting), is larger than 1 MiB, or is not UTF-8.
pub fn read(path: &Path) -> Result<String, yaml::Error> {
    let source_name = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        yaml::Error::whole(&source_name, format!("cannot read it: {error}; name a file that this user can read"))
    };
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(yaml::Error::whole(&source_name, "cannot read it: it is not a regular file; name one"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(LARGEST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST_BYTES {
        return Err(too_large(&source_name));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        yaml::Error::whole(&source_name, format!("line {line} is not UTF-8: save the file in that encoding"))
    })
}

fn too_large(source_name: &str) -> yaml::Error {
    yaml::Error::whole(
        source_name,
        "the configuration is larger than 1 MiB, far beyond any that was meant: name the right file",
    )
}

/// SHA-256 in hexadecimal.
pub(super) fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
