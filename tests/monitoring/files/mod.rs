//! The files under `prometheus/`: accepted by the real tools, at work in the real programs, and complete.

mod complete;
mod pages;
pub(crate) mod running;
pub(crate) mod tools;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::documents::{path as shipped, read};

/// The files of a folder whose names end so, sorted.
fn files(folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(shipped(folder)).with_context(|| folder.to_owned())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    Ok(files)
}
