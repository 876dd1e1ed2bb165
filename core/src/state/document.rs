//! The shapes of the state files that genv has written, from 0.3 to 1.4.3.
//!
//! Lists were objects by eid or index at first; an attachment was a bare eid, then an object; its time
//! was `attached`, then `time`; what a version did not know is missing or null. Any mixture is read, and
//! keys that are not known are passed over.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::Deserializer;
use serde_json::de::StrRead;
use serde_json::{Map, Value, json};

use super::entries;
use super::left_out::LeftOut;
use super::salvage;
use super::value::{
    self, Entry, amount, eid, found, integer, list, object, optional, shown, text, time,
};
use super::{AttachmentState, DEVICES_FILE, DeviceState, ENVIRONMENTS_FILE, EnvironmentState};

/// How many warnings a file may cause: anybody may write there.
const MOST_WARNINGS: usize = 20;

/// A file while it is read.
type TextDeserializer<'t> = serde_json::Deserializer<StrRead<'t>>;

/// What one file says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document<T> {
    pub(super) entries: Vec<T>,
    /// Whether an entry, or a member of one, was left out.
    pub(super) incomplete: bool,
    /// Whether it is what is whole in a damaged file.
    pub(super) salvaged: bool,
    /// What the environments name that were left out.
    pub(super) left_out: Arc<LeftOut>,
    pub(super) warnings: Vec<String>,
    /// Devices that are there, and of which an attachment was left out.
    pub(super) damaged: BTreeSet<u32>,
}

impl<T> Default for Document<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            incomplete: false,
            salvaged: false,
            left_out: Arc::default(),
            warnings: Vec::new(),
            damaged: BTreeSet::new(),
        }
    }
}

/// How a file is read.
#[derive(Debug)]
pub(super) struct Format<T> {
    pub(super) name: &'static str,
    /// What a whole file says.
    pub(super) parse: fn(&[u8], &TimeZone) -> Result<Document<T>, NotADocument>,
    /// What is whole in one that is damaged.
    pub(super) salvage: fn(&[u8], &TimeZone) -> Document<T>,
}

pub(super) const ENVIRONMENTS: Format<EnvironmentState> = Format {
    name: ENVIRONMENTS_FILE,
    parse: environments,
    salvage: |content, time_zone| {
        let records = salvage::records(content, &["eid", "uid"]);
        salvaged(environments_of(&json!({ "envs": records }), time_zone))
    },
};

/// What a whole record of a device has.
pub(super) const DEVICE_KEYS: [&str; 2] = ["index", "attachments"];

pub(super) const DEVICES: Format<DeviceState> = Format {
    name: DEVICES_FILE,
    parse: devices,
    salvage: |content, time_zone| {
        let records = salvage::records(content, &DEVICE_KEYS);
        salvaged(devices_of(&json!({ "devices": records }), time_zone))
    },
};

fn salvaged<T>(read: Result<Document<T>, NotADocument>) -> Document<T> {
    Document {
        incomplete: true,
        salvaged: true,
        ..read.unwrap_or_default()
    }
}

/// The text is no state file, or not all of one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotADocument {
    #[error("it is empty")]
    Empty,
    #[error("it is not JSON: {0}")]
    Json(String),
    #[error("it has no '{0}'")]
    Lacks(&'static str),
    #[error("it is not understood: {0}")]
    Unknown(String),
}

/// Reads `envs.json`.
pub(super) fn environments(
    content: &[u8],
    time_zone: &TimeZone,
) -> Result<Document<EnvironmentState>, NotADocument> {
    whole(content, "envs", |source| {
        environments_from(source, time_zone)
    })
}

/// What a document says that has been read already.
pub(super) fn environments_of(
    root: &Value,
    time_zone: &TimeZone,
) -> Result<Document<EnvironmentState>, NotADocument> {
    known("envs", environments_from(root, time_zone))
}

fn environments_from<'de, D: Deserializer<'de>>(
    source: D,
    time_zone: &TimeZone,
) -> Result<Option<Document<EnvironmentState>>, D::Error> {
    let (mut eids, mut left_out) = (HashSet::new(), LeftOut::default());
    let document = document("envs.json", "envs", source, |entry| {
        let environment = environment(entry, time_zone);
        if entry.incomplete {
            left_out.add(entry, environment.is_some());
        }
        let environment = environment?;
        let first = eids.insert(environment.eid.clone());
        if !first {
            entry.warn("it is there twice: the first is taken");
        }
        first.then_some(environment)
    })?;
    Ok(document.map(|document| Document {
        left_out: Arc::new(left_out),
        ..document
    }))
}

/// Reads `devices.json`.
pub(super) fn devices(
    content: &[u8],
    time_zone: &TimeZone,
) -> Result<Document<DeviceState>, NotADocument> {
    whole(content, "devices", |source| devices_from(source, time_zone))
}

/// What a document says that has been read already.
pub(super) fn devices_of(
    root: &Value,
    time_zone: &TimeZone,
) -> Result<Document<DeviceState>, NotADocument> {
    known("devices", devices_from(root, time_zone))
}

fn devices_from<'de, D: Deserializer<'de>>(
    source: D,
    time_zone: &TimeZone,
) -> Result<Option<Document<DeviceState>>, D::Error> {
    let (mut indices, mut damaged) = (HashSet::new(), BTreeSet::new());
    let document = document("devices.json", "devices", source, |entry| {
        let device = device(entry, time_zone)?;
        let first = indices.insert(device.index);
        if !first {
            entry.warn("it is there twice: the first is taken");
        }
        if entry.incomplete || !first {
            damaged.insert(device.index);
        }
        first.then_some(device)
    })?;
    Ok(document.map(|mut document| {
        document.damaged = damaged;
        document.entries.sort_by_key(|device| device.index);
        document
    }))
}

/// Reads all of a file.
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

/// Reads the entries of the list or object `key`, one after another: as values of JSON all of them take ten times the memory
/// of the file. Returns nothing if there is no such list or object.
fn document<'de, T, D: Deserializer<'de>>(
    file: &str,
    key: &'static str,
    source: D,
    mut read: impl FnMut(&mut Entry<'_>) -> Option<T>,
) -> Result<Option<Document<T>>, D::Error> {
    let mut document = Document::default();
    let (mut dropped, mut position) = (0_usize, 0);
    let found = entries::for_each(source, key, |key, value| {
        let mut entry = Entry {
            name: format!("entry {}", position + 1),
            key,
            position,
            value,
            warnings: Vec::new(),
            incomplete: false,
        };
        position += 1;
        document.entries.extend(read(&mut entry));
        document.incomplete |= entry.incomplete;
        for warning in entry.warnings {
            if document.warnings.len() < MOST_WARNINGS {
                document.warnings.push(format!("{file}: {warning}"));
            } else {
                dropped += 1;
            }
        }
    })?;
    if dropped > 0 {
        let warning = format!("{file}: {dropped} more damaged values");
        document.warnings.push(warning);
    }
    Ok(found.then_some(document))
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
        gpus: optional(entry, configuration, "gpus", |value| {
            u32::try_from(integer(Some(value))?).ok()
        }),
        gpu_memory: amount(entry, configuration, "gpu_memory"),
        pids: list(entry, fields, "pids", pid),
        kernel_ids: list(entry, fields, "kernel_ids", |value| {
            value.as_str().map(str::to_owned)
        }),
        eid,
    })
}

fn device(entry: &mut Entry<'_>, time_zone: &TimeZone) -> Option<DeviceState> {
    let fields = object(entry)?;
    let named = match (fields.get("index"), entry.key) {
        (Some(index), _) => integer(Some(index)),
        (None, Some(key)) => key.parse().ok(),
        // genv 1.4.3 takes a device's position for its index.
        (None, None) => i64::try_from(entry.position).ok(),
    };
    let Some(index) = named.and_then(|index| u32::try_from(index).ok()) else {
        entry.leave_out("its index is not a number of a device");
        return None;
    };
    entry.name = format!("device {index}");
    Some(DeviceState {
        index,
        total_memory: amount(entry, fields, "total_memory"),
        attachments: attachments(entry, fields, time_zone),
    })
}

fn attachments(
    entry: &mut Entry<'_>,
    fields: &Map<String, Value>,
    time_zone: &TimeZone,
) -> Vec<AttachmentState> {
    let list = ["attachments", "eids"]
        .iter()
        .find_map(|key| fields.get(*key).filter(|value| !value.is_null()));
    let list = match list {
        Some(list) => value::children(list).unwrap_or_else(|| {
            let found = shown(list);
            entry.incomplete = true;
            entry.warn(format!("its attachments are {found}, and are left out"));
            Vec::new()
        }),
        // The first versions attached one environment, written into the device itself.
        None => match fields.get("eid") {
            Some(Value::Null) => Vec::new(),
            Some(_) => vec![(None, entry.value)],
            None => {
                entry.incomplete = true;
                Vec::new()
            }
        },
    };
    let mut eids = HashSet::with_capacity(list.len());
    let mut attachments = Vec::with_capacity(list.len());
    for (key, value) in list {
        let no_fields = Map::new();
        let (bare, fields) = match value {
            Value::Object(fields) => (fields.get("eid"), fields),
            _ if key.is_some() => (None, &no_fields),
            other => (Some(other), &no_fields),
        };
        let Some(eid) = eid(bare, key) else {
            let found = shown(value);
            entry.incomplete = true;
            entry.warn(format!(
                "its attachment {found} has no eid, and is left out"
            ));
            continue;
        };
        if !eids.insert(eid.clone()) {
            let eid = shown(&Value::from(eid));
            entry.warn(format!(
                "environment {eid} is attached twice: the first is taken"
            ));
            continue;
        }
        let time_key = if fields.contains_key("time") {
            "time"
        } else {
            "attached"
        };
        attachments.push(AttachmentState {
            gpu_memory: amount(entry, fields, "gpu_memory"),
            attached_timestamp_seconds: time(entry, fields, time_key, time_zone),
            eid,
        });
    }
    attachments
}

#[cfg(test)]
mod tests;
