//! The tests that pages name for their promises exist, and no file of a test program is forgotten.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use crate::documents::{path, read};

const PAGES: [&str; 2] = ["docs/security.md", "docs/enforcement.md"];

fn rust_below(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            text += &rust_below(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path)?;
        }
    }
    Ok(text)
}

#[test]
fn every_promise_has_tests_that_exist() -> Result<()> {
    let named = Regex::new(r"`([a-z/-]+)::([a-z0-9_]+)`")?;
    let mut sources = BTreeMap::new();
    for page in PAGES {
        let (text, mut has_tests) = (read(page)?, false);
        for line in text.lines() {
            let is_head = line.ends_with("| test |");
            has_tests = line.starts_with('|') && (has_tests || is_head);
            let is_row = has_tests && !is_head && !line.ends_with("---|");
            ensure!(!is_row || named.is_match(line), "{page}: no test in {line}");
            for test in named.captures_iter(line) {
                let source = match sources.entry(test[1].to_owned()) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(rust_below(&path(&test[1]))?),
                };
                let function = format!("fn {}(", &test[2]);
                let mut places = source.match_indices(&function);
                let is_test = places.any(|(at, _)| {
                    let paragraph = source[..at].rsplit_once("\n\n");
                    paragraph.is_some_and(|(_, paragraph)| paragraph.contains("test]") || paragraph.contains("test("))
                });
                ensure!(is_test, "{page}: there is no test {}", &test[0]);
            }
        }
    }
    Ok(())
}

/// Whether a `mod` line of its parent reaches each file. Others are not compiled.
fn all_are_reached(folder: &Path) -> Result<()> {
    let parent = ["main.rs", "mod.rs"].iter().find_map(|name| fs::read_to_string(folder.join(name)).ok());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all_are_reached(&path)?;
        }
        let line = format!("mod {};", path.file_stem().unwrap_or_default().display());
        let is_module = path.join("mod.rs").exists() || path.extension().is_some_and(|extension| extension == "rs");
        let is_reached = parent.iter().any(|text| text.lines().any(|it| it.ends_with(&line)));
        let is_own = path.ends_with("main.rs") || path.ends_with("mod.rs");
        ensure!(!is_module || is_reached || is_own, "no mod line reaches {}", path.display());
    }
    Ok(())
}

#[test]
fn no_file_of_a_test_program_is_forgotten() -> Result<()> {
    let folders = fs::read_dir(path("tests"))?.map(|entry| Ok(entry?.path()));
    let folders = folders.collect::<Result<Vec<_>>>()?;
    folders.iter().filter(|folder| folder.join("main.rs").exists()).try_for_each(|folder| all_are_reached(folder))
}
