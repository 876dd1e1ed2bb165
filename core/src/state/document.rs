//! The shapes of the state files of genv 1.x, from 0.3 to 1.4.3: they are imported, and `genv usage` prints them.
//!
//! Lists were objects by eid or index at first. An attachment was a bare eid, then an object; its time was `attached`,
//! then `time`. Fields that a version did not know are missing or null. All mixtures are read, and unknown keys are
//! ignored.

use std::collections::{BTreeMap, HashSet};

use jiff::tz::TimeZone;
use serde::Deserializer;
use serde_json::de::StrRead;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::device_entry::device;
use super::entries;
use super::value::{self, Entry, amount, eid, found, integer, list, object, optional, shown, text, time};
use super::{DeviceState, EnvironmentState, MemberState};

/// The most warnings of a file: every user may write the file.
const MOST_WARNINGS: usize = 20;

/// The limit for a whole record. Large fields of a larger record are left out.
const MOST_RECORD_BYTES: usize = 1 << 20;

/// As [`MOST_RECORD_BYTES`], for a device with its attachments.
const MOST_DEVICE_BYTES: usize = 8 << 20;

/// The largest field that is read of an entry beyond its limit.
const MOST_FIELD_BYTES: usize = 4 << 10;

/// Attachments beyond this number are left out. In genv's own layout this number fits into a file of allowed
/// size.
const MOST_ATTACHMENTS: usize = 100_000;

/// A file while it is read.
type TextDeserializer<'t> = serde_json::Deserializer<StrRead<'t>>;

/// The content of one file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document<T> {
    pub(super) entries: Vec<T>,
    /// Whether an entry, or a member of an entry, was left out.
    pub(super) incomplete: bool,
    pub(super) warnings: Vec<String>,
}

impl<T> Default for Document<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), incomplete: false, warnings: Vec::new() }
    }
}

/// The text is not a state file, or only a part of one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotADocument {
    #[error("it is empty")]
    Empty,
    #[error("it is not JSON: {0}")]
    Json(String),
    #[error("it has no '{0}'")]
    Lacks(&'static str),
}

/// Reads `envs.json`.
pub(super) fn environments(content: &[u8], zone: &TimeZone) -> Result<Document<EnvironmentState>, NotADocument> {
    whole(content, "envs", |source| environments_from(source, zone))
}

/// The content of a parsed document.
pub(super) fn environments_of(root: &Value, zone: &TimeZone) -> Result<Document<EnvironmentState>, NotADocument> {
    known("envs", environments_from(root, zone))
}

fn environments_from<'de, D: Deserializer<'de>>(
    source: D,
    time_zone: &TimeZone,
) -> Result<Option<Document<EnvironmentState>>, D::Error> {
    let (mut eids, mut environments) = (HashSet::new(), Vec::new());
    let document = document("envs.json", "envs", MOST_RECORD_BYTES, source, |entry| {
        let Some(environment) = environment(entry, time_zone) else {
            return;
        };
        if eids.insert(environment.eid.clone()) {
            environments.push(environment);
        } else {
            entry.warn("it is there twice: the first is taken");
        }
    })?;
    Ok(document.map(|document| Document { entries: environments, ..document }))
}

/// Reads `devices.json`.
pub(super) fn devices(content: &[u8], zone: &TimeZone) -> Result<Document<DeviceState>, NotADocument> {
    whole(content, "devices", |source| devices_from(source, zone))
}

/// The content of a parsed document.
pub(super) fn devices_of(root: &Value, time_zone: &TimeZone) -> Result<Document<DeviceState>, NotADocument> {
    known("devices", devices_from(root, time_zone))
}

fn devices_from<'de, D: Deserializer<'de>>(
    source: D,
    time_zone: &TimeZone,
) -> Result<Option<Document<DeviceState>>, D::Error> {
    let mut indices = HashSet::new();
    let (mut devices, mut attachments) = (Vec::new(), 0);
    let document = document("devices.json", "devices", MOST_DEVICE_BYTES, source, |entry| {
        let Some(mut device) = device(entry, time_zone) else {
            return;
        };
        attachments += device.attachments.len();
        if attachments > MOST_ATTACHMENTS {
            attachments -= device.attachments.len();
            device.attachments.clear();
            entry.leave_out("there are too many attachments");
        }
        if indices.insert(device.index) {
            devices.push(device);
        } else {
            entry.warn("it is there twice: the first is taken");
        }
    })?;
    Ok(document.map(|document| {
        devices.sort_by_key(|device: &DeviceState| device.index);
        Document { entries: devices, ..document }
    }))
}

/// Reads a whole file.
fn whole<T>(
    content: &[u8],
    key: &'static str,
    read: impl Fn(&mut TextDeserializer<'_>) -> Result<Option<Document<T>>, serde_json::Error>,
) -> Result<Document<T>, NotADocument> {
    if content.trim_ascii().is_empty() {
        return Err(NotADocument::Empty);
    }
    let document = value::parse_with(content, |text| {
        let mut source = serde_json::Deserializer::from_str(text);
        let document = read(&mut source)?;
        source.end()?;
        Ok(document)
    });
    known(key, document)
}

fn known<T>(
    key: &'static str,
    document: Result<Option<Document<T>>, serde_json::Error>,
) -> Result<Document<T>, NotADocument> {
    let document = document.map_err(|error| NotADocument::Json(error.to_string()))?;
    document.ok_or(NotADocument::Lacks(key))
}

/// Reads the entries of the list or object `key`, one after another: all entries as values of JSON would take ten times the memory of the file. `read` takes each entry. Returns nothing if the file has no such list
/// or object.
fn document<'de, T, D: Deserializer<'de>>(
    file: &str,
    key: &'static str,
    most_bytes: usize,
    source: D,
    mut read: impl FnMut(&mut Entry<'_>),
) -> Result<Option<Document<T>>, D::Error> {
    let mut document = Document::default();
    let (mut dropped, mut position) = (0_usize, 0);
    let found = entries::for_each(source, key, |key, text| {
        let size_bytes = key.map_or(0, str::len) + text.get().len();
        let is_too_large = size_bytes > most_bytes;
        let key = key.filter(|key| !is_too_large || key.len() <= MOST_FIELD_BYTES);
        let value = if is_too_large { small_fields(text) } else { serde_json::from_str(text.get())? };
        let mut entry = Entry {
            name: format!("entry {}", position + 1),
            key,
            position,
            value: &value,
            warnings: Vec::new(),
            incomplete: is_too_large,
        };
        if is_too_large {
            entry.warn(format!("it has {size_bytes} bytes: what is large in it is left out"));
        }
        position += 1;
        read(&mut entry);
        document.incomplete |= entry.incomplete;
        for warning in entry.warnings {
            if document.warnings.len() < MOST_WARNINGS {
                document.warnings.push(format!("{file}: {warning}"));
            } else {
                dropped += 1;
            }
        }
        Ok(())
    })?;
    if dropped > 0 {
        let warning = format!("{file}: {dropped} more damaged values");
        document.warnings.push(warning);
    }
    Ok(found.then_some(document))
}

/// The small fields of an object; no fields for any other value.
fn small_fields(text: &RawValue) -> Value {
    let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text.get()).unwrap_or_default();
    let small = fields.into_iter().filter_map(|(name, text)| {
        let is_small = text.get().len() <= MOST_FIELD_BYTES;
        let value = is_small.then(|| serde_json::from_str(text.get()).ok());
        Some((name, value.flatten()?))
    });
    Value::Object(small.collect())
}

fn environment(entry: &mut Entry<'_>, time_zone: &TimeZone) -> Option<EnvironmentState> {
    let fields = object(entry)?;
    let Some(eid) = eid(fields.get("eid"), entry.key) else {
        entry.leave_out("it has no eid");
        return None;
    };
    entry.name = format!("environment {}", shown(&Value::from(eid.as_str())));
    let Some(uid) = integer(fields.get("uid")).and_then(|uid| u32::try_from(uid).ok()) else {
        let found = found(fields.get("uid"));
        entry.leave_out(format!("its uid is {found}"));
        return None;
    };
    let no_configuration = Map::new();
    let configuration = match fields.get("config") {
        Some(Value::Object(configuration)) => configuration,
        Some(Value::Null) | None => &no_configuration,
        Some(other) => {
            let found = shown(other);
            entry.warn(format!("its config is {found}, and is left out"));
            &no_configuration
        }
    };
    let pid = |value: &Value| {
        let pid = integer(Some(value)).and_then(|pid| i32::try_from(pid).ok())?;
        u32::try_from(pid).ok().filter(|&pid| pid > 0)
    };
    Some(EnvironmentState {
        uid,
        username: text(entry, fields, "username"),
        created_timestamp_seconds: time(entry, fields, "creation", time_zone),
        name: text(entry, configuration, "name"),
        gpus: optional(entry, configuration, "gpus", |value| u32::try_from(integer(Some(value))?).ok()),
        gpu_memory: amount(entry, configuration, "gpu_memory"),
        members: list(entry, fields, "pids", pid).into_iter().map(MemberState::from).collect(),
        kernel_ids: list(entry, fields, "kernel_ids", |value| value.as_str().map(str::to_owned)),
        context_seconds: None,
        eid,
    })
}

#[cfg(test)]
mod tests;
