//! The progress of many hosts: how many have answered, how many of these failed, and the names of the last ones.

use genv_core::progress::ProgressLine;

/// The line names the remaining hosts if they are at most this many.
const MOST_NAMED: usize = 3;

/// The progress of a query.
pub(super) struct Progress {
    all: usize,
    failed: usize,
    waited_for: Vec<String>,
    line: ProgressLine,
}

impl Progress {
    pub(super) fn new<'a>(hosts: impl Iterator<Item = &'a str>, quiet: bool) -> Self {
        let waited_for: Vec<String> = hosts.map(ToOwned::to_owned).collect();
        let progress = Self { all: waited_for.len(), failed: 0, waited_for, line: ProgressLine::on_stderr(!quiet) };
        progress.show();
        progress
    }

    /// Counts a host that has answered or failed.
    pub(super) fn done(&mut self, host: &str, is_failed: bool) {
        self.waited_for.retain(|it| it != host);
        self.failed += usize::from(is_failed);
        self.show();
    }

    fn show(&self) {
        self.line.show(|| words(self.all, self.failed, &self.waited_for));
    }
}

fn words(all: usize, failed: usize, waited_for: &[String]) -> String {
    let answered = all - waited_for.len();
    let mut words = format!("genv: {answered} of {all} hosts");
    if failed > 0 {
        words += &format!(", {failed} failed");
    }
    if !waited_for.is_empty() && waited_for.len() <= MOST_NAMED {
        words += &format!(", waiting for {}", waited_for.join(", "));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_hosts_are_counted_and_the_last_remaining_hosts_are_named() {
        let hosts = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        for (all, failed, waited_for, expected) in [
            (9, 0, &["a", "b", "c", "d"][..], "genv: 5 of 9 hosts"),
            (9, 2, &["a", "b"], "genv: 7 of 9 hosts, 2 failed, waiting for a, b"),
            (2, 0, &[], "genv: 2 of 2 hosts"),
        ] {
            assert_eq!(words(all, failed, &hosts(waited_for)), expected);
        }
    }
}
