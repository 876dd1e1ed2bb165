//! The records of genv 1.x, in the shapes from 0.3 to 1.4.3. This genv imports its files, and reads what `genv usage
//! snapshot` prints on other hosts.
//!
//! Lists were objects by eid or index at first. An attachment was a bare eid, then an object; its time was `attached`,
//! then `time`. Fields that a version did not know are missing or null. All mixtures are read, and unknown keys are
//! ignored.

use std::collections::HashSet;
use std::hash::Hash;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::{AttachmentState, DeviceState, EnvironmentState, MemberState};
use crate::model::{MemoryAmount, parse_local_time};
use crate::text::counted;

/// The most bytes of a file, or of what another host prints. As values of JSON, they may take a hundred times the
/// memory; 100 environments take 30 KiB.
const MOST_BYTES: usize = 2 << 20;

/// The most warnings of one list: every user may write the files.
const MOST_WARNINGS: usize = 20;

/// The number of characters of a damaged value that are shown.
const MOST_SHOWN_CHARACTERS: usize = 40;

/// The records of one list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed<T> {
    pub(super) records: Vec<T>,
    /// The values that were left out.
    pub(super) warnings: Vec<String>,
    /// The first record, or member of a record, that was left out.
    pub(super) left_out: Option<String>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { records: Vec::new(), warnings: Vec::new(), left_out: None }
    }
}

/// Parses JSON that Python wrote. Bytes that are not UTF-8, and what Python writes for them, become U+FFFD. `NaN` and
/// `Infinity`, which JSON does not have, are errors.
///
/// # Errors
/// The text is too long, or no JSON; the error is the reason.
pub(super) fn parse(content: &[u8]) -> Result<Value, String> {
    if content.len() > MOST_BYTES {
        return Err(format!("it has {} bytes, and no more than {MOST_BYTES} are read", content.len()));
    }
    if content.trim_ascii().is_empty() {
        return Err("it is empty".to_owned());
    }
    let text = String::from_utf8_lossy(content);
    let parsed = serde_json::from_str(&text).or_else(|_| serde_json::from_str(&without_lone_surrogates(&text)));
    parsed.map_err(|error| format!("it is not JSON: {error}"))
}

/// The environments in the parsed `envs.json`. Its times are local to `time_zone`.
///
/// # Errors
/// It has no environments; the error is the reason.
pub(super) fn environments(root: &Value, time_zone: &TimeZone) -> Result<Listed<EnvironmentState>, String> {
    let mut eids = HashSet::new();
    listed(root, "envs", |entry| {
        let environment = environment(entry, time_zone)?;
        let is_new = eids.insert(environment.eid.clone());
        if !is_new && environment.eid.contains(char::REPLACEMENT_CHARACTER) {
            entry.leave_out("its eid is not UTF-8, and may be that of another environment, and it is left out");
            return None;
        }
        entry.unless_twice(is_new, environment)
    })
}

/// The devices in the parsed `devices.json`, by index. Its times are local to `time_zone`.
///
/// # Errors
/// It has no devices; the error is the reason.
pub(super) fn devices(root: &Value, time_zone: &TimeZone) -> Result<Listed<DeviceState>, String> {
    let mut indices = HashSet::new();
    let mut listed = listed(root, "devices", |entry| {
        let device = device(entry, time_zone)?;
        entry.unless_twice(indices.insert(device.index), device)
    })?;
    listed.records.sort_by_key(|device| device.index);
    Ok(listed)
}

/// Reads the items of the list, or the values of the object, `key`.
fn listed<T>(
    root: &Value,
    key: &'static str,
    mut read: impl FnMut(&mut Entry<'_>) -> Option<T>,
) -> Result<Listed<T>, String> {
    let children = root.get(key).and_then(children).ok_or_else(|| format!("it has no '{key}'"))?;
    let (mut listed, mut more) = (Listed::default(), 0);
    for (position, (child_key, value)) in children.into_iter().enumerate() {
        let shown_key = child_key.map_or_else(|| (position + 1).to_string(), |it| shown(&Value::from(it)));
        let name = format!("entry {shown_key} of '{key}'");
        let mut entry = Entry { name, key: child_key, position, value, warnings: Vec::new(), more: 0, left_out: None };
        listed.records.extend(read(&mut entry));
        listed.warnings.append(&mut entry.warnings);
        more += entry.more + listed.warnings.len().saturating_sub(MOST_WARNINGS);
        listed.warnings.truncate(MOST_WARNINGS);
        listed.left_out = listed.left_out.or(entry.left_out);
    }
    if more > 0 {
        listed.warnings.push(format!("{} of '{key}' beside these", counted(more, "damaged value")));
    }
    Ok(listed)
}

/// One item of a list, or one value of an object with its key.
struct Entry<'a> {
    /// The name of the entry in warnings.
    name: String,
    key: Option<&'a str>,
    position: usize,
    value: &'a Value,
    warnings: Vec<String>,
    /// The number of warnings beyond the limit.
    more: usize,
    left_out: Option<String>,
}

impl<'a> Entry<'a> {
    fn warn(&mut self, what: impl AsRef<str>) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(format!("{}: {}", self.name, what.as_ref()));
        } else {
            self.more += 1;
        }
    }

    /// Warns that the record, or a member of it, is left out.
    fn leave_out(&mut self, what: impl AsRef<str>) {
        self.warn(&what);
        self.left_out.get_or_insert_with(|| format!("{}: {}", self.name, what.as_ref()));
    }

    fn unless_twice<T>(&mut self, is_new: bool, record: T) -> Option<T> {
        if !is_new {
            self.warn("it is there twice: the first is taken");
        }
        is_new.then_some(record)
    }

    fn object(&mut self) -> Option<&'a Map<String, Value>> {
        let fields = self.value.as_object();
        if fields.is_none() {
            self.leave_out(format!("it is {}, and it is left out", shown(self.value)));
        }
        fields
    }

    /// A value that may be missing or null, and is left out with a warning if it is damaged.
    fn optional<'v, T>(
        &mut self,
        fields: &'v Map<String, Value>,
        key: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let value = fields.get(key).filter(|value| !value.is_null())?;
        let read = read(value);
        if read.is_none() {
            self.warn(format!("its {key} is {}, and is left out", shown(value)));
        }
        read
    }

    fn text(&mut self, fields: &Map<String, Value>, key: &str) -> Option<String> {
        self.optional(fields, key, |value| value.as_str().map(str::to_owned))
    }

    fn amount(&mut self, fields: &Map<String, Value>, key: &str) -> Option<MemoryAmount> {
        self.optional(fields, key, |value| match value {
            Value::Number(bytes) => bytes.as_u64().map(MemoryAmount::from_bytes),
            Value::String(text) => MemoryAmount::from_file(text).ok(),
            _ => None,
        })
    }

    fn time(&mut self, fields: &Map<String, Value>, key: &str, time_zone: &TimeZone) -> Option<f64> {
        self.optional(fields, key, |value| {
            let seconds = parse_local_time(value.as_str()?, time_zone).ok()?;
            #[expect(clippy::cast_precision_loss, reason = "the format ends with the year 9999")]
            let seconds = seconds as f64;
            Some(seconds)
        })
    }

    /// A list that may be missing or null; damaged items are left out with a warning.
    fn list<T: Eq + Hash + Clone>(
        &mut self,
        fields: &Map<String, Value>,
        key: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Vec<T> {
        let items = match fields.get(key) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::Null) | None => &[],
            Some(other) => {
                self.leave_out(format!("its {key} are {}, and are left out", shown(other)));
                &[]
            }
        };
        let (mut seen, mut list) = (HashSet::with_capacity(items.len()), Vec::with_capacity(items.len()));
        for item in items {
            match read(item) {
                Some(item) if seen.insert(item.clone()) => list.push(item),
                Some(_) => {}
                None => self.leave_out(format!("{} among its {key} is left out", shown(item))),
            }
        }
        list
    }
}

fn environment(entry: &mut Entry<'_>, time_zone: &TimeZone) -> Option<EnvironmentState> {
    let fields = entry.object()?;
    let Some(eid) = eid(fields.get("eid"), entry.key) else {
        entry.leave_out("it has no eid, and it is left out");
        return None;
    };
    entry.name = format!("environment {}", shown(&Value::from(eid.as_str())));
    let Some(uid) = fields.get("uid").and_then(integer).and_then(|uid| u32::try_from(uid).ok()) else {
        let found = fields.get("uid").map_or_else(|| "missing".to_owned(), shown);
        entry.leave_out(format!("its uid is {found}, and it is left out"));
        return None;
    };
    let no_configuration = Map::new();
    let configuration = entry.optional(fields, "config", Value::as_object).unwrap_or(&no_configuration);
    let pid = |value: &Value| {
        let pid = i32::try_from(integer(value)?).ok()?;
        u32::try_from(pid).ok().filter(|&pid| pid > 0)
    };
    Some(EnvironmentState {
        uid,
        username: entry.text(fields, "username"),
        created_timestamp_seconds: entry.time(fields, "creation", time_zone),
        name: entry.text(configuration, "name"),
        gpus: entry.optional(configuration, "gpus", |value| u32::try_from(integer(value)?).ok()),
        gpu_memory: entry.amount(configuration, "gpu_memory"),
        members: entry.list(fields, "pids", pid).into_iter().map(MemberState::from).collect(),
        kernel_ids: entry.list(fields, "kernel_ids", |value| value.as_str().map(str::to_owned)),
        context_seconds: None,
        eid,
    })
}

fn device(entry: &mut Entry<'_>, time_zone: &TimeZone) -> Option<DeviceState> {
    let fields = entry.object()?;
    let named = match (fields.get("index"), entry.key) {
        (Some(index), _) => integer(index),
        (None, Some(key)) => key.parse().ok(),
        // genv 1.4.3 takes a device's position as its index.
        (None, None) => i64::try_from(entry.position).ok(),
    };
    let Some(index) = named.and_then(|index| u32::try_from(index).ok()) else {
        entry.leave_out("its index is not a number of a device, and it is left out");
        return None;
    };
    entry.name = format!("device {index}");
    Some(DeviceState {
        index,
        total_memory: entry.amount(fields, "total_memory"),
        attachments: attachments(entry, fields, time_zone),
    })
}

fn attachments(entry: &mut Entry<'_>, fields: &Map<String, Value>, time_zone: &TimeZone) -> Vec<AttachmentState> {
    let list = ["attachments", "eids"].iter().find_map(|key| fields.get(*key).filter(|value| !value.is_null()));
    let list = match list {
        Some(list) => children(list).unwrap_or_else(|| {
            entry.leave_out(format!("its attachments are {}, and are left out", shown(list)));
            Vec::new()
        }),
        // The first versions attached one environment only, as a field of the device.
        None => match fields.get("eid") {
            Some(Value::Null) | None => Vec::new(),
            Some(_) => vec![(None, entry.value)],
        },
    };
    let (mut eids, mut attachments) = (HashSet::with_capacity(list.len()), Vec::with_capacity(list.len()));
    for (key, value) in list {
        let no_fields = Map::new();
        let (bare, fields) = match value {
            Value::Object(fields) => (fields.get("eid"), fields),
            _ if key.is_some() => (None, &no_fields),
            other => (Some(other), &no_fields),
        };
        let Some(eid) = eid(bare, key) else {
            entry.leave_out(format!("its attachment {} has no eid, and is left out", shown(value)));
            continue;
        };
        if !eids.insert(eid.clone()) {
            entry.warn(format!("environment {} is attached twice: the first is taken", shown(&Value::from(eid))));
            continue;
        }
        let time_key = if fields.contains_key("time") { "time" } else { "attached" };
        attachments.push(AttachmentState {
            gpu_memory: entry.amount(fields, "gpu_memory"),
            attached_timestamp_seconds: entry.time(fields, time_key, time_zone),
            eid,
        });
    }
    attachments
}

/// An item of a list, or a value of an object with its key.
type Child<'a> = (Option<&'a str>, &'a Value);

/// The children of a list or an object.
fn children(value: &Value) -> Option<Vec<Child<'_>>> {
    match value {
        Value::Array(list) => Some(list.iter().map(|value| (None, value)).collect()),
        Value::Object(map) => Some(map.iter().map(|(key, value)| (Some(key.as_str()), value)).collect()),
        _ => None,
    }
}

/// An eid; versions that took the shell's pid for it may have written a number.
fn eid(value: Option<&Value>, key: Option<&str>) -> Option<String> {
    let eid = match value {
        Some(Value::String(eid)) => eid.clone(),
        Some(Value::Number(eid)) => eid.to_string(),
        Some(Value::Null) | None => key?.to_owned(),
        Some(_) => return None,
    };
    (!eid.is_empty()).then_some(eid)
}

pub(super) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A value as JSON, which escapes control characters, cut to a readable length.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MOST_SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Replaces the escapes of lone surrogates, which Python writes for bytes that were not UTF-8, by U+FFFD.
fn without_lone_surrogates(text: &str) -> String {
    let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let (mut replaced, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        replaced.push_str(&rest[..at]);
        rest = &rest[at..];
        let (kept, length) = match unit(rest) {
            Some(0xd800..=0xdbff) if matches!(rest.get(6..).and_then(unit), Some(0xdc00..=0xdfff)) => (&rest[..12], 12),
            Some(0xd800..=0xdfff) => ("\u{fffd}", 6),
            // The backslash and the escaped character, which may have several bytes in a damaged text.
            _ => {
                let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                (&rest[..length], length)
            }
        };
        replaced.push_str(kept);
        rest = &rest[length..];
    }
    replaced + rest
}

#[cfg(test)]
mod tests;
