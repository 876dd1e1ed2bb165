//! Whether every block of commands says where it is run, and what is not run has a reason.

use anyhow::{Result, ensure};
use genv_tests::documentation::{Block, Page, Place};

const OTHERS: [&str; 7] = ["", "console", "text", "yaml", "json", "ini", "promql"];

const COMMANDS: [&str; 8] =
    ["$ ", "genv ", "genv-exporter ", "genv-enforcer ", "scripts/", "docker ", "systemctl ", "cargo "];

/// Whether this is where a line begins; more than one space behind it makes a drawing or a table.
fn begins(line: &str, start: &str) -> bool {
    line.strip_prefix(start).is_some_and(|rest| !rest.starts_with(' '))
}

fn fault(block: &Block) -> Option<String> {
    if block.is_commands() {
        let known = Place::ALL.map(|(name, _)| name).join(", ");
        return block.places().is_empty().then(|| {
            format!("commands of which nobody knows where they are run: write ```sh PLACE, with one or more of {known}")
        });
    }
    if !OTHERS.contains(&&*block.info) {
        return Some(format!(
            "'{}' is not known: write ```sh PLACE where it is of commands, else one of {OTHERS:?}",
            block.info
        ));
    }
    let mut lines = block.text.lines();
    let typed =
        lines.find(|line| ["", "text"].contains(&&*block.info) && COMMANDS.iter().any(|start| begins(line, start)));
    typed.map(|line| format!("'{line}' looks like a command: write ```sh PLACE, and ```console for what is printed"))
}

#[test]
fn every_block_of_commands_names_a_place_where_it_is_run() -> Result<()> {
    let mut faults = Vec::new();
    let mut commands = 0;
    for page in Page::all()? {
        for block in page.blocks() {
            commands += block.lines().len() * block.places().len();
            let found = fault(&block).map(|fault| format!("{}:{}: {fault}", page.name, block.line));
            faults.extend(found);
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(commands > 50, "only {commands} commands");
    Ok(())
}
