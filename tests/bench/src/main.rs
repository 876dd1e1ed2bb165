//! Measures the budgets of genv's programs and prints them as tables.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

mod against;
mod budgets;
mod cycle;
mod enforcer;
mod floor;
mod load;
mod measured;
mod page;
mod remote;
mod scrape;
mod table;
mod top;

fn main() -> Result<ExitCode> {
    if let Some(code) = genv_core::gpu::reader::run_if_asked() {
        return Ok(code);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout().lock();
    if let ["--measure", library, task] = arguments[..] {
        let task: measured::Task = serde_json::from_str(task)?;
        writeln!(out, "{}", serde_json::to_string(&task.measure(library.as_ref())?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let ["--against", checkout, tables @ ..] = &arguments[..] {
        type Comparison = (&'static [&'static str], fn(&Path) -> Result<table::Table>);
        let budgets: Comparison = (&["genv", "genv-exporter"], against::table);
        let enforcer: Comparison = (&["genv-bench", "genv-enforcer", "libnvml_sim.so"], against::enforcer_table);
        let remote: Comparison = (&["genv", "genv-exporter"], against::remote_table);
        let tables = match tables {
            [] => vec![budgets, enforcer, remote],
            ["budgets"] => vec![budgets],
            ["enforcer"] => vec![enforcer],
            ["remote"] => vec![remote],
            _ => bail!("unknown tables {tables:?}: give none, 'budgets', 'enforcer' or 'remote'"),
        };
        let checkout: &Path = checkout.as_ref();
        // Before the first table, which takes minutes.
        tables.iter().try_for_each(|(programs, _)| against::require_programs(checkout, programs))?;
        for (_, table) in tables {
            writeln!(out, "{}", table(checkout)?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tables: &[fn() -> Result<table::Table>] = match arguments[..] {
        [] => &[budgets::table, top::table, enforcer::table, cycle::table, remote::table, page::table],
        ["budgets"] => &[budgets::table],
        ["top"] => &[top::table],
        ["enforcer"] => &[enforcer::table, cycle::table],
        ["remote"] => &[remote::table],
        ["churn"] => &[remote::churn_table],
        ["page"] => &[page::table],
        _ => bail!(
            "unknown arguments {arguments:?}: give none, 'budgets', 'top', 'enforcer', 'remote', 'churn' or 'page'"
        ),
    };
    for table in tables {
        writeln!(out, "{}", table()?)?;
    }
    Ok(ExitCode::SUCCESS)
}
