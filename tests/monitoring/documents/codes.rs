//! Exit codes and ids of messages: the tables in `docs/files.md` and `docs/enforcement.md` against what the programs have.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::tools::build_folder;
use regex::Regex;

use crate::documents::{chapter, read, rows};

/// What is documented of the codes in this column.
fn documented(column: usize) -> Result<BTreeMap<u8, String>> {
    let page = read("docs/files.md")?;
    let mut codes = BTreeMap::new();
    for cells in rows(chapter(&page, "Exit codes")?) {
        let meaning = cells.get(column).context("a cell is missing")?;
        if !meaning.is_empty() {
            codes.insert(cells[0].parse()?, (*meaning).to_owned());
        }
    }
    Ok(codes)
}

/// What a program's help tells of its codes.
fn told(program: &str) -> Result<BTreeMap<u8, String>> {
    let output =
        Command::new(build_folder().join(program)).arg("--help").output().with_context(|| program.to_owned())?;
    let help = String::from_utf8(output.stdout)?;
    let (_, codes) = help.split_once("Exit codes: ").with_context(|| format!("{program} tells no exit codes"))?;
    let codes = codes.split_once(".\n").map_or(codes, |(codes, _)| codes);
    let codes = codes.trim_end().trim_end_matches('.').replace('\n', " ");
    let code = |text: &str| {
        let (code, meaning) = text.split_once(' ').context("a code without a meaning")?;
        Ok((code.parse()?, meaning.to_owned()))
    };
    codes.split(", ").map(code).collect()
}

#[test]
fn exit_codes_are_documented_as_the_programs_tell_them() -> Result<()> {
    for (column, program) in ["genv", "genv-exporter", "genv-enforcer"].into_iter().enumerate() {
        let (documented, told) = (documented(column + 1)?, told(program)?);
        ensure!(documented == told, "{program}: {documented:?}\n{told:?}");
    }
    Ok(())
}

#[test]
fn exit_codes_of_the_shims_are_documented() -> Result<()> {
    let source = read("shims/src/outcome.rs")? + &read("shims/src/nvidia_smi/mod.rs")?;
    let own = Regex::new(r"const [A-Z_]+: u8 = (\d+);")?;
    let mut codes: Vec<u8> = vec![0];
    for found in own.captures_iter(&source) {
        codes.push(found[1].parse()?);
    }
    codes.sort_unstable();
    let documented: Vec<u8> = documented(4)?.into_keys().collect();
    ensure!(documented == codes, "{documented:?} {codes:?}");
    Ok(())
}

#[test]
fn every_id_of_a_message_of_the_enforcer_is_documented() -> Result<()> {
    let page = read("docs/enforcement.md")?;
    for (event, id) in genv_enforcer::journal::MESSAGE_IDS {
        let row = format!("| `{event}` | `{id}` |\n");
        ensure!(page.contains(&row), "docs/enforcement.md lacks {row}");
    }
    Ok(())
}
