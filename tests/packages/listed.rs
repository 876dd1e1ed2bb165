//! The table of what is installed where, against what the packages hold.

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::Machine;
use regex::Regex;

/// The paths that the table has for a package. Of those that one package alone has, it names that behind them.
fn told(package: &str) -> Result<Vec<&'static str>> {
    let guide = include_str!("../../docs/install.md");
    let (_, rest) = guide.split_once("\n| installed |").context("no table")?;
    let (table, _) = rest.split_once("\n\n").context("no end")?;
    let path = Regex::new(r"`(/[^`]+)`(?: \(`\.(\w+)`\))?")?;
    let cells = table.lines().filter_map(|row| row.split('|').nth(1));
    let paths = cells.flat_map(|cell| path.captures_iter(cell));
    Ok(paths
        .filter(|found| found.get(2).is_none_or(|only| only.as_str() == package))
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect())
}

/// Whether a path of the table stands for a file: as its own, its folder's, or with a `*` for how its name ends.
fn is_of(file: &str, path: &str) -> bool {
    match path.strip_suffix('*') {
        Some(start) => file.strip_prefix(start).is_some_and(|rest| !rest.contains('/')),
        None => file == path || path.ends_with('/') && file.starts_with(path),
    }
}

/// Whether the table has the files of a package and no others. `list` is what the package manager prints.
pub(crate) fn is_listed(machine: &Machine, package: &str, list: &str) -> Result<()> {
    let told = told(package)?;
    let files: Vec<_> = list.lines().filter(|path| !machine.path(path).is_dir()).collect();
    ensure!(files.len() > 50, "{package}: {files:?}");
    for file in &files {
        ensure!(
            told.iter().any(|path| is_of(file, path)),
            "the .{package} has {file}, and the table of docs/install.md does not"
        );
    }
    for path in told {
        ensure!(
            files.iter().any(|file| is_of(file, path)),
            "the table of docs/install.md has {path}, and the .{package} does not"
        );
    }
    Ok(())
}
