//! The state files as genv 1.4.3 writes them, byte for byte.
//!
//! That is what Python's `json.dump(…, indent=2)` makes: all but printable ASCII escaped, no newline at the
//! end. Its decoder refuses keys that it does not know, and computes with times without asking
//! whether there is one: an entry that lacks its time gets the time of writing.

use std::collections::HashMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::value::lone_surrogate;
use super::{AttachmentState, DeviceState, EnvironmentState};
use crate::model::{MemoryAmount, format_local_time, local_time_zone};

/// What times are written with.
#[derive(Clone, Debug)]
pub struct Times {
    /// The zone that they are local to.
    pub zone: TimeZone,
    /// Unix time: what is missing happened now.
    pub now_seconds: i64,
}

impl Times {
    /// Local time of this machine, now.
    #[must_use]
    pub fn here() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            zone: local_time_zone(),
            now_seconds: i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX),
        }
    }

    /// Local time; of now where there is none that can be written.
    #[must_use]
    pub fn text(&self, timestamp_seconds: Option<f64>) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "what is out of range is no time that can be written")]
        let seconds = timestamp_seconds.map_or(self.now_seconds, |seconds| seconds.floor() as i64);
        format_local_time(seconds, &self.zone)
            .or_else(|_| format_local_time(self.now_seconds, &self.zone))
            .unwrap_or_else(|_| "01/01/1970 00:00:00".to_owned())
    }
}

/// The document that `envs.json` is.
#[derive(Serialize)]
pub struct EnvironmentsDocument<'a> {
    envs: Vec<Environment<'a>>,
}

#[derive(Serialize)]
struct Environment<'a> {
    eid: &'a str,
    uid: u32,
    creation: String,
    username: Option<&'a str>,
    config: Configuration<'a>,
    pids: &'a [u32],
    kernel_ids: &'a [String],
    /// Never in the file: genv 1.x knows no such key.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_end_timestamp_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Configuration<'a> {
    name: Option<&'a str>,
    gpu_memory: Option<String>,
    gpus: Option<u32>,
}

/// The document that `devices.json` is.
#[derive(Serialize)]
pub struct DevicesDocument<'a> {
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
struct Device<'a> {
    index: u32,
    total_memory: Option<String>,
    attachments: Vec<Attachment<'a>>,
}

#[derive(Serialize)]
struct Attachment<'a> {
    eid: &'a str,
    gpu_memory: Option<String>,
    time: String,
}

/// `envs.json`.
pub(super) fn environments(environments: &[EnvironmentState], times: &Times) -> Vec<u8> {
    json(&EnvironmentsDocument::new(environments, times))
}

impl<'a> EnvironmentsDocument<'a> {
    /// These environments.
    #[must_use]
    pub fn new(environments: &'a [EnvironmentState], times: &Times) -> Self {
        let environments = environments.iter();
        Self { envs: environments.map(|it| environment(it, times)).collect() }
    }

    /// The same with the ends of leases, Unix time by environment, for programs that read more than `envs.json` has.
    #[must_use]
    pub fn with_leases(mut self, ends: &HashMap<String, f64>) -> Self {
        for environment in &mut self.envs {
            environment.lease_end_timestamp_seconds = ends.get(environment.eid).copied();
        }
        self
    }
}

fn environment<'a>(environment: &'a EnvironmentState, times: &Times) -> Environment<'a> {
    Environment {
        eid: &environment.eid,
        uid: environment.uid,
        creation: times.text(environment.created_timestamp_seconds),
        username: environment.username.as_deref(),
        config: Configuration {
            name: environment.name.as_deref(),
            gpu_memory: amount(environment.gpu_memory),
            gpus: environment.gpus,
        },
        pids: &environment.pids,
        kernel_ids: &environment.kernel_ids,
        lease_end_timestamp_seconds: None,
    }
}

/// `devices.json`. genv 1.4.3 takes a device's position for its index: they must be 0…n−1 in order.
pub(super) fn devices(devices: &[DeviceState], times: &Times) -> Vec<u8> {
    json(&DevicesDocument::new(devices, times))
}

impl<'a> DevicesDocument<'a> {
    /// These devices.
    #[must_use]
    pub fn new(devices: &'a [DeviceState], times: &Times) -> Self {
        Self { devices: devices.iter().map(|it| device(it, times)).collect() }
    }

    /// The list in it, as a part of another document; nothing of an empty one.
    pub(super) fn list(&self) -> Value {
        let list = serde_json::to_value(&self.devices).unwrap_or_default();
        Some(list).filter(|_| !self.devices.is_empty()).unwrap_or_default()
    }
}

fn device<'a>(device: &'a DeviceState, times: &Times) -> Device<'a> {
    let attachments = device.attachments.iter();
    Device {
        index: device.index,
        total_memory: amount(device.total_memory),
        attachments: attachments.map(|it| attachment(it, times)).collect(),
    }
}

fn attachment<'a>(attachment: &'a AttachmentState, times: &Times) -> Attachment<'a> {
    Attachment {
        eid: &attachment.eid,
        gpu_memory: amount(attachment.gpu_memory),
        time: times.text(attachment.attached_timestamp_seconds),
    }
}

fn amount(amount: Option<MemoryAmount>) -> Option<String> {
    amount.map(|amount| amount.to_string())
}

/// JSON as genv 1.4.3 writes and prints it, with what lone surrogates became turned back.
///
/// # Panics
/// If the value cannot be serialized: give it none but texts, numbers, lists and structs.
#[must_use]
pub fn json(value: &impl Serialize) -> Vec<u8> {
    let mut content = Vec::with_capacity(4096);
    let mut serializer = Serializer::with_formatter(&mut content, PythonFormatter::default());
    value.serialize(&mut serializer).expect("texts and numbers always serialize, and a vector takes every write");
    content
}

/// [`PrettyFormatter`], whose layout is Python's, with everything but printable ASCII escaped.
#[derive(Default)]
struct PythonFormatter(PrettyFormatter<'static>);

impl Formatter for PythonFormatter {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c: char| !matches!(c, ' '..='~')) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let Some(character) = rest[at..].chars().next() else {
                break;
            };
            if let Some(unit) = lone_surrogate(character) {
                write!(writer, "\\u{unit:04x}")?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
            rest = &rest[at + character.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.begin_array(writer)
    }

    fn end_array<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.end_array(writer)
    }

    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.end_array_value(writer)
    }

    fn begin_object<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.begin_object(writer)
    }

    fn end_object<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.end_object(writer)
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W>(&mut self, writer: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests;
