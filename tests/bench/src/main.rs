//! Measures the budgets of genv's programs and prints them as tables.

use std::io::Write;

use anyhow::{Result, bail};

mod budgets;
mod commands;
mod enforcer;
mod enforcer_host;
mod floor;
mod growth;
mod load;
mod measured;
mod pair;
mod remote;
mod scrape;
mod shims;
mod table;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout().lock();
    match arguments.as_slice() {
        [] => {
            writeln!(out, "{}", budgets::table()?)?;
            writeln!(out, "{}", growth::table()?)?;
            writeln!(out, "{}", commands::table()?)?;
            writeln!(out, "{}", commands::prompts()?)?;
            writeln!(out, "{}", shims::table()?)?;
            writeln!(out, "{}", enforcer::table()?)?;
            writeln!(out, "{}", enforcer_host::table()?)?;
            write_all(&mut out, &remote::tables()?)?;
        }
        ["budgets"] => writeln!(out, "{}", budgets::table()?)?,
        ["commands"] => {
            writeln!(out, "{}", commands::table()?)?;
            writeln!(out, "{}", commands::prompts()?)?;
        }
        ["shims"] => writeln!(out, "{}", shims::table()?)?,
        ["enforcer"] => {
            writeln!(out, "{}", enforcer::table()?)?;
            writeln!(out, "{}", enforcer_host::table()?)?;
        }
        ["remote"] => write_all(&mut out, &remote::tables()?)?,
        ["pair"] => {
            writeln!(out, "{}", pair::table()?)?;
            writeln!(out, "{}", commands::pair()?)?;
            writeln!(out, "{}", remote::pair()?)?;
        }
        ["pair", "remote"] => writeln!(out, "{}", remote::pair()?)?,
        ["pair", "commands"] => writeln!(out, "{}", commands::pair()?)?,
        ["--measure", task] => {
            let task: measured::Task = serde_json::from_str(task)?;
            writeln!(out, "{}", serde_json::to_string(&task.measure()?)?)?;
        }
        other => bail!(
            "unknown arguments {other:?}: give none, 'budgets', 'commands', 'shims', 'enforcer', 'remote', 'pair', 'pair commands' or 'pair remote'"
        ),
    }
    Ok(())
}

fn write_all(out: &mut impl Write, tables: &[table::Table]) -> Result<()> {
    for table in tables {
        writeln!(out, "{table}")?;
    }
    Ok(())
}
