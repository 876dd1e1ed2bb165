//! What a configuration may say and hardly means.

mod contradictions;
mod names;
mod values;

use std::{fmt, iter};

use genv_core::model::system_time_zone;
use genv_core::yaml::{self, Located, Place};

use super::format::{ConfigFile, LimitEntry, RuleEntry};
use super::{Accounts, Config, Limit, Rule, load, resolve};

/// Something odd in a configuration, with its place: `FILE:LINE:COLUMN: what`, and the lines around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    found: yaml::Error,
    /// Whether the command `check` refuses the file for it.
    is_mistake: bool,
}

impl Warning {
    /// The error of the command `check`, which refuses what one machine's users alone can show.
    pub(super) fn mistake(&self) -> Option<&yaml::Error> {
        self.is_mistake.then_some(&self.found)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.found.fmt(f)
    }
}

impl Config {
    /// What in a configuration can be worked with, and is hardly meant: users and groups whom nobody knows, rules that
    /// contradict each other, waivers and windows that have passed, programs of `never` that are not there, and two limits of
    /// one user, by name and by uid. In the order of the file.
    ///
    /// Asks `accounts`, which may take a while, and looks at the programs of `never` on this machine.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn warnings(
        source_name: &str,
        text: &str,
        accounts: &dyn Accounts,
        now_seconds: f64,
    ) -> Result<Vec<Warning>, yaml::Error> {
        let file: ConfigFile = load::file(source_name, text)?;
        let config = resolve::config(source_name, text, &file, system_time_zone())?;
        let mut found = Found { source_name, text, warnings: Vec::new() };
        names::find(&file, &config, accounts, &mut found);
        values::find(&file, &config, now_seconds, &mut found);
        contradictions::find(&file, &config, &mut found);
        found.warnings.sort_by_key(|warning| warning.found.place());
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
        self.add(place, message, false);
    }

    /// As [`Found::at`], and the command `check` refuses the file.
    fn mistake(&mut self, place: Place, message: impl Into<String>) {
        self.add(place, message, true);
    }

    fn add(&mut self, place: Place, message: impl Into<String>, is_mistake: bool) {
        let found = yaml::Error::at(self.source_name, self.text, place, message);
        self.warnings.push(Warning { found, is_mistake });
    }
}

/// The limits of a rule as they are written, each with its meaning.
fn written_limits<'a>(
    entry: &'a RuleEntry,
    rule: &'a Rule,
) -> impl Iterator<Item = (&'a Located<LimitEntry>, &'a Limit<u64>)> {
    let overrides = entry.overrides.iter().flat_map(|overrides| &overrides.value);
    let written = entry.limit.iter().chain(overrides.map(|entry| &entry.value.limit));
    let limits = rule.kind.limits().into_iter();
    let meant =
        limits.flat_map(|limits| iter::once(&limits.base).chain(limits.overrides.iter().map(|(_, limit)| limit)));
    written.zip(meant)
}
