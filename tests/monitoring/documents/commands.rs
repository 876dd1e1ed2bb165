//! `docs/commands.md` is what the programs tell of themselves.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::tools::build_folder;

use crate::documents::{path, read};

const PAGE: &str = "docs/commands.md";

const BEGIN: &str = "<!-- What follows is made from the programs: UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents -->\n";

/// Commands that the help of a program does not list: they are for other programs, or spelled as in older versions.
fn unlisted(words: &[&str]) -> &'static [&'static str] {
    match words {
        ["genv"] => &["init", "root", "man", "remote-serve"],
        ["genv-exporter" | "genv-enforcer"] => &["man"],
        _ => &[],
    }
}

/// What is told with `--help` behind these words, of which the first is the program.
fn help(words: &[&str]) -> Result<String> {
    let output = Command::new(build_folder().join(words[0]))
        .args(&words[1..])
        .arg("--help")
        .env_clear()
        .output()
        .with_context(|| words.join(" "))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

fn listed(help: &str) -> Vec<&str> {
    let list = help.split_once("\nCommands:\n").map_or("", |(_, list)| list);
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        name.split(' ').next().filter(|name| !name.is_empty())
    });
    names.filter(|name| *name != "help").collect()
}

fn add(page: &mut String, words: &[&str]) -> Result<()> {
    let (depth, title) = ("#".repeat(words.len() + 1), words.join(" "));
    writeln!(page, "\n{depth} {title}\n")?;
    if words.ends_with(&["enforce"]) {
        // It hands over whatever it is given.
        writeln!(page, "Becomes `genv-enforcer run`, and takes its flags.")?;
        return Ok(());
    }
    let help = help(words)?;
    writeln!(page, "```text\n{}\n```", help.trim_end())?;
    for name in listed(&help).iter().chain(unlisted(words)) {
        add(page, &[words, &[*name]].concat())?;
    }
    Ok(())
}

#[test]
fn the_page_of_commands_is_what_the_programs_tell() -> Result<()> {
    let known = read(PAGE)?;
    let (head, _) = known.split_once(BEGIN).context("no line that begins what is made")?;
    let mut page = format!("{head}{BEGIN}");
    for program in ["genv", "genv-exporter", "genv-enforcer", "genv-shim"] {
        add(&mut page, &[program])?;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(PAGE), &page)?;
    }
    ensure!(
        known == page,
        "{PAGE} is not what the programs tell: UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents"
    );
    Ok(())
}
