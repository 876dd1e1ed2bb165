//! A progress line on the terminal: how many hosts have answered.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use genv_core::text::{harmless, shortened};

/// The largest length of the line: a line that the terminal wraps cannot be erased.
const MOST_CHARACTERS: usize = 78;

/// The line names the remaining hosts if they are at most this many.
const MOST_NAMED: usize = 3;

/// The progress line. Its drop erases the line.
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

    /// Counts a host that has answered or failed.
    pub(super) fn done(&mut self, host: &str) {
        self.waited_for.retain(|it| it != host);
        self.show();
    }

    fn show(&self) {
        if self.shown {
            // An error of stderr cannot be reported.
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
    fn the_last_remaining_hosts_are_named() {
        let hosts = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(line(9, &hosts(&["a", "b", "c", "d"])), "genv: 5 of 9 hosts");
        assert_eq!(line(9, &hosts(&["a", "b"])), "genv: 7 of 9 hosts, waiting for a, b");
        assert_eq!(line(2, &[]), "genv: 2 of 2 hosts");
        let long = hosts(&[&"x".repeat(300)]);
        assert_eq!(line(1, &long).chars().count(), MOST_CHARACTERS + 1);
    }
}
