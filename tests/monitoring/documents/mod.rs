//! Generated pages are what the programs tell, links between documents lead somewhere, and named tests exist.

mod commands;
mod links;
mod metrics;
mod promises;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub(crate) fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(relative)
}

pub(crate) fn read(relative: &str) -> Result<String> {
    fs::read_to_string(path(relative)).with_context(|| relative.to_owned())
}
