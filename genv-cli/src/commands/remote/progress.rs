//! How far hosts have answered, in a line of the terminal that is kept up to date.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use genv_core::text::{harmless, shortened};

/// How long the line may be: what does not fit into a terminal's line could not be taken back.
const MOST_CHARACTERS: usize = 78;

/// Hosts that are named when few are left.
const MOST_NAMED: usize = 3;

/// The line; it is gone with the value.
pub(super) struct Progress {
    all: usize,
    waited_for: Vec<String>,
    shown: bool,
}

impl Progress {
    pub(super) fn new<'a>(hosts: impl Iterator<Item = &'a str>, quiet: bool) -> Self {
        let waited_for: Vec<String> = hosts.map(ToOwned::to_owned).collect();
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        let progress = Self { all: waited_for.len(), waited_for, shown: !quiet && !dumb && io::stderr().is_terminal() };
        progress.show();
        progress
    }

    /// A host has answered, or failed.
    pub(super) fn done(&mut self, host: &str) {
        self.waited_for.retain(|it| it != host);
        self.show();
    }

    fn show(&self) {
        if self.shown {
            // Nobody is left to tell if printing fails.
            let _ = write!(io::stderr(), "\r\x1b[K{}", line(self.all, &self.waited_for));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(all: usize, waited_for: &[String]) -> String {
    let answered = all - waited_for.len();
    let mut line = format!("genv: {answered} of {all} hosts");
    if !waited_for.is_empty() && waited_for.len() <= MOST_NAMED {
        line = format!("{line}, waiting for {}", waited_for.join(", "));
    }
    shortened(&harmless(&line), MOST_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_keep_one_waiting_are_named_when_they_are_few() {
        let hosts = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(line(9, &hosts(&["a", "b", "c", "d"])), "genv: 5 of 9 hosts");
        assert_eq!(line(9, &hosts(&["a", "b"])), "genv: 7 of 9 hosts, waiting for a, b");
        assert_eq!(line(2, &[]), "genv: 2 of 2 hosts");
        let long = hosts(&[&"x".repeat(300)]);
        assert_eq!(line(1, &long).chars().count(), MOST_CHARACTERS + 1);
    }
}
