//! The order of the modules that decide about the state: data stand below, and all that reads or writes files stands
//! above.

use std::fs;
use std::path::Path;

/// From below to above.
const MODULES: [&str; 6] = ["data", "allocate", "queue", "expected", "inventory", "change"];

/// What a decision is handed, and does not read.
const SOURCES: [&str; 6] = ["std::fs", "std::env", "std::process", "rustix", "SystemTime", "Instant"];

/// The lines of a module, without the tests at the end of a file.
fn lines(path: &Path) -> Vec<String> {
    if path.is_file() {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        return text.lines().map(str::to_owned).collect();
    }
    let files = fs::read_dir(path).unwrap().map(|it| it.unwrap().path());
    files.filter(|it| it.is_file()).flat_map(|it| lines(&it)).collect()
}

#[test]
fn what_decides_about_the_state_uses_only_what_stands_below_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state");
    let all = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path());
    let all: Vec<String> = all.map(|it| it.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    for (position, module) in MODULES.into_iter().enumerate() {
        let path = folder.join(module);
        let path = if path.is_dir() { path } else { path.with_extension("rs") };
        let above = all.iter().filter(|it| !MODULES[..=position].contains(&it.as_str()));
        let above: Vec<[String; 2]> = above.map(|it| [format!("super::{it}::"), format!("state::{it}::")]).collect();
        for line in lines(&path) {
            let uses = |name: &str| !line.trim_start().starts_with("//") && line.contains(name);
            assert!(!above.iter().flatten().any(|it| uses(it)), "{module}: {line}");
            assert!(!SOURCES.into_iter().any(uses), "{module}: {line}");
        }
    }
}
