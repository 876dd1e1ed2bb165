//! The command lines of the examples in help texts, as `docs/commands.md` has them.

use anyhow::{Context as _, Result, ensure};

use super::{Line, Page};

/// The page of all help texts.
const PAGE: &str = "docs/commands.md";

/// What only stands in a file is no command line.
const IN_FILES: [&str; 1] = ["restrict,command="];

/// What other hosts are needed for.
const OF_HOSTS: &str = "genv remote -H ";

/// The examples of one help text.
#[derive(Debug)]
pub struct Examples {
    /// In their order, which is the one in which they are typed; also what stands in a file.
    pub lines: Vec<Line>,
}

impl Examples {
    /// Those of all help texts.
    ///
    /// # Errors
    /// The page cannot be read, or has hardly any.
    pub fn all() -> Result<Vec<Self>> {
        let pages = Page::all()?;
        let page = pages.iter().find(|page| page.name == PAGE);
        let blocks = page.context("no docs/commands.md")?.blocks();
        let all = blocks.iter().map(|block| Self { lines: lines(block.line + 1, &block.text) });
        let all: Vec<_> = all.filter(|examples| !examples.lines.is_empty()).collect();
        ensure!(all.len() > 20, "only {all:?}");
        Ok(all)
    }

    /// Those that are typed.
    pub fn typed(&self) -> impl Iterator<Item = &Line> {
        let is_in_file = |line: &Line| IN_FILES.iter().any(|start| line.text.starts_with(start));
        self.lines.iter().filter(move |line| !is_in_file(line))
    }

    /// Whether other hosts are needed for them.
    #[must_use]
    pub fn is_of_hosts(&self) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| line.text.starts_with(OF_HOSTS))
    }

    /// Where a line of them stands, and what it is: how faults are told.
    #[must_use]
    pub fn place_of(line: &Line) -> String {
        format!("{PAGE}:{}: {}", line.number, line.text)
    }
}

/// The lines below `Example:` that are indented. The first line of the help has this number.
fn lines(first: usize, help: &str) -> Vec<Line> {
    let typed = (first..).zip(help.lines());
    let typed = typed.skip_while(|(_, line)| !line.starts_with("Example: "));
    let typed = typed.filter_map(|(number, line)| {
        let text = line.strip_prefix("  ")?.to_owned();
        Some(Line { number, text })
    });
    typed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_indented_below_the_word_example_is_typed() {
        let help = "Do a\n\nUsage: a\n  -h\n\nExample: so\n  a b\nand so\n  a c\n  restrict,command=\"a\"\n";
        let examples = Examples { lines: lines(11, help) };
        let typed: Vec<_> = examples.typed().map(|it| (it.number, &*it.text)).collect();
        assert_eq!(typed, [(17, "a b"), (19, "a c")]);
        assert_eq!(examples.lines.len(), 3);
    }
}
