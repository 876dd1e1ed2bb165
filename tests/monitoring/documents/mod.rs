//! What documents say of names, codes, commands and each other is so.

mod codes;
mod commands;
mod links;
mod metrics;
mod names;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A path of the repository.
fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(relative)
}

/// A text of the repository.
fn read(relative: &str) -> Result<String> {
    fs::read_to_string(path(relative)).with_context(|| relative.to_owned())
}

/// A chapter of a page: from its heading to the next of the same depth.
fn chapter<'a>(page: &'a str, heading: &str) -> Result<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).with_context(|| format!("no chapter '{heading}'"))?;
    Ok(rest.split("\n## ").next().unwrap_or(rest))
}

/// The rows of the tables in a text, without heads: the cells of each.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let is_row = |line: &&str| line.starts_with("| ") || line.starts_with("|-");
    let lines: Vec<_> = text.lines().collect();
    let heads: Vec<_> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with("|-"))
        .flat_map(|(at, _)| [at.saturating_sub(1), at])
        .collect();
    let rows = lines.into_iter().enumerate();
    rows.filter(move |(at, line)| is_row(line) && !heads.contains(at))
        .map(|(_, line)| line.trim_matches('|').split('|').map(str::trim).collect())
}
