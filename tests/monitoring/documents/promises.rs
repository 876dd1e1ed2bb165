//! The tests that pages name for their promises exist.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use crate::documents::{path, read};

const PAGES: [&str; 2] = ["docs/security.md", "docs/enforcement.md"];

/// All Rust below a folder.
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
                ensure!(source.contains(&format!("fn {}(", &test[2])), "{page}: there is no test {}", &test[0]);
            }
        }
    }
    Ok(())
}
