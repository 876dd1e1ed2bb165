//! The command `check`.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;

use super::summary::Summary;
use super::{Accounts, Config, Warning, read};

/// Reads a configuration as the daemon does, and prints to `out` how its rules will work and what in it is odd.
///
/// # Errors
/// The file cannot be used: the error is a [`genv_core::yaml::Error`], which is wrong usage (exit code 2). Or `out`
/// cannot be written.
pub fn check(path: &Path, accounts: &dyn Accounts, now_seconds: f64, out: &mut impl Write) -> anyhow::Result<()> {
    let source_name = path.display().to_string();
    let text = read(path)?;
    let config = Config::parse(&source_name, &text)?;
    let warnings = Config::warnings(&source_name, &text, accounts, now_seconds)?;
    if let Some(mistake) = warnings.iter().find_map(Warning::mistake) {
        return Err(mistake.clone().into());
    }
    let rules = match config.rules.len() {
        1 => "1 rule".to_owned(),
        rules => format!("{rules} rules"),
    };
    let odd = match warnings.len() {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        warnings => format!(", {warnings} warnings"),
    };
    let mut print = || {
        writeln!(out, "{source_name}: ok, {rules}{odd}\n")?;
        write!(out, "{}", Summary { config: &config, now_seconds })?;
        for warning in &warnings {
            writeln!(out, "\nwarning: {warning}")?;
        }
        out.flush()
    };
    match print() {
        // Whoever reads no further has seen enough; the exit code tells the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot print the result: see why; nothing was changed"),
    }
}
