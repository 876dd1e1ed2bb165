//! One device of `devices.json`, with its attachments.

use std::collections::HashSet;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::value::{self, Entry, amount, eid, integer, object, shown, time};
use super::{AttachmentState, DeviceState};

/// The device of an entry; `None` if the entry names no device.
pub(super) fn device(entry: &mut Entry<'_>, time_zone: &TimeZone) -> Option<DeviceState> {
    let fields = object(entry)?;
    let named = match (fields.get("index"), entry.key) {
        (Some(index), _) => integer(Some(index)),
        (None, Some(key)) => key.parse().ok(),
        // genv 1.4.3 takes a device's position as its index.
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

fn attachments(entry: &mut Entry<'_>, fields: &Map<String, Value>, time_zone: &TimeZone) -> Vec<AttachmentState> {
    let list = ["attachments", "eids"].iter().find_map(|key| fields.get(*key).filter(|value| !value.is_null()));
    let list = match list {
        Some(list) => value::children(list).unwrap_or_else(|| {
            let found = shown(list);
            entry.incomplete = true;
            entry.warn(format!("its attachments are {found}, and are left out"));
            Vec::new()
        }),
        // The first versions attached one environment only, as a field of the device.
        None => match fields.get("eid") {
            Some(Value::Null) | None => Vec::new(),
            Some(_) => vec![(None, entry.value)],
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
            entry.warn(format!("its attachment {found} has no eid, and is left out"));
            continue;
        };
        if !eids.insert(eid.clone()) {
            let eid = shown(&Value::from(eid));
            entry.warn(format!("environment {eid} is attached twice: the first is taken"));
            continue;
        }
        let time_key = if fields.contains_key("time") { "time" } else { "attached" };
        attachments.push(AttachmentState {
            gpu_memory: amount(entry, fields, "gpu_memory"),
            attached_timestamp_seconds: time(entry, fields, time_key, time_zone),
            eid,
        });
    }
    attachments
}
