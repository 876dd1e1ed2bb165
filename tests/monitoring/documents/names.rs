//! Names of files and variables: the tables in `docs/files.md` against the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use crate::documents::{chapter, path, read, rows};

/// Crates of programs that people run.
const CRATES: [&str; 8] = ["core", "simulator", "web", "remote", "exporter", "enforcer", "genv-cli", "shims"];

/// Sources in which such names are fields of the journal, or are read when the program is built.
const OF_OTHER_KINDS: [&str; 3] = ["enforcer/src/journal.rs", "web/src/build.rs", "core/src/model/schema.rs"];

/// A source by its path, without its tests.
struct Source {
    path: String,
    text: String,
}

/// What the programs are made of: Rust and shell code.
fn sources() -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for name in CRATES {
        gather(&path(name).join("src"), &mut all)?;
    }
    ensure!(all.len() > 200, "only {} sources", all.len());
    Ok(all)
}

fn gather(folder: &Path, all: &mut Vec<Source>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if file.is_dir() {
            if !["tests", "snapshots", "fixtures"].contains(&&*name) {
                gather(&file, all)?;
            }
            continue;
        }
        let kind = file.extension().and_then(|kind| kind.to_str());
        if name == "tests.rs" || !matches!(kind, Some("rs" | "sh" | "fish")) {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let text = text.split("#[cfg(test)]\nmod tests {").next();
        let path = file.to_string_lossy().replace("/tests/../", "/");
        all.push(Source { path, text: text.unwrap_or_default().to_owned() });
    }
    Ok(())
}

/// Names in the first cells of tables.
fn documented(text: &str) -> Result<BTreeSet<String>> {
    let name = Regex::new("`([^`]+)`")?;
    let mut names = BTreeSet::new();
    for cells in rows(text) {
        names.extend(name.captures_iter(cells[0]).map(|found| found[1].to_owned()));
    }
    ensure!(!names.is_empty(), "no table");
    Ok(names)
}

#[test]
fn every_variable_that_is_read_or_set_is_documented_and_no_other() -> Result<()> {
    let page = read("docs/files.md")?;
    let documented = documented(chapter(&page, "Environment variables")?)?;
    let read = Regex::new(r#"\b(?:var_os|var|variable|number)\(\s*"([A-Z][A-Z_]+)"\s*\)"#)?;
    let own = Regex::new(r#""(GENV_[A-Z_]+)""#)?;
    let in_shells = Regex::new(r"\b(GENV_[A-Z_]+)\b")?;
    let sources = sources()?;
    for source in &sources {
        if OF_OTHER_KINDS.iter().any(|other| source.path.ends_with(other)) {
            continue;
        }
        let patterns: &[&Regex] = match source.path.ends_with(".rs") {
            true => &[&read, &own],
            false => &[&in_shells],
        };
        for found in patterns.iter().flat_map(|it| it.captures_iter(&source.text)) {
            let name = &found[1];
            ensure!(documented.contains(name), "{} names {name}, and docs/files.md does not", source.path);
        }
    }
    for name in &documented {
        let word = Regex::new(&format!(r"\b{name}\b"))?;
        ensure!(
            sources.iter().any(|source| word.is_match(&source.text)),
            "docs/files.md names {name}, which nothing reads or sets"
        );
    }
    Ok(())
}

#[test]
fn every_file_of_the_state_and_of_the_enforcer_is_documented_and_no_other() -> Result<()> {
    let page = read("docs/files.md")?;
    let mut documented_names = documented(chapter(&page, "genv's state")?)?;
    documented_names.extend(documented(chapter(&page, "The enforcer's folder")?)?);
    let literal = Regex::new(r#""([a-z][a-z-]*\.(?:json|jsonl|lock|sock)|genv-refused)""#)?;
    let mut named = BTreeSet::new();
    for source in sources()? {
        let of_files = ["/core/src/state/", "/core/src/enforcement", "/enforcer/src/"];
        if of_files.iter().any(|part| source.path.contains(part)) {
            let found = literal.captures_iter(&source.text);
            named.extend(found.map(|it| it[1].to_owned()));
        }
    }
    ensure!(named.len() >= 12, "{named:?}");
    for name in &named {
        ensure!(documented_names.contains(name), "docs/files.md lacks {name}");
    }
    // Others have a number, a time or a folder in them.
    let plain = |name: &&String| !name.contains(['/', 'N']);
    for name in documented_names.iter().filter(plain) {
        ensure!(named.contains(name), "nothing writes {name}");
    }
    Ok(())
}
