//! Strict reading of YAML files that people write, with line and column in errors.
//!
//! Only this module uses the YAML library.

use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::MessageFormatter;
use serde_saphyr::granit_parser::{Event, Parser};

use crate::text::harmless;

/// A value with its place in the file, so that a later error about the value has line and column too: see
/// [`Error::at`].
pub use serde_saphyr::Spanned as Located;

/// The place of a [`Located`] value in its file: its `referenced`.
pub use serde_saphyr::Location as Place;

/// Why a file cannot be used, and the place: `FILE:LINE:COLUMN: message`, with the lines around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    source_name: String,
    place: Option<(usize, usize)>,
    message: String,
    snippet: String,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source_name)?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}{}", self.message, self.snippet)
    }
}

impl Error {
    /// An error about a whole file.
    pub fn whole(source_name: &str, message: impl Into<String>) -> Self {
        Self {
            source_name: harmless(source_name),
            place: None,
            message: harmless(&message.into()),
            snippet: String::new(),
        }
    }

    /// An error about one value of a file that was parsed from `text`.
    pub fn at(source_name: &str, text: &str, place: Place, message: impl Into<String>) -> Self {
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self::at_position(source_name, text, (number(place.line()), number(place.column())), message)
    }

    /// An error at a line and column, both counted from 1; a line 0 is the whole file.
    fn at_position(source_name: &str, text: &str, (line, column): (usize, usize), message: impl Into<String>) -> Self {
        if line == 0 {
            return Self::whole(source_name, message);
        }
        Self {
            source_name: harmless(source_name),
            place: Some((line, column)),
            message: harmless(&message.into()),
            snippet: snippet(text, line, column),
        }
    }

    /// Line and column, counted from 1; absent if the error is about the whole file.
    pub const fn place(&self) -> Option<(usize, usize)> {
        self.place
    }
}

/// The line with the line before it, and a mark under the column.
fn snippet(text: &str, line: usize, column: usize) -> String {
    let width = line.to_string().len();
    let mut out = String::new();
    for (number, content) in text
        .lines()
        .enumerate()
        .map(|(i, content)| (i + 1, content))
        .skip(line.saturating_sub(2))
        .take_while(|(number, _)| *number <= line)
    {
        let shown: String = content.chars().map(|c| if is_shown_as_it_is(c) { c } else { ' ' }).take(160).collect();
        out += &format!("\n {number:width$} | {shown}");
    }
    let indent = column.saturating_sub(1).min(160);
    out + &format!("\n {:width$} | {:indent$}^", "", "")
}

/// Whether the character takes exactly one column.
fn is_shown_as_it_is(character: char) -> bool {
    let text = character.encode_utf8(&mut [0; 4]).to_owned();
    harmless(&text) == text
}

/// Defines a type of scalars that are written as text: its name, its inner type, and a parser whose error is the
/// message.
#[macro_export]
macro_rules! yaml_scalar {
    ($(#[$attribute:meta])* $vis:vis $name:ident($inner:ty), $parse:expr) => {
        $(#[$attribute])*
        $vis struct $name($vis $inner);

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                parse(&text).map(Self).map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// Files of people have a few thousand values; a file far beyond is a mistake or an alias bomb.
const MAX_EVENTS: usize = 500_000;

/// Mappings and lists within each other.
const MAX_DEPTH: usize = 32;

/// Parses one document. Only `true` and `false` are booleans, and a key must not occur twice. A type refuses unknown
/// keys by `deny_unknown_fields`.
///
/// # Errors
/// The text is not YAML, has several documents, does not have the form of the type, or is unreasonably large.
pub fn parse<T: DeserializeOwned>(source_name: &str, text: &str) -> Result<T, Error> {
    refuse_repetition(source_name, text)?;
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: MAX_EVENTS,
            max_nodes: 250_000,
            max_depth: MAX_DEPTH,
            max_documents: 1,
            max_aliases: 1_000,
            max_anchors: 1_000,
            // Each rule of a lab may refer to the same list of users.
            enforce_alias_anchor_ratio: false,
            max_total_scalar_bytes: 4 << 20,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: 1 << 20,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let message = serde_saphyr::UserMessageFormatter.format_message(error.without_snippet());
        let place = error.location().unwrap_or(Place::UNKNOWN);
        Error::at(source_name, text, place, message)
    })
}

/// Refuses a second document, and a key that a mapping has twice. The library distinguishes keys by their type, such as
/// `1001` and `"1001"`, and takes the first of two merge keys `<<`, where others take the last.
///
/// What is not YAML, or too large, is left to the library.
fn refuse_repetition(source_name: &str, text: &str) -> Result<(), Error> {
    /// A mapping whose end has not come yet.
    #[derive(Default)]
    struct Mapping {
        keys: HashSet<String>,
        /// Whether the last node was a key, whose value is next.
        is_after_key: bool,
    }

    // The mappings and lists around the place; a list is `None`.
    let mut around: Vec<Option<Mapping>> = Vec::new();
    let mut documents = 0;
    for event in Parser::new_from_str(text).take(MAX_EVENTS) {
        let Ok((event, span)) = event else {
            break;
        };
        let refused = |message: String| {
            let position = (span.start.line(), span.start.col() + 1);
            Err(Error::at_position(source_name, text, position, message))
        };
        if event.is_node()
            && let Some(Some(mapping)) = around.last_mut()
        {
            mapping.is_after_key = !mapping.is_after_key;
            if mapping.is_after_key
                && let Some((key, _)) = event.scalar()
                && !mapping.keys.insert(key.to_owned())
            {
                return refused(match key {
                    "<<" => "duplicate mapping key: merge several mappings by one key, <<: [*a, *b]".to_owned(),
                    _ => format!("duplicate mapping key: {key} not allowed here"),
                });
            }
        }
        match event {
            Event::DocumentStart(..) if documents == 1 => {
                return refused("a second document begins here, and a file has one: leave '---' out".to_owned());
            }
            Event::DocumentStart(..) => documents += 1,
            Event::MappingStart(..) => around.push(Some(Mapping::default())),
            Event::SequenceStart(..) => around.push(None),
            Event::MappingEnd | Event::SequenceEnd => {
                around.pop();
            }
            _ => {}
        }
        if around.len() > MAX_DEPTH {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        enabled: bool,
        #[serde(default)]
        users: Vec<Located<String>>,
    }

    fn refused(text: &str) -> String {
        parse::<Config>("config.yml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_is_refused_with_its_place() {
        let all = [
            "enabled: true\nuser: [a]\n",
            "enabled: yes\n",
            "enabled: true\nusers:\n  - a\n  - {b: c}\n",
            "enabled: [true\nusers: x\n",
            "enabled: true\nenabled: false\n",
            "",
        ]
        .map(refused);
        insta::assert_snapshot!(all.join("\n"), @r"
        config.yml:2:1: unknown field `user`, expected one of enabled, users
         1 | enabled: true
         2 | user: [a]
           | ^
        config.yml:1:10: invalid boolean (true or false expected)
         1 | enabled: yes
           |          ^
        config.yml:4:5: expected string scalar
         3 |   - a
         4 |   - {b: c}
           |     ^
        config.yml:1:10: expected string scalar
         1 | enabled: [true
           |          ^
        config.yml:2:1: duplicate mapping key: enabled not allowed here
         1 | enabled: true
         2 | enabled: false
           | ^
        config.yml:1:1: unexpected end of file
           | ^
        ");
    }

    #[test]
    fn a_key_occurs_once_in_whatever_spelling_and_a_file_has_one_document() {
        let place = |text: &str| {
            let error = parse::<BTreeMap<String, serde_json::Value>>("config.yml", text).unwrap_err();
            assert_eq!(error.to_string().contains("duplicate mapping key"), !text.contains("---"), "{error}");
            error.place()
        };
        assert_eq!(place("1001: 2\n\"1001\": 3\n"), Some((2, 1)));
        assert_eq!(place("a: {true: 2, 'true': 3}\n"), Some((1, 14)));
        assert_eq!(place("a: [{x: {~: 1, \"~\": 2}}]\n"), Some((1, 16)));
        assert_eq!(place("a: &a {x: 1}\nb: &b {x: 2}\nc:\n  <<: *a\n  <<: *b\n"), Some((5, 3)));
        assert_eq!(place("a: 1\n---\n"), Some((2, 1)));
        assert_eq!(place("a: 1\n---\nb: 2\n"), Some((2, 1)));
        let text = "---\na: &a {x: 1}\nb: [{<<: *a}, {<<: [*a, *a], x: x}]\n...\n";
        assert!(parse::<BTreeMap<String, serde_json::Value>>("config.yml", text).is_ok());
    }

    #[test]
    fn an_error_has_no_control_characters() {
        let written = "enabled: \"\\e[2J\\n\\x9b\\u202e\u{202e}\"\n\"\\e\": 1\n";
        let text = "enabled: true\nusers: [\"\\e[2J\\n\\u202e\u{202e}\"]\n";
        let config: Config = parse("config.yml", text).unwrap();
        let later = Error::at("config\u{1b}.yml", text, config.users[0].referenced, config.users[0].value.clone());
        for message in [refused(written), later.to_string()] {
            let lines = message.lines().count();
            assert!(lines == 3 || lines == 4, "{message:?}");
            let controls = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
            assert!(!message.contains(controls), "{message:?}");
        }
    }

    #[test]
    fn a_later_error_about_a_value_has_its_place() {
        let text = "enabled: true\nusers: [alice, bob]\n";
        let config: Config = parse("config.yml", text).unwrap();
        assert!(config.enabled);
        let error = Error::at("config.yml", text, config.users[1].referenced, "there is no user bob");
        assert_eq!(error.place(), Some((2, 16)));
        insta::assert_snapshot!(error, @r"
        config.yml:2:16: there is no user bob
         1 | enabled: true
         2 | users: [alice, bob]
           |                ^
        ");
    }

    #[test]
    fn one_anchor_may_have_hundreds_of_aliases() {
        let text =
            "a: &users [alice, bob]\n".to_owned() + &(0..500).map(|n| format!("b{n}: *users\n")).collect::<String>();
        let lists: BTreeMap<String, Vec<String>> = parse("rules.yml", &text).unwrap();
        assert_eq!((lists.len(), &lists["b499"]), (501, &lists["a"]));
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..9 {
            let alias = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [alias.as_str(); 10].join(","));
        }
        let error = parse::<BTreeMap<String, serde_json::Value>>("bomb.yml", &text).unwrap_err();
        assert!(error.to_string().starts_with("bomb.yml:"), "{error}");
    }
}
