//! The order of the modules that decide about the state: data stand below, and all that reads or writes files stands
//! above.

use std::fs;
use std::path::{Path, PathBuf};

/// From below to above.
const MODULES: [&str; 6] = ["data", "allocate", "queue", "expected", "inventory", "change"];

/// A decision reads nothing: it gets facts.
const SOURCES: [&str; 9] =
    ["std::fs", "std::env", "std::process", "std::{", "rustix", "SystemTime", "Instant", "crate::proc", "crate::files"];

/// What is shown of refusals and of the queue looks up names of users, after the lock.
const NAMES: [&str; 2] = ["use crate::proc::username;", "use crate::proc::user_phrase;"];

/// The files of a module, without its tests.
fn files(folder: &Path, module: &str) -> Vec<PathBuf> {
    let folder = folder.join(module);
    if !folder.is_dir() {
        return vec![folder.with_extension("rs")];
    }
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    files.filter(|it| it.is_file()).collect()
}

#[test]
fn what_decides_about_the_state_uses_only_what_stands_below_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state");
    for (position, module) in MODULES.into_iter().enumerate() {
        for path in files(&folder, module) {
            let is_part = path.parent() != Some(&folder) && !path.ends_with("mod.rs");
            let prefixes = if is_part { &["crate::state::"][..] } else { &["crate::state::", "super::"] };
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = text.lines().filter(|it| !it.trim_start().starts_with("//"));
            for line in lines.filter(|it| !NAMES.contains(it)) {
                assert!(!SOURCES.into_iter().any(|it| line.contains(it)), "{module}: {line}");
                let used = prefixes.iter().flat_map(|it| line.split(it).skip(1));
                let mut used = used.filter_map(|it| it.split(|it: char| it != '_' && !it.is_alphanumeric()).next());
                assert!(used.all(|it| MODULES[..=position].contains(&it)), "{module}: {line}");
            }
        }
    }
}
