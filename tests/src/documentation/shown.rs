//! Whether commands print what a page shows of them.

use anyhow::{Result, ensure};
use regex::Regex;

/// Whether lines are printed in the order in which they are shown. Numbers may be others, and so may what `…` stands for
/// and how wide columns are.
pub(super) fn prints(shown: &str, printed: &str) -> Result<()> {
    let varies = Regex::new(r"\d+|\s+|…").expect("a regular expression");
    let mut lines = printed.lines();
    for wanted in shown.lines().filter(|line| !line.trim().is_empty()) {
        let mut pattern = String::from("^");
        let mut rest = 0;
        for found in varies.find_iter(wanted.trim()) {
            pattern += &regex::escape(&wanted.trim()[rest..found.start()]);
            pattern += match found.as_str() {
                "…" => ".*",
                blank if blank.trim().is_empty() => r"\s+",
                _ => r"\d+",
            };
            rest = found.end();
        }
        pattern += &regex::escape(&wanted.trim()[rest..]);
        let pattern = Regex::new(&(pattern + "$"))?;
        ensure!(
            lines.any(|line| pattern.is_match(line.trim())),
            "the page shows a line that is not printed, or not there: {wanted:?}; printed is:\n{printed}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_widths_and_what_is_left_out_may_differ_and_nothing_else() {
        let printed = "HOST   TOTAL\ngpu01  8\nUUID: GPU-1a\n";
        assert!(prints("HOST TOTAL\ngpu02 16\n\nUUID: GPU-…\n", printed).is_ok());
        for wrong in ["HOST", "gpu01 8\nHOST TOTAL", "gpu01 eight"] {
            assert!(prints(wrong, printed).is_err(), "{wrong}");
        }
    }
}
