//! Values of state files. A value may be missing, or have the type of another version or of an edit by hand.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::Hash;

use jiff::tz::TimeZone;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::model::{MemoryAmount, parse_local_time};

/// The number of characters of a damaged value that are shown.
const MOST_SHOWN_CHARACTERS: usize = 40;

/// Parses JSON of a known form; see [`parse`].
pub(super) fn parse_into<T: DeserializeOwned>(content: &[u8]) -> Result<T, serde_json::Error> {
    T::deserialize(parse(content)?)
}

/// Parses JSON, with U+FFFD for bytes that are no character, private characters for lone surrogates, and null for the
/// numbers that only Python's JSON has.
pub(super) fn parse(content: &[u8]) -> Result<Value, serde_json::Error> {
    parse_with(content, |text| serde_json::from_str(text))
}

/// As [`parse`], with another parser.
pub(super) fn parse_with<T>(
    content: &[u8],
    parser: impl Fn(&str) -> Result<T, serde_json::Error>,
) -> Result<T, serde_json::Error> {
    let text = String::from_utf8_lossy(content);
    parser(&text).or_else(|_| {
        let text = without_lone_surrogates(&text);
        parser(&without_infinities(&text))
    })
}

/// One entry of a list, or of an object that is keyed by its name.
pub(super) struct Entry<'a> {
    /// The name of the entry in warnings.
    pub(super) name: String,
    pub(super) key: Option<&'a str>,
    pub(super) position: usize,
    pub(super) value: &'a Value,
    pub(super) warnings: Vec<String>,
    /// Whether the entry, or one of its members, was left out.
    pub(super) incomplete: bool,
}

impl Entry<'_> {
    pub(super) fn warn(&mut self, what: impl AsRef<str>) {
        self.warnings.push(format!("{}: {}", self.name, what.as_ref()));
    }

    pub(super) fn leave_out(&mut self, what: impl AsRef<str>) {
        self.incomplete = true;
        self.warn(format!("{}, and it is left out", what.as_ref()));
    }
}

/// An item of a list, or a value of an object with its key.
pub(super) type Child<'a> = (Option<&'a str>, &'a Value);

/// The children of a list or an object.
pub(super) fn children(value: &Value) -> Option<Vec<Child<'_>>> {
    match value {
        Value::Array(list) => Some(list.iter().map(|value| (None, value)).collect()),
        Value::Object(map) => {
            let children = map.iter().map(|(key, value)| (Some(key.as_str()), value));
            Some(children.collect())
        }
        _ => None,
    }
}

pub(super) fn object<'a>(entry: &mut Entry<'a>) -> Option<&'a Map<String, Value>> {
    let fields = entry.value.as_object();
    if fields.is_none() {
        let found = shown(entry.value);
        entry.leave_out(format!("it is {found}"));
    }
    fields
}

/// An eid; versions that took the shell's pid for it may have written a number.
pub(super) fn eid(value: Option<&Value>, key: Option<&str>) -> Option<String> {
    let eid = match value {
        Some(Value::String(eid)) => eid.clone(),
        Some(Value::Number(eid)) => eid.to_string(),
        Some(Value::Null) | None => key?.to_owned(),
        Some(_) => return None,
    };
    (!eid.is_empty()).then_some(eid)
}

pub(super) fn integer(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A value that may be missing or null, and is left out with a warning if it is damaged.
pub(super) fn optional<T>(
    entry: &mut Entry<'_>,
    fields: &Map<String, Value>,
    key: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Option<T> {
    let value = fields.get(key).filter(|value| !value.is_null())?;
    let read = read(value);
    if read.is_none() {
        let found = shown(value);
        entry.warn(format!("its {key} is {found}, and is left out"));
    }
    read
}

pub(super) fn text(entry: &mut Entry<'_>, fields: &Map<String, Value>, key: &str) -> Option<String> {
    optional(entry, fields, key, |value| value.as_str().map(str::to_owned))
}

pub(super) fn amount(entry: &mut Entry<'_>, fields: &Map<String, Value>, key: &str) -> Option<MemoryAmount> {
    optional(entry, fields, key, |value| match value {
        Value::Number(bytes) => bytes.as_u64().map(MemoryAmount::from_bytes),
        Value::String(text) => MemoryAmount::from_file(text).ok(),
        _ => None,
    })
}

pub(super) fn time(entry: &mut Entry<'_>, fields: &Map<String, Value>, key: &str, time_zone: &TimeZone) -> Option<f64> {
    optional(entry, fields, key, |value| {
        let seconds = parse_local_time(value.as_str()?, time_zone).ok()?;
        #[expect(clippy::cast_precision_loss, reason = "the format ends with the year 9999")]
        let seconds = seconds as f64;
        Some(seconds)
    })
}

/// A list that may be missing or null; damaged items are left out with a warning.
pub(super) fn list<T: Eq + Hash + Clone>(
    entry: &mut Entry<'_>,
    fields: &Map<String, Value>,
    key: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Vec<T> {
    let items = match fields.get(key) {
        Some(Value::Array(items)) => items.as_slice(),
        Some(Value::Null) | None => &[],
        Some(other) => {
            let found = shown(other);
            entry.incomplete = true;
            entry.warn(format!("its {key} are {found}, and are left out"));
            &[]
        }
    };
    let mut seen = HashSet::with_capacity(items.len());
    let mut list = Vec::with_capacity(items.len());
    for item in items {
        match read(item) {
            Some(item) if seen.insert(item.clone()) => list.push(item),
            Some(_) => {}
            None => {
                let found = shown(item);
                entry.incomplete = true;
                entry.warn(format!("{found} among its {key} is left out"));
            }
        }
    }
    list
}

pub(super) fn found(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), shown)
}

/// A value as JSON, which escapes control characters, cut to a readable length.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MOST_SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The offset of the private characters that stand for lone surrogates.
const LONE_SURROGATES_AT: u32 = 0x10_0000;

/// The lone surrogate that a character stands for; see [`without_lone_surrogates`].
pub(super) fn lone_surrogate(character: char) -> Option<u16> {
    let unit = u16::try_from(u32::from(character).checked_sub(LONE_SURROGATES_AT)?).ok()?;
    matches!(unit, 0xd800..=0xdfff).then_some(unit)
}

/// Replaces escapes such as `\udcff`, which Python writes for bytes that were not UTF-8, by private
/// characters (`U+10DCFF`), so that what was read can be written again.
fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| {
        let escape = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let mut replaced = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = text[at..].find('\\') {
        at += offset;
        match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(surrogate @ 0xd800..=0xdfff) => {
                replaced.push_str(&text[copied..at]);
                let private = char::from_u32(LONE_SURROGATES_AT + u32::from(surrogate));
                replaced.push(private.unwrap_or(char::REPLACEMENT_CHARACTER));
                at += 6;
                copied = at;
            }
            // The backslash and the escaped character, which may have several bytes in a damaged text.
            _ => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    replaced.push_str(&text[copied..]);
    Cow::Owned(replaced)
}

/// Replaces `NaN`, `Infinity` and `-Infinity`, which Python reads and writes and JSON does not have, by `null`.
fn without_infinities(text: &str) -> Cow<'_, str> {
    const NAMES: [&str; 3] = ["NaN", "-Infinity", "Infinity"];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return Cow::Borrowed(text);
    }
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let name = NAMES.iter().find(|name| rest.starts_with(**name));
        let length = match (character, name) {
            ('"', _) => string_length(rest),
            (_, Some(name)) => {
                replaced.push_str("null");
                rest = &rest[name.len()..];
                continue;
            }
            (_, None) => character.len_utf8(),
        };
        replaced.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Cow::Owned(replaced)
}

/// The length of the string with which a text begins, with its quotes; all of the text if the string has no end.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_only_python_has_are_null() {
        let text = r#"{"NaN": [NaN, -Infinity, Infinity, "\"NaN", "\\", NaN], "é": "-Infinity"}"#;
        let expected = serde_json::json!({"NaN": [null, null, null, "\"NaN", "\\", null], "é": "-Infinity"});
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        for damaged in ["NaNa", "[NaN", "\"NaN", "{NaN: 1}", "N"] {
            assert!(parse(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    proptest! {
        #[test]
        fn no_text_ends_the_program(text in any::<String>()) {
            let _ = without_lone_surrogates(&text);
            let _ = without_infinities(&text);
        }

        #[test]
        fn escapes_that_name_characters_stay(text in any::<String>()) {
            let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(without_lone_surrogates(&ascii), Cow::Borrowed(ascii.as_str()));
        }
    }
}
