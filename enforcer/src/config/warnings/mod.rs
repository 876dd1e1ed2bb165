//! What a configuration may say and hardly means.

mod contradictions;
mod names;
mod values;

use std::fmt;

use genv_core::yaml::{self, Place};

use super::format::ConfigFile;
use super::{Accounts, Config, load, resolve, zone};

/// Something odd in a configuration, with its place: `FILE:LINE:COLUMN: what`, and the lines around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(yaml::Error);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Config {
    /// What in a configuration can be worked with, and is hardly meant: users and groups whom nobody knows, rules that
    /// contradict each other, waivers and windows that have passed, programs of `never` that are not there. In the order
    /// of the file.
    ///
    /// Asks `accounts`, which may take a while, and looks at the programs of `never` on this machine.
    ///
    /// # Errors
    /// As [`Config::parse`]; and one user has two limits, by name and by uid.
    pub fn warnings(
        source_name: &str,
        text: &str,
        accounts: &dyn Accounts,
        now_seconds: f64,
    ) -> Result<Vec<Warning>, yaml::Error> {
        let file: ConfigFile = load::file(source_name, text)?;
        let config = resolve::config(source_name, text, &file, zone::of_machine())?;
        let mut found = Found { source_name, text, warnings: Vec::new() };
        names::find(&file, accounts, &mut found)?;
        values::find(&file, &config, now_seconds, &mut found);
        contradictions::find(&file, &config, &mut found);
        found.warnings.sort_by_key(|warning| warning.0.place());
        Ok(found.warnings)
    }
}

/// What was found so far.
struct Found<'a> {
    source_name: &'a str,
    text: &'a str,
    warnings: Vec<Warning>,
}

impl Found<'_> {
    fn at(&mut self, place: Place, message: impl Into<String>) {
        let warning = self.error(place, message);
        self.warnings.push(Warning(warning));
    }

    fn error(&self, place: Place, message: impl Into<String>) -> yaml::Error {
        yaml::Error::at(self.source_name, self.text, place, message)
    }
}
