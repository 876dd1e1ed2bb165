//! The text of a notice: what happens, why, when, and how to comply.

use genv_core::duration::format_span;
use genv_core::text::moment;
use jiff::tz::TimeZone;
use unicode_width::UnicodeWidthChar as _;

use crate::plan::words;
use crate::plan::{StepKind, Violation};

/// Columns of a notice; terminals are hardly ever narrower.
const WIDTH: usize = 78;

/// The text about a step of a violation: a warning of an action, or the report of an action.
pub(crate) fn notice_text(violation: &Violation, step: &StepKind, now_seconds: f64, zone: &TimeZone) -> Option<String> {
    let comply = format!("To comply: {}. More: 'genv why'", violation.remedy());
    let (what, then) = match step {
        StepKind::Report => return None,
        StepKind::Warn { end_seconds: None, .. } => ("Nothing is done about it but this.".to_owned(), comply),
        StepKind::Warn { end_seconds: Some(end), .. } => {
            let targets = words::listed(violation.targets.iter().map(words::target), "; ");
            let what = format!(
                "At {} (in {}) {}: {}.",
                moment(*end, zone),
                format_span(end - now_seconds),
                future_action(violation.action.word()),
                targets
            );
            (what, comply)
        }
        // The action is done: the user cannot comply any more.
        _ => {
            let (action, target) = words::deed(step)?;
            let what = format!("This {}: {target}.", past_action(action));
            (what, "More: 'genv why'".to_owned())
        }
    };
    let (subject, found) = (words::subject(&violation.key.subject), violation.found());
    let subject = words::unless_named(&subject, &found);
    let subject = subject.map(|it| format!(" ({it})")).unwrap_or_default();
    let place = violation.hostname.as_deref().map(|hostname| format!(" on {}", words::name(hostname)));
    let text = format!(
        "GPU rule {}{}{subject}: {}; allowed: {}.\n{what}\n{then}",
        words::name(&violation.key.rule),
        place.unwrap_or_default(),
        found,
        violation.allowed()
    );
    Some(framed(&text))
}

fn future_action(action: &str) -> &'static str {
    match action {
        "detach" => "this is taken",
        "kill" => "this is ended, by force if need be",
        _ => "this is ended",
    }
}

fn past_action(action: &str) -> &'static str {
    match action {
        "detach" => "was taken",
        "kill" => "was ended by force",
        _ => "was told to end",
    }
}

/// Breaks a text into lines for a terminal, which may be in raw mode, and escapes all control characters.
fn framed(text: &str) -> String {
    let mut framed = "\r\n".to_owned();
    for paragraph in text.lines() {
        for line in wrapped(&genv_core::text::harmless(paragraph)) {
            framed.push_str("* ");
            framed.push_str(&line);
            framed.push_str("\r\n");
        }
    }
    framed
}

/// Splits a text into words. A command in quotes is one word, so that a user can copy it from the terminal.
fn unbreakable(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut command: Option<String> = None;
    for word in text.split(' ') {
        let begins = word.starts_with('\'') && !word[1..].contains('\'');
        command = match command {
            None if begins => Some(word.to_owned()),
            None => {
                all.push(word.to_owned());
                None
            }
            Some(begun) => {
                let begun = format!("{begun} {word}");
                if word.contains('\'') {
                    all.push(begun);
                    None
                } else {
                    Some(begun)
                }
            }
        };
    }
    // A quote without an end is no quote.
    all.extend(command.iter().flat_map(|it| it.split(' ')).map(str::to_owned));
    let columns = |word: &str| -> usize { word.chars().filter_map(char::width).sum() };
    let fits = |word: String| match columns(&word) <= WIDTH {
        true => vec![word],
        false => word.split(' ').map(str::to_owned).collect(),
    };
    all.into_iter().flat_map(fits).collect()
}

/// Breaks a text between words, and a word that is longer than a line anywhere.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut columns = 0;
    for word in unbreakable(text) {
        let width: usize = word.chars().filter_map(char::width).sum();
        if columns > 0 && columns + 1 + width > WIDTH {
            lines.push(std::mem::take(&mut line));
            columns = 0;
        } else if columns > 0 {
            line.push(' ');
            columns += 1;
        }
        for letter in word.chars() {
            let width = letter.width().unwrap_or(0);
            if columns + width > WIDTH {
                lines.push(std::mem::take(&mut line));
                columns = 0;
            }
            line.push(letter);
            columns += width;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kinds::SharedFact;
    use crate::plan::tests::lab;
    use crate::plan::{Key, ProcessTarget, Subject, Target};
    use crate::present::WrittenFact;

    fn violation(comm: &str) -> Violation {
        let key = Key {
            rule: "idle".to_owned(),
            subject: Subject::Process { hostname: "gpu01".to_owned(), pid: 4711, start_time_ticks: 1 },
        };
        Violation {
            uid: Some(1000),
            fact: SharedFact::new(WrittenFact {
                found: "process 4711 uses device 0 outside any environment".to_owned(),
                allowed: "processes in an environment".to_owned(),
                remedy: "start it in an environment: genv activate".to_owned(),
            }),
            targets: vec![Target::Process(target(comm).into())],
            ..lab::due_violation(key, "alice")
        }
    }

    fn target(comm: &str) -> ProcessTarget {
        ProcessTarget { comm: Some(comm.to_owned()), ..lab::target("alice", 4711) }
    }

    fn warning(end_seconds: Option<f64>) -> StepKind {
        StepKind::Warn { number: 1, of: 1, end_seconds }
    }

    #[test]
    fn a_warning_says_what_why_when_and_how_to_comply() {
        let text = notice_text(&violation("python3"), &warning(Some(5400.0)), 0.0, &TimeZone::UTC);
        insta::assert_snapshot!(text.unwrap().replace('\r', ""), @"
        
        * GPU rule idle on gpu01: process 4711 uses device 0 outside any environment;
        * allowed: processes in an environment.
        * At 1970-01-01 01:30 (in 1h30m) this is ended: process 4711 (python3).
        * To comply: start it in an environment: genv activate. More: 'genv why'
        ");
        let text = notice_text(&violation("x"), &warning(None), 0.0, &TimeZone::UTC).unwrap();
        assert!(text.contains("Nothing is done about it"), "{text}");
        let ended = StepKind::Terminate(target("x").into());
        let text = notice_text(&violation("x"), &ended, 0.0, &TimeZone::UTC).unwrap();
        assert!(text.contains("was told to end: process 4711 (x)."), "{text}");
        assert!(!text.contains("To comply"), "it is too late: {text}");
    }

    #[test]
    fn hostile_names_neither_control_the_terminal_nor_break_the_frame() {
        let comm = "\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}";
        let text = notice_text(&violation(comm), &warning(Some(60.0)), 0.0, &TimeZone::UTC);
        let text = text.unwrap();
        let lines: Vec<_> = text.trim_matches(['\r', '\n']).split("\r\n").collect();
        for line in &lines {
            assert!(line.starts_with("* "), "{line:?}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        assert!(!text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn no_line_is_longer_than_a_terminal_is_wide() {
        let long = format!("a {} 名{} b", "x".repeat(200), "前".repeat(100));
        for line in wrapped(&long) {
            let columns: usize = line.chars().filter_map(char::width).sum();
            assert!(columns <= WIDTH, "{line}");
        }
        let command = "'genv exec --gpus 1 -- COMMAND',";
        let text = format!("{} {command} b", "x".repeat(60));
        assert_eq!(wrapped(&text)[1], format!("{command} b"));
        assert_eq!(wrapped("a 'b c"), ["a 'b c"]);
        assert_eq!(wrapped("a b"), ["a b"]);
        assert_eq!(wrapped(""), [""]);
    }
}
