//! The order of the modules: each uses only those that stand below it. Data stand lowest, then what decides, then what
//! reads and writes files.

use std::fs;
use std::path::{Path, PathBuf};

/// What decides, from below to above.
const DECIDING: [&str; 7] = ["written", "data", "allocate", "queue", "expected", "inventory", "change"];

/// What reads and writes, from below to above.
const OTHERS: [&str; 28] = [
    "corrupt",
    "file",
    "genv1",
    "refused",
    "own_file",
    "state_lock",
    "confirmed",
    "kernels",
    "linger",
    "shape",
    "standing",
    "strangers",
    "host",
    "failure",
    "jobs",
    "leases",
    "usage",
    "fates",
    "surplus",
    "watched",
    "liveness",
    "record",
    "import",
    "waiting",
    "commit",
    "directory",
    "store",
    "device_locks",
];

/// A decision reads nothing: it gets facts.
const SOURCES: [&str; 9] =
    ["std::fs", "std::env", "std::process", "std::{", "rustix", "SystemTime", "Instant", "crate::proc", "crate::files"];

/// What is shown of refusals and of the queue looks up names of users, after the lock.
const NAMES: [&str; 2] = ["use crate::proc::username;", "use crate::proc::user_phrase;"];

/// The files of a module, without its tests.
fn files(folder: &Path, module: &str) -> Vec<PathBuf> {
    let in_folder = folder.join(module);
    let files = fs::read_dir(&in_folder).into_iter().flatten().map(|it| it.unwrap().path());
    let files = files.filter(|it| it.is_file() && !it.ends_with("tests.rs")).chain([in_folder.with_extension("rs")]);
    files.filter(|it| it.exists()).collect()
}

/// The words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| it != '_' && !it.is_alphanumeric()).filter(|it| !it.is_empty())
}

#[test]
fn each_module_uses_only_what_stands_below_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state");
    let root = fs::read_to_string(folder.join("mod.rs")).unwrap();
    let modules: Vec<&str> = DECIDING.into_iter().chain(OTHERS).collect();
    // The module of each name that the root passes on.
    let passed_on = root.split(';').filter_map(|it| it.split_once("use ")?.1.split_once("::"));
    let passed_on = passed_on.flat_map(|(module, names)| words(names).map(move |name| (name, module)));
    let passed_on: std::collections::HashMap<&str, &str> = passed_on.collect();
    let declared = root.lines().filter_map(|it| it.split_once("mod ")?.1.strip_suffix(';'));
    let mut declared: Vec<&str> = declared.filter(|it| *it != "order").collect();
    declared.sort_unstable();
    let mut listed = modules.clone();
    listed.sort_unstable();
    assert_eq!(declared, listed);
    for (position, module) in modules.iter().enumerate() {
        for path in files(&folder, module) {
            let is_part = path.parent() != Some(&folder) && !path.ends_with("mod.rs");
            let prefixes = if is_part { &["crate::state::"][..] } else { &["crate::state::", "super::"] };
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = text.lines().filter(|it| !it.trim_start().starts_with("//"));
            let code: Vec<&str> = lines.filter(|it| !NAMES.contains(it)).collect();
            if DECIDING.contains(module) {
                let reading = code.iter().find(|line| SOURCES.into_iter().any(|it| line.contains(it)));
                assert_eq!(reading, None, "{module}");
            }
            let code = code.join("\n");
            let used = prefixes.iter().flat_map(|it| code.split(it).skip(1)).flat_map(|rest| {
                let end = if rest.starts_with('{') {
                    rest.find('}')
                } else {
                    rest.find(|it: char| it != '_' && !it.is_alphanumeric())
                };
                words(&rest[..end.unwrap_or(rest.len())])
            });
            for name in used {
                let of = passed_on.get(name).copied().unwrap_or(name);
                let above = modules.iter().position(|it| *it == of).filter(|of| *of > position);
                assert_eq!(above.map(|of| modules[of]), None, "{module} uses {name}");
            }
        }
    }
}
