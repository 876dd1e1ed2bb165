//! The state in the form of genv 1.4.3, byte for byte, as commands print it.
//!
//! This is the output of Python's `json.dump(…, indent=2)`: all but printable ASCII is escaped, and there is no newline
//! at the end. genv 1.4.3 refuses unknown keys, and fails without a time: an entry without a time gets the time of
//! writing.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use serde::Serialize;

use super::{AttachmentState, DeviceState, EnvironmentState};
use crate::model::{MemoryAmount, format_local_time, local_time_zone};

/// The zone and the default of written times.
#[derive(Clone, Debug)]
pub struct Times {
    /// The zone of the times.
    pub zone: TimeZone,
    /// Unix time, in place of a missing time.
    pub now_seconds: i64,
}

impl Times {
    /// Local time of this machine, now.
    pub fn here() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            zone: local_time_zone(),
            now_seconds: i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX),
        }
    }

    /// Local time; the present time if there is no time that can be written.
    pub fn text(&self, timestamp_seconds: Option<f64>) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "what is out of range is no time that can be written")]
        let seconds = timestamp_seconds.map_or(self.now_seconds, |seconds| seconds.floor() as i64);
        format_local_time(seconds, &self.zone)
            .or_else(|_| format_local_time(self.now_seconds, &self.zone))
            .unwrap_or_else(|_| "01/01/1970 00:00:00".to_owned())
    }
}

/// The document of `envs.json`.
#[derive(Serialize)]
pub struct EnvironmentsDocument<'a> {
    envs: Vec<EnvironmentRecord<'a>>,
}

#[derive(Serialize)]
struct EnvironmentRecord<'a> {
    eid: &'a str,
    uid: u32,
    creation: String,
    username: Option<&'a str>,
    config: ConfigurationRecord<'a>,
    pids: Vec<u32>,
    kernel_ids: &'a [String],
    /// Never in the file: genv 1.x refuses the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_end_timestamp_seconds: Option<f64>,
}

#[derive(Serialize)]
struct ConfigurationRecord<'a> {
    name: Option<&'a str>,
    gpu_memory: Option<String>,
    gpus: Option<u32>,
}

/// The document of `devices.json`.
#[derive(Serialize)]
pub struct DevicesDocument<'a> {
    devices: Vec<DeviceRecord<'a>>,
}

#[derive(Serialize)]
struct DeviceRecord<'a> {
    index: u32,
    total_memory: Option<String>,
    attachments: Vec<AttachmentRecord<'a>>,
}

#[derive(Serialize)]
struct AttachmentRecord<'a> {
    eid: &'a str,
    gpu_memory: Option<String>,
    time: String,
}

impl<'a> EnvironmentsDocument<'a> {
    /// These environments.
    pub fn new(environments: &'a [EnvironmentState], times: &Times) -> Self {
        let environments = environments.iter();
        Self { envs: environments.map(|it| environment(it, times)).collect() }
    }

    /// Adds the ends of leases, Unix time by environment, for the output of commands.
    #[must_use]
    pub fn with_leases(mut self, ends: &HashMap<String, f64>) -> Self {
        for environment in &mut self.envs {
            environment.lease_end_timestamp_seconds = ends.get(environment.eid).copied();
        }
        self
    }
}

fn environment<'a>(environment: &'a EnvironmentState, times: &Times) -> EnvironmentRecord<'a> {
    EnvironmentRecord {
        eid: &environment.eid,
        uid: environment.uid,
        creation: times.text(environment.created_timestamp_seconds),
        username: environment.username.as_deref(),
        config: ConfigurationRecord {
            name: environment.name.as_deref(),
            gpu_memory: amount(environment.gpu_memory),
            gpus: environment.gpus,
        },
        pids: environment.pids().collect(),
        kernel_ids: &environment.kernel_ids,
        lease_end_timestamp_seconds: None,
    }
}

impl<'a> DevicesDocument<'a> {
    /// These devices.
    pub fn new(devices: &'a [DeviceState], times: &Times) -> Self {
        Self { devices: devices.iter().map(|it| device(it, times)).collect() }
    }
}

fn device<'a>(device: &'a DeviceState, times: &Times) -> DeviceRecord<'a> {
    let attachments = device.attachments.iter();
    DeviceRecord {
        index: device.index,
        total_memory: amount(device.total_memory),
        attachments: attachments.map(|it| attachment(it, times)).collect(),
    }
}

fn attachment<'a>(attachment: &'a AttachmentState, times: &Times) -> AttachmentRecord<'a> {
    AttachmentRecord {
        eid: &attachment.eid,
        gpu_memory: amount(attachment.gpu_memory),
        time: times.text(attachment.attached_timestamp_seconds),
    }
}

fn amount(amount: Option<MemoryAmount>) -> Option<String> {
    amount.map(|amount| amount.to_string())
}

/// JSON as genv 1.4.3 writes and prints it.
///
/// # Panics
/// If the value cannot be serialized: give it none but texts, numbers, lists and structs.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    // The layout is Python's. Only texts have other characters than printable ASCII and line breaks.
    let text = serde_json::to_string_pretty(value).expect("texts and numbers always serialize");
    let mut ascii = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\n' | ' '..='~') {
            ascii.push(character);
        } else {
            ascii.extend(character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    ascii.into_bytes()
}

#[cfg(test)]
mod tests;
