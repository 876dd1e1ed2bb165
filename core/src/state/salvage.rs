//! The whole records of a damaged file.

use std::io::{self, Read};

use serde_json::{Deserializer, Map, Value};

use super::value;

/// The most bytes that are parsed in all attempts together, since every user may write the file: this multiple of the
/// bytes of the file, plus a constant that is enough for all levels of a small file.
const MOST_PASSES: usize = 4;
const MORE_BYTES: usize = 1 << 20;

/// The most records of a file.
const MOST_RECORDS: usize = 20_000;

/// The whole objects with all of these keys, anywhere in the text.
pub(super) fn records(content: &[u8], keys: &[&str]) -> Vec<Value> {
    let text = value::text_of(content);
    let bytes = text.as_bytes();
    let (mut records, mut parsed, mut at) = (Vec::new(), 0, 0);
    let most_parsed = bytes.len().saturating_mul(MOST_PASSES) + MORE_BYTES;
    while let Some(offset) = bytes[at..].iter().position(|&byte| byte == b'{') {
        at += offset;
        let mut counted = CountingReader { rest: &bytes[at..], read_bytes: 0 };
        let mut objects = Deserializer::from_reader(&mut counted).into_iter::<Map<String, Value>>();
        let object = objects.next();
        let length = objects.byte_offset();
        let read = counted.read_bytes;
        parsed += read;
        match object {
            Some(Ok(object)) if keys.iter().all(|key| object.contains_key(*key)) => {
                records.push(Value::Object(object));
                at += length;
            }
            // Continue with the object that was too deep: an outer object is too deep too.
            Some(Err(error)) if is_too_deep(&error) => at += read.saturating_sub(1).max(1),
            // An outer object may be damaged while inner records are whole.
            _ => at += 1,
        }
        if parsed > most_parsed || records.len() >= MOST_RECORDS {
            break;
        }
    }
    records
}

/// Whether the parser stopped at an object or array inside of too many others.
fn is_too_deep(error: &serde_json::Error) -> bool {
    // serde_json has no kind of error for this.
    error.to_string().starts_with("recursion limit exceeded")
}

/// Counts the bytes that are read.
struct CountingReader<'a> {
    rest: &'a [u8],
    read_bytes: usize,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(buffer)?;
        self.read_bytes += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const KEYS: [&str; 2] = ["eid", "uid"];

    fn whole() -> Vec<Value> {
        (0..4)
            .map(|uid| json!({"eid": format!("e\"{{{uid}"), "uid": uid, "config": {"name": null}, "pids": [1, 2]}))
            .collect()
    }

    #[test]
    fn a_cut_loses_the_record_that_it_cuts_and_those_behind() {
        let text = json!({ "envs": whole() }).to_string();
        let ends: Vec<usize> = whole()
            .iter()
            .scan(0, |from, record| {
                let record = record.to_string();
                *from += text[*from..].find(&record)? + record.len();
                Some(*from)
            })
            .collect();
        for cut in 0..text.len() {
            let kept = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(records(&text.as_bytes()[..cut], &KEYS), whole()[..kept], "{cut}");
        }
    }

    #[test]
    fn damage_in_the_middle_loses_no_record_around_it() {
        let [a, b] = [json!({"eid": "a", "uid": 1}), json!({"eid": "b", "uid": 2})];
        for damage in ["", "\0\0\0", "{\"eid\": \"x\",", "}]}", "\"", "{\"eid\": \"x\"}", "{{{{[[["] {
            let text = format!("{{\"envs\": [{a}{damage}{b}]}}");
            assert_eq!(records(text.as_bytes(), &KEYS), [a.clone(), b.clone()], "{damage}");
        }
    }

    #[test]
    fn no_text_takes_long() {
        for text in ["{", "{\"a\":", "{\"a\":[", "{\"a\":\"", "{\"eid\":1,\"uid\":", "{\"a\":1,"] {
            records(text.repeat((1 << 18) / text.len()).as_bytes(), &KEYS);
        }
        let deep = "{\"a\":".repeat(120) + "[" + &"{},".repeat(1 << 16);
        records(deep.as_bytes(), &KEYS);
    }

    #[test]
    fn a_record_behind_and_within_many_levels_is_kept() {
        let record = json!({"eid": "a", "uid": 1});
        for levels in [100, 127, 128, 129, 5_000] {
            let text = "{\"a\":".repeat(levels) + &record.to_string() + "}},";
            assert_eq!(records(text.as_bytes(), &KEYS), std::slice::from_ref(&record), "{levels}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_end_the_program(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            records(&content, &KEYS);
        }
    }
}
