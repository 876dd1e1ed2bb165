//! Whether a program knows the commands and flags of a synopsis, such as `genv attach [--count N | --index I]`, by its
//! own `--help`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use regex::Regex;

use super::passing::stands_for_another;

/// What programs say of themselves.
#[derive(Debug)]
pub struct Helps<F> {
    /// Runs `words --help`: what it prints, none if it fails.
    ask: F,
    known: RefCell<BTreeMap<Vec<String>, Option<String>>>,
}

impl<F: Fn(&[String]) -> Result<Option<String>>> Helps<F> {
    /// `ask` runs `words --help`.
    pub fn new(ask: F) -> Self {
        Self { ask, known: RefCell::default() }
    }

    fn help(&self, path: &[String]) -> Result<Option<String>> {
        if let Some(help) = self.known.borrow().get(path) {
            return Ok(help.clone());
        }
        let help = (self.ask)(path)?;
        self.known.borrow_mut().insert(path.to_vec(), help.clone());
        Ok(help)
    }

    /// Whether there is all that a line names. Alternatives are looked at one after the other, and so are the parts of a
    /// pipe that begin with `program`.
    ///
    /// # Errors
    /// Something of it is not known, which the message names.
    pub fn know(&self, line: &str, program: &str) -> Result<()> {
        for line in alternatives(line) {
            // Not those within a word, as in `gpu[01-03]`.
            let words = line.split_whitespace();
            let words = words.map(|word| word.trim_start_matches('[').trim_end_matches(']'));
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            for part in words.split(|word| ["|", "&&", ">"].contains(word)) {
                if part.first() == Some(&program) {
                    self.know_words(part)?;
                }
            }
        }
        Ok(())
    }

    fn know_words(&self, words: &[&str]) -> Result<()> {
        let mut path = vec![words[0].to_owned()];
        let mut rest = words[1..].iter().peekable();
        loop {
            let help = self.help(&path)?;
            let help = help.ok_or_else(|| anyhow!("there is no '{}'", path.join(" ")))?;
            let mut deeper = None;
            while let Some(word) = rest.next() {
                let word = word.trim_end_matches(['…', ']']);
                if word == "--" || word.is_empty() {
                    return Ok(());
                }
                if word.starts_with('-') && word != "-" {
                    let values =
                        Flag::of(word, &help).ok_or_else(|| anyhow!("'{}' has no flag {word}", path.join(" ")))?;
                    match values {
                        Flag::Alone => {}
                        Flag::WithValue => drop(rest.next()),
                        Flag::WithValues => while rest.next_if(|next| !next.starts_with('-')).is_some() {},
                    }
                } else if takes_command(&help) && !stands_for_another(word) {
                    deeper = Some(word.to_owned());
                    break;
                }
            }
            match deeper {
                Some(word) => path.push(word),
                None => return Ok(()),
            }
        }
    }
}

/// What follows a flag, as its help tells.
enum Flag {
    Alone,
    WithValue,
    WithValues,
}

impl Flag {
    fn of(word: &str, help: &str) -> Option<Self> {
        if word == "--help" || word == "-h" {
            return Some(Self::Alone);
        }
        let (name, has_value) = word.split_once('=').map_or((word, false), |(name, _)| (name, true));
        let lines: Vec<&str> = help.lines().map(str::trim).collect();
        // As clap and Go's flags write it: `-n, --name <VALUE>`, `-n, --name string   Meaning`, and below `[alias: --id]`.
        let names = |line: &str| line.split([' ', ',', '=', '[', ']', '<']).any(|other| other == name);
        let declares = |line: &&str| (line.starts_with('-') || line.starts_with("[alias")) && names(declaration(line));
        let found = lines.iter().position(declares)?;
        let declared = lines[..=found].iter().rfind(|line| line.starts_with('-'))?;
        let declared = declaration(declared);
        let takes = [" <", " string", " int", " scale"].iter().any(|value| declared.contains(value));
        Some(match takes && !has_value {
            true if declared.ends_with("...") => Self::WithValues,
            true => Self::WithValue,
            false => Self::Alone,
        })
    }
}

/// The names of a flag and its value, without what it means.
fn declaration(line: &str) -> &str {
    line.split("  ").next().unwrap_or_default()
}

/// Whether what comes next is a command of this one.
fn takes_command(help: &str) -> bool {
    let usage = Regex::new(r"(?m)^(?:Usage:)?\s+\S.*[<\[]?COMMAND[>\]]?$").expect("a regular expression");
    let mut usage = usage.find_iter(help);
    usage.any(|line| !line.as_str().contains("..."))
}

/// `a [b | c]` as `a b` and `a c`, and `a b|c` too.
fn alternatives(line: &str) -> Vec<String> {
    let groups = Regex::new(r"\[([^\[\]]* \| [^\[\]]*)\]|(\S+\|\S+)").expect("a regular expression");
    let Some(found) = groups.captures(line) else {
        return vec![line.to_owned()];
    };
    let (whole, inner) = (found.get(0), found.get(1).or(found.get(2)));
    let Some((whole, inner)) = whole.zip(inner) else {
        return vec![line.to_owned()];
    };
    let choices = inner.as_str().split('|').map(str::trim);
    let chosen =
        choices.flat_map(|choice| alternatives(&format!("{}{choice}{}", &line[..whole.start()], &line[whole.end()..])));
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Usage: p [OPTIONS] [COMMAND]\n\n      --color <WHEN>\n  -h, --help\n";
    const RUN: &str = "Usage: p run [OPTIONS] <COMMAND>...\n\n  -n, --number <N>\n      --query <Q>...\n      --wait[=<T>]\n          [alias: --await]\n";

    fn helps() -> Helps<impl Fn(&[String]) -> Result<Option<String>>> {
        Helps::new(|path: &[String]| {
            Ok(match path.join(" ").as_str() {
                "p" => Some(ROOT.to_owned()),
                "p run" => Some(RUN.to_owned()),
                _ => None,
            })
        })
    }

    #[test]
    fn what_a_program_knows_is_known() {
        let helps = helps();
        for line in [
            "p",
            "p --color auto run -n 1 --query a b --wait=5 -- anything --at-all",
            "p run [-n N] [--wait | --query Q…] COMMAND…",
            "p --color gpu[01-08] run [-n N]… [--wait]…",
            "p run - -n 1",
            "p run --wait | q --unknown && p run --await",
        ] {
            helps.know(line, "p").unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn what_it_does_not_know_is_named() {
        let helps = helps();
        for (line, what) in [
            ("p walk", "there is no 'p walk'"),
            ("p run --num 1", "'p run' has no flag --num"),
            ("p run [--wait | --hurry]", "'p run' has no flag --hurry"),
            ("q && p run|walk", "there is no 'p walk'"),
            ("p --wait", "'p' has no flag --wait"),
            ("p run -N", "'p run' has no flag -N"),
        ] {
            let error = helps.know(line, "p").unwrap_err().to_string();
            assert_eq!(error, what, "{line}");
        }
    }
}
